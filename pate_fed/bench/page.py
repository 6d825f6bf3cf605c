"""The benchmark's page, pictures and figures, from its cells: who is best at each ε is said."""

from __future__ import annotations

import base64
import html
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pate_fed.bench.grid import DONE, METHODS, NOT, PUBLISHED, Cell, Grid
from pate_fed.bench.protocol import LEAK, UNITS
from pate_fed.bench.tasks import TASKS, load_task
from pate_fed.disk import write_result
from pate_fed.reproduce.columns import mean_and_sd
from pate_fed.reproduce.driver import store_result
from pate_fed.reproduce.measures import COLOURS, draw_panels

_STYLE = "body{font:15px sans-serif;max-width:60em;margin:2em auto}td,th{padding:.2em .8em;text-align:left}"


def write_page(grid: Grid) -> list[str]:
    """Write bench.html and bench.json of all cells that are there; the lines that sum them up."""
    cells = grid.done()
    lines = [line for task in grid.tasks for line in _said(task, cells)]
    why = {name: hidden(name, cells) for name in grid.methods}
    aside = [f"not in the pictures: {title(name)}: {reason}" for name, reason in why.items() if reason]
    parts = ["<!doctype html><meta charset=utf-8><title>Benchmark</title>", f"<style>{_STYLE}</style>"]
    parts.append("<h1>Benchmark</h1><p>All noise is seeded: nothing here is private. Data are public.</p>")
    for task in grid.tasks:
        own = [cell for cell in cells if cell.task == task]
        if own and task != PUBLISHED:
            parts += [*_section(grid, task, own, cells)]
    parts += [f"<p>{html.escape(line)}</p>" for line in aside]
    write_result(grid.run_dir / "bench.html", "\n".join(parts).encode())
    store_result(
        grid.run_dir / "bench.json",
        command=_command(grid),
        device="cpu",
        rows=[[cell for cell in cells if cell.status == DONE]],
        lines=[*lines, *aside],
    )
    return [*lines, *aside, f"wrote {grid.run_dir / 'bench.html'}"]


def _command(grid: Grid) -> str:
    quick = ["--quick"] if (grid.seeds, grid.epsilons) == (1, (1.0,)) else ["--seeds", str(grid.seeds)]
    words = ["pate-fed", "bench", *quick]
    for flag, chosen, every in (
        ("--task", grid.tasks, (PUBLISHED, *TASKS)),
        ("--method", grid.methods, tuple(METHODS)),
        ("--epsilon", tuple(f"{each:g}" for each in grid.epsilons), () if quick == ["--quick"] else None),
    ):
        if chosen != every and every != ():
            words += [word for each in chosen for word in (flag, each)]
    return shlex.join([*words, *(["--data-dir", "DIR"] if grid.data_dir else [])])


def title(method: str) -> str:
    """A method in words."""
    return METHODS[method].title if method in METHODS else f"{method} (not of this package)"


def hidden(method: str, cells: Sequence[Cell]) -> str:
    """Why a method is in no picture; empty where it is."""
    if method not in METHODS or METHODS[method].ours:
        return ""
    published = METHODS[method].published
    if published is None:
        return "no figure that its authors published is reproduced here"
    found = [cell.value for cell in cells if (cell.task, cell.method) == (PUBLISHED, method) and cell.value]
    if not found:
        return f"its published figure was not made ({published.text})"
    if published.agrees(found[0]):
        return ""
    return f"{100 * found[0]:.2f} %, published {100 * published.figure:.2f} ± {100 * published.spread:.2f} %"


def _weaker(cell: Cell, unit: str) -> bool:
    return cell.claimed is not None and UNITS.index(cell.unit) < UNITS.index(unit)


def _means(cells: Sequence[Cell], task: str) -> dict[tuple[str, float], tuple[float, float, int]]:
    """Mean, spread and count by method and ε."""
    found: dict[tuple[str, float], list[float]] = {}
    for cell in cells:
        if cell.task == task and cell.value is not None:
            found.setdefault((cell.method, cell.epsilon), []).append(cell.value)
    return {key: (*mean_and_sd(values), len(values)) for key, values in found.items()}


def _said(task: str, cells: Sequence[Cell]) -> Iterator[str]:
    """Who is best at each ε, among private methods that protect the task's unit and are shown."""
    own = [cell for cell in cells if cell.task == task and cell.claimed is not None]
    means = _means(own, task)
    if task == "canaries":
        caught = [cell for cell in own if cell.value is not None and cell.value > (cell.claimed or 0)]
        broken = sorted({title(cell.method) for cell in caught})
        yield f"audit: {'; '.join(broken) or 'no claim'} refuted by guesses of {len(own)} runs' canaries"
        return
    weak = {cell.method for cell in own if _weaker(cell, "record")}
    for epsilon in sorted({cell.epsilon for cell in own}):
        rivals = {
            name: mean
            for (name, at), (mean, *_) in means.items()
            if at == epsilon and name not in weak and not hidden(name, cells)
        }
        if not rivals:
            continue
        best = max(rivals, key=lambda name: rivals[name])
        ours = "" if best == "pate-fed" else f"; this package {_figure(rivals.get('pate-fed'))}"
        yield f"{TASKS[task][0]}, ε {epsilon:g}: best {title(best)}, {_figure(rivals[best])}{ours}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _section(grid: Grid, task: str, own: Sequence[Cell], cells: Sequence[Cell]) -> Iterator[str]:
    """A task's rules, picture and table."""
    made, _ = load_task(task, grid.data_dir)
    yield f"<h2>{html.escape(made.title)}</h2>"
    yield (
        f"<p>{len(made.labels):,} private records at {made.parties} hospitals, a pool of {len(made.pool):,}, "
        f"{len(made.test):,} test. One {made.unit} is replaced, δ {made.delta:g}. May be looked at: "
        f"{html.escape(made.look)}. Measured: {html.escape(made.measure)}.</p>"
    )
    yield from (f"<p><b>{html.escape(line)}</b></p>" for line in _said(task, cells))
    picture = _picture(task, made.measure, own, cells)
    yield f'<img alt="{html.escape(made.measure)} by ε" src="data:image/png;base64,{picture}">'
    yield "<table><tr><th>method<th>ε<th>mean<th>± sd<th>seeds<th>remark"
    means = _means(own, task)
    for key in dict.fromkeys((cell.method, cell.epsilon) for cell in own):
        same = [cell for cell in own if (cell.method, cell.epsilon) == key]
        mean, spread, count = means.get(key, (np.nan, np.nan, 0))
        remark = next((cell.reason for cell in same if cell.status != DONE), "")
        remark = f"{NOT}: {remark}" if same[0].status == NOT else remark
        if _weaker(same[0], made.unit):
            remark = f"protects a {same[0].unit} alone"
        elif same[0].unit not in ("", made.unit):
            remark = f"protects a whole {same[0].unit}"
        figures = f"{mean:.3f}<td>{spread:.3f}" if count > 1 else f"{mean:.3f}<td>" if count else "<td>"
        name, epsilon = title(key[0]), f"{key[1]:g}" if key[1] else "none"
        yield f"<tr><td>{html.escape(name)}<td>{epsilon}<td>{figures}<td>{count}<td>{html.escape(remark)}"
    yield "</table>"


def _picture(task: str, measure: str, own: Sequence[Cell], cells: Sequence[Cell]) -> str:
    means = _means(own, task)
    shown = [name for name in dict.fromkeys(cell.method for cell in own) if not hidden(name, cells)]

    def draw(axes: Any) -> None:
        for place, name in enumerate(shown):
            colour = COLOURS[place % len(COLOURS)]
            points = sorted((epsilon, *mean) for (method, epsilon), mean in means.items() if method == name)
            if points and points[0][0] == 0:
                axes[0].axhline(points[0][1], color=colour, ls=":", label=title(name))
            elif points:
                x, y, spread, _ = zip(*points, strict=True)
                axes[0].errorbar(x, y, np.nan_to_num(spread), marker="o", color=colour, label=title(name))
        if measure == LEAK:
            axes[0].axline((0.1, 0.1), slope=1, color="#999999", lw=0.8)
        else:
            axes[0].set_xscale("log")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        draw_panels(path, [(TASKS[task][0], "ε", measure)], draw, size=(7.5, 4.2))
        return base64.b64encode(path.read_bytes()).decode("ascii")

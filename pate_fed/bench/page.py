"""The benchmark's page, pictures and lines, from its cells: who is best at each ε is said."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pate_fed.bench.grid import DONE, FAILED, METHODS, PUBLISHED, Cell, Grid
from pate_fed.bench.protocol import LEAK, RECORD, UNITS
from pate_fed.bench.tasks import TASKS, load_task
from pate_fed.disk import write_result
from pate_fed.report.html import render_page
from pate_fed.reproduce.columns import cells_of, mean_and_sd
from pate_fed.reproduce.measures import COLOURS, draw_panels

_HEADER = ("method", "ε", "mean", "± sd", "seeds", "remark")
Means = dict[tuple[str, float], tuple[float, float, int]]


def summary(grid: Grid, cells: Sequence[Cell]) -> Iterator[str]:
    """Who is best at each task, and what else a reader must know."""
    for task in grid.tasks:
        yield from _best(task, cells)
    yield from _notes(grid, cells)


def _notes(grid: Grid, cells: Sequence[Cell]) -> Iterator[str]:
    for name in grid.methods:
        if reason := hidden(name, cells):
            yield f"not in the pictures: {title(name)}: {reason}"
    yield from dict.fromkeys(f"{FAILED}: {cell.reason}" for cell in cells if cell.status == FAILED)
    if commits := sorted({cell.commit for cell in cells if cell.commit}):
        yield f"cells are of commit {', '.join(commits)}"


def write_page(grid: Grid, cells: Sequence[Cell]) -> None:
    """Write bench.html of all cells that are there."""
    tasks = {cell.task for cell in cells if cell.status == DONE} - {PUBLISHED}
    parts = [_part(grid, task, cells) for task in grid.tasks if task in tasks]
    page = render_page("bench.html.jinja", {"parts": parts, "notes": list(_notes(grid, cells))})
    write_result(grid.out_dir / "bench.html", page.encode())


def title(method: str) -> str:
    """A method in words."""
    return METHODS[method].title if method in METHODS else f"{method} (not of this package)"


def hidden(method: str, cells: Sequence[Cell]) -> str:
    """Why a method is in no picture; empty where it is."""
    if method not in METHODS or method == "pate-fed" or not METHODS[method].private:
        return ""
    if (published := METHODS[method].published) is None:
        return "no figure that its authors published is reproduced here, and its settings are untuned"
    text, figure, spread, _ = published
    found = [cell.value for cell in cells if (cell.task, cell.method) == (PUBLISHED, method) and cell.value]
    if not found:
        return f"its published figure was not made ({text})"
    agrees = abs(found[0] - figure) <= 2 * spread
    return "" if agrees else f"{100 * found[0]:.2f} %, published {100 * figure:.2f} ± {100 * spread:.2f} %"


def _weaker(cell: Cell, unit: str) -> bool:
    return cell.claimed is not None and UNITS.index(cell.unit or unit) < UNITS.index(unit)


def _means(cells: Sequence[Cell]) -> Means:
    """Mean, spread and count by method and ε."""
    known = [cell for cell in cells if cell.value is not None]
    return {
        each.task[1:]: (*mean_and_sd([cell.value or 0 for cell in each.rows]), len(each.rows))
        for each in cells_of(known, ((cell.task, cell.method, cell.epsilon) for cell in known))
    }


def _best(task: str, cells: Sequence[Cell]) -> Iterator[str]:
    """Who is best at each ε, among private methods that protect the task's unit and are shown."""
    own = [cell for cell in cells if cell.task == task and cell.claimed is not None]
    if task == "canaries":
        caught = [cell for cell in own if cell.value is not None and cell.value > (cell.claimed or 0)]
        broken = sorted({title(cell.method) for cell in caught})
        yield f"audit: {'; '.join(broken) or 'no claim'} refuted by guesses of {len(own)} runs' canaries"
        return
    means = _means([cell for cell in own if not _weaker(cell, RECORD) and not hidden(cell.method, cells)])
    for at in sorted({epsilon for _, epsilon in means}):
        rivals = {name: mean for (name, epsilon), (mean, *_) in means.items() if epsilon == at}
        best = max(rivals, key=lambda name: rivals[name])
        ours = "" if best == "pate-fed" else f"; this package {_figure(rivals.get('pate-fed'))}"
        yield f"{TASKS[task][0]}, ε {at:g}: best {title(best)}, {_figure(rivals[best])}{ours}"


def _figure(value: float | None) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:.3f}"


def _part(grid: Grid, task: str, cells: Sequence[Cell]) -> dict[str, Any]:
    """A task's rules, picture and table, for the template."""
    made, _ = load_task(task, grid.data_dir)
    own = [cell for cell in cells if cell.task == task]
    means, shown = _means(own), [name for name in grid.methods if not hidden(name, cells)]
    rules = (
        f"{len(made.labels):,} private records at {made.parties} hospitals, a pool of {len(made.pool):,}, "
        f"{len(made.test):,} test. One {made.unit} is replaced, δ {made.delta:g}. May be looked at: "
        f"{made.look}. Measured: {made.measure}."
    )
    rows = []
    for each in cells_of(own, ((cell.task, cell.method, cell.epsilon) for cell in own)):
        mean, spread, count = means.get(each.task[1:], (np.nan, np.nan, 0))
        name, epsilon = title(each.task[1]), f"{each.task[2]:g}" if each.task[2] else "none"
        rows.append((name, epsilon, _figure(mean), _figure(spread), count, _remark(each.rows, made.unit)))
    picture = _picture(TASKS[task][0], made.measure, means, shown)
    return {
        "title": made.title,
        "texts": [rules, *_best(task, cells)],
        "measure": made.measure,
        "picture": picture,
        "header": _HEADER,
        "rows": rows,
    }


def _remark(cells: Sequence[Cell], unit: str) -> str:
    """What a reader must know of these seeds."""
    for cell in cells:
        if cell.status != DONE:
            return f"{cell.status}: {cell.reason}"
    if _weaker(cells[0], unit):
        return f"protects a {cells[0].unit} alone"
    return "" if cells[0].unit in (None, unit) else f"protects a whole {cells[0].unit}"


def _picture(name: str, measure: str, means: Means, shown: Sequence[str]) -> str:
    """A PNG in base64: each method's mean and spread by ε, a line where it has none."""

    def draw(axes: Any) -> None:
        for place, method in enumerate(shown):
            look = {"color": COLOURS[place % len(COLOURS)], "label": title(method)}
            points = sorted((epsilon, *mean) for (each, epsilon), mean in means.items() if each == method)
            if points and points[0][0] == 0:
                axes[0].axhline(points[0][1], ls=":", **look)
            elif points:
                x, y, spread, _ = zip(*points, strict=True)
                axes[0].errorbar(x, y, np.nan_to_num(spread), marker="o", **look)
        if measure == LEAK:
            axes[0].axline((0.1, 0.1), slope=1, color="#999999", lw=0.8)
        else:
            axes[0].set_xscale("log")

    picture = io.BytesIO()
    draw_panels(picture, [(name, "ε", measure)], draw, size=(7.5, 4.2))
    return base64.b64encode(picture.getvalue()).decode("ascii")

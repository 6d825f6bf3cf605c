"""Accuracy on Fashion-MNIST against a data-independent ε, for kinds of teachers and students, in one picture.

    pytest -m benchmark -s tests/benchmarks/test_frontier_benchmark.py

PATE_FED_BENCH_OUT (a folder of the test's own) keeps the rows, PATE_FED_BENCH_SEEDS (5) counts them; it takes
many hours, the first student's in the first, and goes on where it was stopped.

250 teachers of 240 images, no threshold, σ2 from the accounting of integer noise by outcome (Rényi, with the
improved conversion) at δ 1e-5. How many labels an ε buys was chosen on inputs 7,000 to 8,999 with students of
the first 7,000; students are tested on the last 1,000. Beside ours stand PATE++'s points (arXiv 2211.01628)
and central DP-SGD (Tramèr and Boneh, "Differentially private learning needs better features", ICLR 2021),
which needs all data in one place.

Teachers are the three kinds that 250 of can be trained on a CPU within an hour. PATE++'s own network,
deep-cnn, is not among them: 250 of it are hours of a GPU; `pate++-fashion-mnist --paper` has them.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from affordable import affordable_sigma2
from numpy.typing import NDArray

from pate_fed.data import Dataset
from pate_fed.format import delta_text
from pate_fed.learning import StudentSettings
from pate_fed.privacy import RECORD, GNMax, epsilon_of
from pate_fed.reproduce.columns import Cell, Column, cells_of, student_table
from pate_fed.reproduce.driver import Reproduction, Table, run_tables
from pate_fed.reproduce.measures import (
    StudentRow,
    draw_panels,
    release_labels,
    train_and_test,
)
from pate_fed.reproduce.votes import ensemble_size, inputs_of, teachers_totals
from pate_fed.runtime.workers import cores

DELTA = 1e-5
EPOCHS = 10  # of each stage of a student
LABELS = {0.5: 500, 1.0: 800, 2.0: 1000, 3.0: 1300, 4.05: 1500, 5.04: 2000, 6.0: 2200}
TEACHERS = ("small-cnn", "hog-linear", "encoder-head")
SLOW_EPSILONS = (4.05, 2.0, 5.04, 1.0, 0.5, 3.0, 6.0)  # in this order, for students that take a minute each
ON_PIXELS = ("supervised", "gan", "co-teaching", "pate+", "pate++", "vat")
SLOW_STUDENTS = (*ON_PIXELS, "fixmatch")
STYLES: dict[str, dict[str, Any]] = {
    "encoder-head": {"marker": "o", "color": "#1b6f8a", "linewidth": 2},
    "supervised": {"marker": "s", "color": "#9e9e9e"},
    "gan": {"marker": "D", "color": "#b5651d"},
    "co-teaching": {"marker": "^", "color": "#7a9a01"},
    "pate+": {"marker": "<", "color": "#d4a017"},
    "pate++": {"marker": "v", "color": "#8a1b5c"},
    "vat": {"marker": "p", "color": "#4b5fa8"},
    "fixmatch": {"marker": "h", "color": "#2e8b57"},
}
TICKS = (0, 20, 40, 50, 60, 70, 75, 80, 85, 88, 90)
OTHERS = {
    "PATE++, published": {4.05: 79.6, 5.04: 82.9},
    "central DP-SGD, ScatterNet": {3.0: 89.7},
    "central DP-SGD, CNN": {3.0: 86.0},
}


@dataclass(frozen=True, slots=True)
class FrontierRun(StudentRow):
    """One student."""

    teacher: str
    student: str
    epsilon: float
    seed: int
    _: KW_ONLY
    labels: int
    sigma2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(Reproduction):
    """A reproduction whose figures this benchmark makes."""

    name: str = "fashion-mnist-frontier"

    @property
    def command(self) -> str:
        return "pytest -m benchmark -s tests/benchmarks/test_frontier_benchmark.py"


@pytest.mark.benchmark
def test_accuracy_against_epsilon(shared: Path, tmp_path: Path) -> None:
    seeds = int(os.environ.get("PATE_FED_BENCH_SEEDS", "5"))
    out = Path(os.environ.get("PATE_FED_BENCH_OUT", tmp_path))
    plan = Bench(data_dir=shared / "data", out_dir=out, seeds=seeds, workers=cores())
    dataset = plan.load("fashion-mnist")
    totals = {
        each: teachers_totals(plan, dataset, out / f"totals-{each}.npz", teacher=each, log=print)
        for each in TEACHERS
    }
    table = Table(
        path=out / "frontier-runs.csv",
        row=FrontierRun,
        tasks=list(_tasks(seeds)),
        make=partial(_train, plan, dataset, totals),
        inputs={
            **inputs_of(plan, [dataset], {f"totals of {each}": found for each, found in totals.items()}),
            "charged": "outcome",
        },
        lines=_lines,
    )
    found = run_tables(plan, [table], text=out / "frontier.txt", log=print, show=partial(_show, plan))
    print("\n".join(found))
    assert len(found) > len(TEACHERS)


def _tasks(seeds: int) -> Iterator[tuple[str, str, float, int]]:
    """The quick student first, for all seeds; then the slow ones, seeds outermost."""
    for seed, teacher, epsilon in product(range(seeds), reversed(TEACHERS), LABELS):
        yield teacher, "encoder-head", epsilon, seed
    slow = product(range(seeds), SLOW_EPSILONS, reversed(TEACHERS), SLOW_STUDENTS)
    for seed, epsilon, teacher, student in slow:
        yield teacher, student, epsilon, seed


def _train(
    plan: Reproduction,
    dataset: Dataset,
    of_teachers: Mapping[str, NDArray[np.int64]],
    task: tuple[str, str, float, int],
) -> FrontierRun:
    teacher, student, epsilon, seed = task
    totals = of_teachers[teacher]
    labels = min(LABELS[epsilon], len(totals))
    sigma = _sigma2(labels, epsilon)
    mechanism = GNMax(**ensemble_size(totals), sigma=sigma)
    given = release_labels(mechanism, totals, seed=seed, labels=labels)
    network = "small-cnn" if student in ON_PIXELS else None
    settings = StudentSettings(name=student, network=network, epochs=EPOCHS)
    _, figures = train_and_test(plan, dataset, given.index, given.label, settings, seed=seed)
    return FrontierRun(*task, labels=labels, sigma2=sigma, **figures)


def _sigma2(labels: int, epsilon: float) -> float:
    """The least σ2, to 0.1 votes, at which so many labels cost ε, charged by outcome as a ledger does."""

    def fits(tenths: int) -> bool:
        mechanism = GNMax(num_teachers=1, num_classes=2, sigma=tenths / 10)
        return epsilon_of(mechanism.cost_asked(RECORD) * labels, DELTA) <= epsilon

    high = round(10 * affordable_sigma2(labels, epsilon=epsilon, delta=DELTA))
    low = max(10, high // 2)  # an outcome reveals 2/π of the totals at the least
    return bisect_left(range(high), True, lo=low + 1, key=fits) / 10


def _cells(rows: list[FrontierRun]) -> list[Cell[FrontierRun]]:
    return cells_of(rows, product(TEACHERS, ("encoder-head", *SLOW_STUDENTS), sorted(LABELS)))


def _lines(rows: list[FrontierRun]) -> Iterator[str]:
    columns = (
        Column("teacher", lambda cell: cell.task[0]),
        Column("student", lambda cell: cell.task[1]),
        Column("ε", lambda cell: cell.task[2], "g"),
        Column("labels", lambda cell: cell.rows[0].labels, "d"),
        Column("σ2", lambda cell: cell.rows[0].sigma2, ".1f"),
    )
    yield from student_table(columns, _cells(rows), pairs=True)
    for name, figures in OTHERS.items():
        yield f"{name}: " + ", ".join(f"{value:.1f} % at ε {epsilon:g}" for epsilon, value in figures.items())
    at = delta_text(DELTA)
    yield f"ε is data-independent, at δ {at}; not private: seeded noise, on a public data set"


def _show(plan: Reproduction, rows: list[FrontierRun]) -> None:
    """A panel for each kind of teacher, on one scale, with what others published in each."""
    cells = _cells(rows)
    teachers = [teacher for teacher in TEACHERS if any(cell.task[0] == teacher for cell in cells)]
    across, up = "data-independent ε at δ 1e-5", "accuracy on the last 1,000 test images, %"
    draw_panels(
        plan.out_dir / "frontier.png",
        [(f"teachers {teacher}", across, "" if place else up) for place, teacher in enumerate(teachers)],
        lambda panels: _draw(dict(zip(teachers, panels, strict=True)), cells),
        size=(4.0, 5.2),
    )


def plot_curves(
    axes: Any,
    cells: Iterable[Cell[Any]],
    curve: Callable[[Cell[Any]], str],
    x: Callable[[Cell[Any]], float],
    *,
    styles: Mapping[str, Mapping[str, Any]],
) -> None:
    """A line for each `curve` through its cells' accuracies in %, with their standard deviation as bars."""
    curves: dict[str, list[Cell[Any]]] = {}
    for cell in cells:
        curves.setdefault(curve(cell), []).append(cell)
    base: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 2, "linewidth": 0.9}
    for name, found in curves.items():
        means, spreads = zip(*(cell.percent() for cell in found), strict=True)
        style = base | {"label": name} | dict(styles[name])
        axes.errorbar([x(cell) for cell in found], means, yerr=np.nan_to_num(spreads), **style)


def _draw(panels: dict[str, Any], cells: list[Cell[FrontierRun]]) -> None:
    for teacher, axes in panels.items():
        mine = [cell for cell in cells if cell.task[0] == teacher]
        plot_curves(axes, mine, lambda cell: cell.task[1], lambda cell: cell.task[2], styles=STYLES)
    lowest = min((cell.percent()[0] for cell in cells), default=70.0)
    for axes in panels.values():
        for (name, figures), mark in zip(OTHERS.items(), ("*", "P", "X"), strict=True):
            there = list(figures), list(figures.values())
            axes.plot(*there, mark, color="#333333", markersize=8, label=name, zorder=3)
        axes.set_xlim(0, 6.3)
        # Even steps are equal factors of the error, or all that is good would lie on one line.
        axes.set_yscale("function", functions=(_by_error, _of_error))
        axes.set_ylim(max(0.0, lowest - 3), 92)
        axes.set_yticks([tick for tick in TICKS if tick > lowest - 3])
    # One legend below all panels, where it hides no point.
    whole = max((axes.get_legend_handles_labels() for axes in panels.values()), key=lambda each: len(each[0]))
    next(iter(panels.values())).figure.legend(*whole, fontsize=7, ncols=4, loc="outside lower center")


def _by_error(accuracy: Any) -> Any:
    return -np.log(100 - np.minimum(accuracy, 99.9))


def _of_error(height: Any) -> Any:
    return 100 - np.exp(-height)

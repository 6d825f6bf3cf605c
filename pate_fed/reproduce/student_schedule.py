"""What the default student could be instead, one choice at a time, judged on inputs that are not the test's.

The labels are those of `default_student`, of inputs among the first 7,000 of the pool; students learn from
these inputs and are judged on inputs 7,000 to 8,999. The pool's last 1,000 inputs, on which studies test, are
not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset
from pate_fed.learning import StudentSettings
from pate_fed.reproduce.columns import Cell, Column, cells_of, text_table
from pate_fed.reproduce.default_student import DATASETS, labels_of, tables_of
from pate_fed.reproduce.driver import Log, Reproduction, run_tables
from pate_fed.reproduce.measures import StudentRow, train_and_test

ASKED_OF = 7000


@dataclass(frozen=True, slots=True)
class Variant:
    """Settings of the student, and parts of its loop (names in `students/gan.py`), that are otherwise."""

    settings: dict[str, Any] = field(default_factory=dict)
    loop: dict[str, Any] = field(default_factory=dict)


def _as_they_come(labels: Any, batches: Any) -> Any:
    return batches


VARIANTS: dict[str, Variant] = {
    "as it is": Variant(),
    "5 epochs": Variant({"epochs": 5}),
    "20 epochs": Variant({"epochs": 20}),
    "all labels kept": Variant({"noise_rate": 0.0}),
    "dropout 0.1": Variant({"dropout": 0.1}),
    "dropout 0.5": Variant({"dropout": 0.5}),
    "last weights, no opinions": Variant({"ema_decay": 0.0}),
    "batches as they come": Variant(loop={"balanced": _as_they_come}),
    "opinions of the peer alone": Variant(loop={"HEAD": 0.0}),
    "opinions of the head alone": Variant(loop={"HEAD": 1.0}),
    "the head itself": Variant({"name": "encoder-head"}),
}


@dataclass(frozen=True, slots=True)
class ScheduledStudent(StudentRow):
    """One student."""

    dataset: str
    variant: str
    seed: int
    _: KW_ONLY


def reproduce_student_schedule(plan: Reproduction, log: Log) -> list[str]:
    """Train the students and write student-schedule.txt."""
    tables = tables_of(plan, log, DATASETS, VARIANTS, row=ScheduledStudent, make=_train, lines=_lines)
    return run_tables(plan, tables, text=plan.out_dir / "student-schedule.txt", log=log)


def _train(
    plan: Reproduction, dataset: Dataset, totals: NDArray[np.int64], task: tuple[str, str, int]
) -> ScheduledStudent:
    _, name, seed = task
    variant, given = VARIANTS[name], labels_of(totals[:ASKED_OF], seed)
    settings, part = StudentSettings(**variant.settings), slice(ASKED_OF, dataset.num_queries)
    with _loop(variant.loop):
        _, figures = train_and_test(plan, dataset, given.index, given.label, settings, seed=seed, tested=part)
    return ScheduledStudent(*task, **figures)


@contextmanager
def _loop(otherwise: dict[str, Any]) -> Iterator[None]:
    """The student's loop with parts of it otherwise; processes train one student at a time."""
    from pate_fed.learning.students import gan

    before = {name: getattr(gan, name) for name in otherwise}
    try:
        for name, value in otherwise.items():
            setattr(gan, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(gan, name, value)


def _lines(rows: list[ScheduledStudent]) -> Iterator[str]:
    def worst(cell: Cell[ScheduledStudent]) -> float:
        return 100 * min(row.accuracy for row in cell.rows)

    columns: list[tuple[str, Callable[[Cell[ScheduledStudent]], Any], str]] = [
        ("data", lambda cell: cell.task[0], ""),
        ("student", lambda cell: cell.task[1], ""),
        ("right, %", lambda cell: cell.percent()[0], ".1f"),
        ("± sd", lambda cell: cell.percent()[1], ".1f"),
        ("worst, %", worst, ".1f"),
        ("seeds", lambda cell: len(cell.rows), "d"),
    ]
    order = [(name, variant) for name in DATASETS for variant in VARIANTS]
    yield from text_table([Column(*each) for each in columns], cells_of(rows, order))

"""Rows of a table and how they are made, apart from any test: a worker process imports this and no more."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True, slots=True)
class Row:
    student: str
    beta: float | None
    seed: int
    _: KW_ONLY
    accuracy: float


def make_row(task: tuple[str, float | None, int]) -> Row:
    """The task's row: right half of the time, and a quarter more with each seed."""
    return Row(*task, accuracy=0.5 + task[2] / 4)

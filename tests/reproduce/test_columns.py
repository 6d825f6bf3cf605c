"""Cells, their means, and tables of columns."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import pytest

from pate_fed.reproduce.columns import (
    EPSILON,
    Cell,
    Column,
    cells_of,
    mean_and_sd,
    student_table,
    text_table,
)


@dataclass(frozen=True, slots=True)
class Row:
    student: str
    seed: int
    _: KW_ONLY
    accuracy: float
    accuracy_single: float
    labels_wrong: float = 0.2
    kept: float | None = None


ROWS = [
    Row("pate+", 0, accuracy=0.8, accuracy_single=0.7, kept=0.5),
    Row("gan", 0, accuracy=0.6, accuracy_single=0.6),
    Row("pate+", 1, accuracy=0.9, accuracy_single=0.8),
]


def test_spreads_are_over_the_sample() -> None:
    assert mean_and_sd([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    mean, spread = mean_and_sd([4.0])
    assert mean == 4.0 and math.isnan(spread)


def test_cells_have_all_seeds_in_the_order_that_is_asked_for() -> None:
    cells = cells_of(ROWS, [("gan",), ("pate+",), ("vat",), ("gan",)])
    assert [(cell.task, len(cell.rows)) for cell in cells] == [(("gan",), 1), (("pate+",), 2)]
    assert cells[1].percent() == (pytest.approx(85.0), pytest.approx(50**0.5))
    assert cells[1].mean("accuracy_single") == pytest.approx(0.75)
    assert cells[1].percent("kept")[0] == 50.0 and math.isnan(cells[0].percent("kept")[0])
    assert cells_of([], [("gan",)]) == []


def test_a_table_shows_one_network_beside_two() -> None:
    cells = cells_of(ROWS, [("gan",), ("pate+",)])
    columns = (Column("student", lambda cell: cell.task[0]),)
    *lines, note = student_table(columns, cells, pairs=True)
    assert lines == [
        "student  ours, %  ± sd  single, %  seeds  wrong, %",
        "gan         60.0     -       60.0      1      20.0",
        "pate+       85.0   7.1       75.0      2      20.0",
    ]
    assert note.startswith("single: one network alone")
    assert [line.split()[0] for line in student_table(columns, cells)] == ["student", "gan", "pate+"]


def test_what_is_not_known_is_a_dash() -> None:
    column = Column("x", lambda cell: cell.task[0], ".1f")
    lines = text_table((column,), [Cell((None,), []), Cell((math.nan,), []), Cell((2.0,), [])])
    assert [line.strip() for line in lines] == ["x", "-", "-", "2.0"]


def test_an_epsilon_is_never_shown_smaller_than_it_is() -> None:
    column = Column("ε", lambda cell: cell.task[0], EPSILON)
    lines = text_table((column,), [Cell((1.2341,), []), Cell((None,), []), Cell((3.0,), [])])
    assert [line.strip() for line in lines] == ["ε", "1.235", "-", "3"]

"""Rows of a reproduction on disk, and side by side: seeds of a task as a cell, cells as lines of a table."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from pate_fed.disk import write_result
from pate_fed.errors import InputError
from pate_fed.format import epsilon_text
from pate_fed.structure import from_plain

# Rows of a CSV file that are frozen dataclasses: appended one by one, so that a stopped call can go on.
#
# Beside the rows lies NAME-inputs.json with the digests of what they were made from: a call with other
# inputs is refused instead of showing rows that are not its own.


Row = TypeVar("Row")


def task_of(row: Any) -> tuple[Any, ...]:
    """What tells a row apart: its positional fields."""
    return tuple(getattr(row, name) for name in row.__match_args__)


def read_rows(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of an earlier call; nothing where there is none. An empty entry is None."""
    if not path.exists():
        return []
    wrong = "not the rows that this command writes; remove it to start again"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [from_plain(kind, row, where=str(path), text=True) for row in csv.DictReader(file)]
    except (InputError, ValueError) as error:
        raise InputError(f"{path}: {wrong}") from error


def append_row(path: Path, row: Any) -> None:
    """Add one row, and the head to a new file; on disk when this returns."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        names = dict.fromkeys([*row.__match_args__, *asdict(row)])  # the task first
        writer = csv.DictWriter(file, list(names))
        if new:
            writer.writeheader()
        writer.writerow(asdict(row))
        file.flush()
        os.fsync(file.fileno())


def bind_rows(path: Path, inputs: Mapping[str, str]) -> None:
    """Hold the rows at `path` to `inputs`, what they are made from by name; call it before a row is shown.

    Where there are no rows yet, `inputs` are kept beside from now on.
    """
    beside = path.with_name(f"{path.stem}-inputs.json")
    if path.exists():
        known = _inputs(beside)
        for name, value in inputs.items():
            if known.get(name) != value:
                raise InputError(
                    f"{path}: its rows were made from other {name} ({known.get(name, 'unknown')[:12]}, this "
                    f"call's are {value[:12]}); give another --run-dir, or the same {name} again"
                )
    whole = json.dumps(dict(inputs), indent=1, ensure_ascii=False) + "\n"
    write_result(beside, whole.encode())


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The digests of what rows were made from, by name."""

    digests: Mapping[str, str]


def _inputs(path: Path) -> Mapping[str, str]:
    try:
        return from_plain(_Inputs, {"digests": json.loads(path.read_bytes())}, where="").digests
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: cannot be read as what rows were made from; give another --run-dir"
        ) from error


EPSILON = "ε"


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; of one value alone the deviation is not known: nan."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return float(np.mean(values)), spread


@dataclass(frozen=True, slots=True)
class Cell(Generic[Row]):
    """A task but for its seed, and its rows, one a seed."""

    task: tuple[Any, ...]
    rows: list[Row]

    def mean(self, name: str) -> float:
        """Mean of a field."""
        return float(np.mean([getattr(row, name) for row in self.rows]))

    def percent(self, name: str = "accuracy") -> tuple[float, float]:
        """Mean and standard deviation, in %, of a field that is a share; unknown values are left out."""
        values = [100 * value for row in self.rows if (value := getattr(row, name)) is not None]
        return mean_and_sd(values) if values else (float("nan"), float("nan"))

    def text(self, name: str = "accuracy") -> str:
        """The same as a text; "-" where nothing is known."""
        mean, spread = (f"{value:.1f}" for value in self.percent(name))
        return "-" if mean == "nan" else mean if spread == "nan" else f"{mean} ± {spread}"


def cells_of(rows: Iterable[Row], order: Iterable[tuple[Any, ...]]) -> list[Cell[Row]]:
    """Cells that have rows, in the order of their tasks without the seed (a repeated one counts once)."""
    named = list(dict.fromkeys(order))
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(task_of(row)[: len(named[0])], []).append(row)
    return [Cell(task, found[task]) for task in named if task in found]


@dataclass(frozen=True, slots=True)
class Column:
    """A column's head, its value in a cell, and how that is formatted; None and nan are shown as "-".

    `EPSILON` formats as `pate_fed.format` does, never down.
    """

    head: str
    of: Callable[[Cell[Any]], Any]
    form: str = ""


def text_table(columns: Sequence[Column], cells: Iterable[Cell[Any]]) -> Iterator[str]:
    """The head and a line for each cell; text to the left, numbers to the right."""
    body = [[_shown(column.of(cell), column.form) for column in columns] for cell in cells]
    lines = [[column.head for column in columns], *body]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligns = [">" if column.form else "<" for column in columns]
    for line in lines:
        parts = zip(line, aligns, widths, strict=True)
        yield "  ".join(f"{text:{align}{width}}" for text, align, width in parts).rstrip()


def _shown(value: Any, form: str) -> str:
    unknown = value is None or (isinstance(value, float) and math.isnan(value))
    if unknown:
        return "-"
    return epsilon_text(value) if form == EPSILON else format(value, form)


_WRONG = Column("wrong, %", lambda cell: cell.percent("labels_wrong")[0], ".1f")
_SINGLE = Column("single, %", lambda cell: cell.percent("accuracy_single")[0], ".1f")
_OURS = Column("ours, %", lambda cell: cell.percent()[0], ".1f")
_SPREAD = Column("± sd", lambda cell: cell.percent()[1], ".1f")
_SEEDS = Column("seeds", lambda cell: len(cell.rows), "d")
ACCURACY = (_OURS, _SPREAD, _SEEDS)
_SINGLE_NOTE = (
    "single: one network alone, to compare like with like; co-teaching, pate+ and pate++ are two that answer "
    "together (single is the mean of both), every other student is one"
)


def student_table(
    before: Sequence[Column], cells: Iterable[Cell[Any]], *, after: Sequence[Column] = (), pairs: bool = False
) -> Iterator[str]:
    """A table of students, their labels and their accuracy; `pairs` where some are of two networks."""
    accuracy = (_OURS, _SPREAD, _SINGLE, _SEEDS) if pairs else ACCURACY
    yield from text_table((*before, *accuracy, _WRONG, *after), cells)
    if pairs:
        yield _SINGLE_NOTE

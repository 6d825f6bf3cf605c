"""A table's schema: its label, its classes and its columns, and the way from text to numbers.

The schema is part of a study's terms, so that every hospital encodes its records as the public pool is. A
number is one feature, NaN where it is missing; a category is one feature a value, all 0 where it is missing.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.structure import check, refusal, setting

__all__ = ["Rows", "Schema", "read_table"]

MISSING = frozenset({"", "?", "NA", "N/A", "nan", "NaN", "NULL", "null"})
UNLABELLED = -1
MOST_TEXT = 1000  # characters of a name or a value


def _pairs(columns: Any) -> Any:
    """Columns as pairs, where they are a table (name = "number" or a list of values) too."""
    if isinstance(columns, Mapping):
        columns = list(columns.items())
    if not isinstance(columns, list):
        return columns
    return [
        (pair[0], () if pair[1] == "number" else pair[1])
        if isinstance(pair, list | tuple) and len(pair) == 2
        else pair
        for pair in columns
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What a table's columns mean.

    `columns` are (name, values): no values for a number, the allowed values for a category; in a file they
    may be a table too, name = "number" or a list of values. `patient` names the column whose equal values
    belong to one patient; it is never a feature.

    Raises:
        InputError: names twice, too few classes, or no column.
    """

    label: str = setting(allowed="the name of a column", most=MOST_TEXT)
    classes: tuple[str, ...] = setting(most=MOST_TEXT)
    columns: tuple[tuple[str, tuple[str, ...]], ...] = setting(
        read=_pairs, most=MOST_TEXT, allowed='name = "number" or a list of values, for each column,'
    )
    patient: str | None = setting(None, allowed="the name of a column", most=MOST_TEXT)

    def __post_init__(self) -> None:
        check(self)
        names = [name for name, _ in self.columns] + [self.label]
        names += [self.patient] if self.patient is not None else []
        for name in names:
            if names.count(name) > 1:
                raise refusal(self, "columns", f"the column {name!r} is named more than once")
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise refusal(self, "classes", "two or more are meant, each once")
        if not self.columns:
            raise refusal(self, "columns", "at least one is meant")

    @property
    def num_features(self) -> int:
        """Numbers a row becomes."""
        return sum(max(1, len(values)) for _, values in self.columns)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rows:
    """Records: a table's rows as numbers, or images.

    Shapes: inputs float64 (n, features) or uint8 (n, height, width, channels), labels int64 (n,), -1 where a
    record has none, patients int64 (n,): equal for records of one patient.
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    patients: NDArray[np.int64]


def read_table(path: Path, schema: Schema, *, labelled: bool) -> Rows:
    """A CSV file with a header, encoded by the schema; columns that the schema does not name are left alone.

    With `labelled` every row must have a label; else it may be missing (a public pool).

    Raises:
        InputError: the file cannot be read, lacks a column, or a value is not what the schema says; the error
            names file, row and column, and what would be right.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            return _read(path, csv.reader(file), schema, labelled=labelled)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file in UTF-8 ({error})") from error


def _read(path: Path, reader: Any, schema: Schema, *, labelled: bool) -> Rows:
    header = [name.strip() for name in next(reader, [])]
    places = _places(path, header, schema, labelled=labelled)
    encoders = [(name, places[name], _values(values)) for name, values in schema.columns]
    classes = {name: number for number, name in enumerate(schema.classes)}
    inputs: list[list[float]] = []
    labels: list[int] = []
    patients: list[str] = []
    for number, cells in enumerate(reader, start=2):  # as a spreadsheet counts: the header is row 1
        if not cells:
            continue
        if len(cells) != len(header):
            raise InputError(f"{path} row {number}: {len(cells)} values for {len(header)} columns")
        where = f"{path} row {number}, column"
        inputs.append([value for entry in encoders for value in _encode(entry, cells, where)])
        text = cells[places[schema.label]].strip() if schema.label in places else ""
        labels.append(_label(text, classes, f"{where} {schema.label}", labelled=labelled))
        if schema.patient in places:
            patients.append(cells[places[schema.patient]].strip())
    if not inputs:
        raise InputError(f"{path}: holds no rows under its header")
    # Numbered by name: in the order of their rows, a patient's number would follow from others' rows.
    owners = np.unique(patients, return_inverse=True)[1] if patients else np.arange(len(inputs))
    return Rows(np.array(inputs), np.array(labels, dtype=np.int64), owners.astype(np.int64))


def _places(path: Path, header: list[str], schema: Schema, *, labelled: bool) -> dict[str, int]:
    needed = [name for name, _ in schema.columns]
    if labelled:
        needed += [schema.label] + ([schema.patient] if schema.patient else [])
    for name in needed:
        if name not in header:
            raise InputError(
                f"{path} row 1: the study's column {name!r} is missing{_why_missing(name, header)}"
            )
    if not labelled and schema.label not in header:
        # A pool may be without labels; one with almost that column was meant to have them.
        others = [name for name in header if name not in {*needed, schema.patient}]
        if hint := _meant(schema.label, others, "there is {}, which looks like it", cutoff=0.8):
            raise InputError(f"{path} row 1: the study's label {schema.label!r} is missing{hint}")
    for name in {*needed, schema.label}:
        if header.count(name) > 1:
            raise InputError(f"{path} row 1: the column {name!r} is there twice")
    return {name: place for place, name in enumerate(header)}


def _why_missing(name: str, header: list[str]) -> str:
    """What the header looks like instead: another separator, a line before it, or another spelling."""
    if not any(header):
        return "; the file begins with an empty row, and a header is meant"
    line = "".join(header)
    other = next((mark for mark in (";", "\t", "|") if mark in line), None)
    if len(header) == 1 and other is not None:
        return f"; values are separated by {other!r}, and commas are meant"
    if line.lower().startswith("sep="):
        return "; the header must be the first row, without a line sep= before it"
    return _meant(name, header, "there is {}")


def _meant(text: str, known: Iterable[str], words: str, *, cutoff: float = 0.6) -> str:
    """The nearest known name, whatever its case; nothing where none is near."""
    spelt = {each.lower(): each for each in known}
    near = get_close_matches(text.lower(), spelt, n=1, cutoff=cutoff)
    return f"; {words.format(repr(spelt[near[0]]))}" if near else ""


def _values(values: tuple[str, ...]) -> Mapping[str, int]:
    return {value: number for number, value in enumerate(values)}


def _encode(entry: tuple[str, int, Mapping[str, int]], cells: list[str], where: str) -> list[float]:
    name, place, values = entry
    text = cells[place].strip()
    if values:
        if text not in values and text not in MISSING:
            hint = _meant(text, values, "did you mean {}?")
            raise InputError(f"{where} {name}: {_shown(text)} is none of {', '.join(values)}{hint}")
        chosen = values.get(text)
        return [float(number == chosen) for number in range(len(values))]
    if text in MISSING:
        return [math.nan]
    try:
        number = float(text)
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{where} {name}: {_shown(text)} is not a finite number")
    return [number]


def _label(text: str, classes: Mapping[str, int], where: str, *, labelled: bool) -> int:
    if text in classes:
        return classes[text]
    if text in MISSING and not labelled:
        return UNLABELLED
    if text in MISSING:
        raise InputError(f"{where}: the label is missing; one of {', '.join(classes)} is meant in every row")
    hint = _meant(text, classes, "did you mean {}?")
    raise InputError(f"{where}: {_shown(text)} is none of the classes {', '.join(classes)}{hint}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")

"""Records of a CSV file, encoded by a study's schema.

Errors name row, column and what would be right, never what stands there: they are kept in logs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.csv_file import CsvFile
from pate_fed.data.partition import patient_numbers
from pate_fed.data.schema import Schema, is_missing_word, number_in
from pate_fed.errors import InputError

UNLABELLED = -1
LARGEST = float(np.finfo(np.float32).max)  # teachers compute in 32 bits


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rows:
    """Records: a table's rows as numbers, or images.

    Shapes: inputs float64 (n, features) or uint8 (n, height, width, channels), labels int64 (n,), -1 where a
    record has none, patients int64 (n,): equal for records of one patient, where they are `named`; else each
    record is one of its own. `read_as` says how a file was written, where it is told ("semicolons, decimal
    commas").
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    patients: NDArray[np.int64]
    read_as: str = ""
    named: bool = False


def read_table(path: Path, schema: Schema, *, labelled: bool, decimal: str | None = None) -> Rows:
    """A CSV file with a header, encoded by the schema; columns that the schema does not name are left alone.

    With `labelled` every row must have a label and, where the schema has patients, name one; else both may be
    missing (a public pool). `decimal` says how this file writes numbers (`csv_file.POINT`, `COMMA`); None: as
    can be told from it.

    Raises:
        InputError: the file cannot be read, lacks a column, or a value is not what the schema says; the error
            names file, row and column, and what would be right.
    """
    file, schema = CsvFile(path, decimal=decimal), schema.in_one_form()
    places = _places(path, file.header, schema, labelled=labelled)
    reader = _RowReader(file, schema, places, labelled=labelled)
    for number, cells in file.rows():
        if len(cells) != len(file.header):
            raise InputError(f"{path} row {number}: {len(cells)} values for {len(file.header)} columns")
        reader.add(number, cells)
    return reader.rows()


def _places(path: Path, header: list[str], schema: Schema, *, labelled: bool) -> dict[str, int]:
    needed = [name for name, _ in schema.columns]
    if labelled:
        needed += [schema.label] + ([schema.patient] if schema.patient else [])
    if _looks_like_data(header, schema, needed):
        raise InputError(
            f"{path} row 1: looks like data; a header is meant there, with the study's columns "
            f"{', '.join(needed)}"
        )
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


def _looks_like_data(header: list[str], schema: Schema, needed: list[str]) -> bool:
    """Whether the first line names no column and half of it could be values."""
    values = {value for _, values in schema.columns for value in values} | set(schema.classes)
    values |= {"?"}
    like = sum(number_in(text) is not None or text in values for text in header)
    return bool(like) and 2 * like >= len(header) and not set(needed) & set(header)


def _why_missing(name: str, header: list[str]) -> str:
    """What the header looks like instead: an empty row, or another spelling."""
    if not any(header):
        return "; the file begins with an empty row, and a header is meant"
    return _meant(name, header, "there is {}")


def _meant(text: str, known: Iterable[str], words: str, *, cutoff: float = 0.6) -> str:
    """The nearest known name, whatever its case; nothing where none is near."""
    spelt = {each.lower(): each for each in known}
    near = get_close_matches(text.lower(), spelt, n=1, cutoff=cutoff)
    return f"; {words.format(repr(spelt[near[0]]))}" if near else ""


_YES_NO = (
    frozenset("yes y ja j oui sí si sì sim tak ano true wahr vrai verdadero vero".split()),
    frozenset("no n nein non não nao nie ne nee nej nei false falsch faux falso".split()),
)
_BITS = (("t", "1"), ("f", "0"))  # as databases write them; alone they may mean anything


class _Names:
    """The places of allowed values in their list; numbers are the same however they are written.

    Where one of them says yes and one says no, so does a word of another language.
    """

    def __init__(self, values: tuple[str, ...]) -> None:
        self.values = values
        self._exact = {value: place for place, value in enumerate(values)}
        said = [
            [place for place, value in enumerate(values) if value.casefold() in words] for words in _YES_NO
        ]
        self._words: dict[str, int] = {}
        if all(len(places) == 1 for places in said):
            for words, bits, [place] in zip(_YES_NO, _BITS, said, strict=True):
                self._words |= dict.fromkeys((*words, *bits), place)
        numbers = [number_in(value) for value in values]
        self._numbers: dict[float, int] = {
            number: place
            for place, number in enumerate(numbers)
            if number is not None and numbers.count(number) == 1
        }

    def find(self, text: str) -> int | None:
        """The place of a value: as it is written, or as a number (1.0 for 1); None where it is not there."""
        place = self._exact.get(text)
        if place is None:
            place = self._words.get(text.casefold())
        number = None if place is not None else number_in(text)
        return place if number is None else self._numbers.get(number)


class _RowReader:
    """Encodes a table's rows, one after the other; `places` are the columns' by name."""

    def __init__(self, file: CsvFile, schema: Schema, places: Mapping[str, int], *, labelled: bool) -> None:
        self.file, self.schema, self.places, self.labelled = file, schema, places, labelled
        self._columns = [(name, _Names(values)) for name, values in schema.columns]
        self._classes = _Names(schema.classes)
        self._inputs: list[list[float]] = []
        self._labels: list[int] = []
        self._patients: list[str] = []

    def add(self, number: int, cells: list[str]) -> None:
        """One more row.

        Raises:
            InputError: a value is not what the schema says.
        """
        where = f"{self.file.path} row {number}, column"
        features: list[float] = []
        for name, values in self._columns:
            place = self.places[name]
            text = cells[place] if values.values else self.file.number(cells[place], place, number)
            features += self._encode(text, values, f"{where} {name}")
        self._inputs.append(features)
        label, patient = self.schema.label, self.schema.patient
        text = cells[self.places[label]] if label in self.places else ""
        self._labels.append(self._label(text, f"{where} {label}"))
        if patient is not None and patient in self.places:
            self._patients.append(self._patient(cells[self.places[patient]], f"{where} {patient}"))

    def rows(self) -> Rows:
        """All rows.

        Raises:
            InputError: there are none.
        """
        if not self._inputs:
            raise InputError(f"{self.file.path}: holds no rows under its header")
        # Numbered by name alone: by their order, a patient's number would follow from others.
        named, labels = bool(self._patients), np.array(self._labels, dtype=np.int64)
        patients = patient_numbers(self._patients) if named else np.arange(len(labels), dtype=np.int64)
        return Rows(np.array(self._inputs), labels, patients, self.file.described(), named=named)

    def _encode(self, text: str, values: _Names, where: str) -> list[float]:
        if values.values:
            chosen = values.find(text)
            if chosen is None and not self.schema.lacks(text):
                hint = _meant(text, values.values, "did you mean {}?")
                raise InputError(f"{where} is none of {', '.join(values.values)}{hint}")
            return [float(place == chosen) for place in range(len(values.values))]
        if self.schema.lacks(text) or is_missing_word(text):
            return [math.nan]
        number = number_in(text)
        if number is None:
            missing = "a word for a missing value stands in the study's data.table.missing"
            raise InputError(f"{where} is not a finite number; {missing}")
        if abs(number) > LARGEST:
            raise InputError(f"{where} is too large: at most {LARGEST:.1e} is meant")
        return [number]

    def _label(self, text: str, where: str) -> int:
        place = self._classes.find(text)
        if place is not None:
            return place
        known = ", ".join(self.schema.classes)
        if not self.schema.lacks(text):
            hint = _meant(text, self.schema.classes, "did you mean {}?")
            raise InputError(f"{where} is none of the classes {known}{hint}")
        if self.labelled:
            raise InputError(f"{where}: the label is missing; one of {known} is meant in every row")
        return UNLABELLED

    def _patient(self, text: str, where: str) -> str:
        if not self.schema.lacks(text):
            return text
        # Rows without a patient would all become one patient's, who is then protected less than it seems.
        if self.labelled:
            raise InputError(
                f"{where}: the patient is missing; give every row one, of its own where it is not known"
            )
        return f"\n{where}"  # of its own: no patient's name begins so

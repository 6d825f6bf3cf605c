"""Records of a CSV file, encoded by a study's schema.

Errors name row, column and what would be right, never what stands there: they are kept in logs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.csv_file import MOST_KNOWN, CsvFile, in_chunks, plain_number, plain_numbers
from pate_fed.data.own_columns import OwnColumns
from pate_fed.data.partition import patient_numbers
from pate_fed.data.schema import Schema, is_missing_word, number_in
from pate_fed.errors import InputError

UNLABELLED = -1
LARGEST = float(np.finfo(np.float32).max)  # teachers compute in 32 bits


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rows:
    """Records: a table's rows as numbers, or images.

    Shapes: inputs float64 (n, features) or uint8 (n, height, width, channels), labels int64 (n,), -1 where a
    record has none, of numbers their places in the range (`Schema.target_place`), of several labels a bit for
    each, 1 for yes; patients int64 (n,): equal for records of one patient, where they are `named`; else each
    record is one of its own. `read_as` says how
    a file was written, where it is told ("semicolons, decimal commas"); `beyond` are those whose number is
    outside of the declared range: of private records for their hospital's terminal alone.
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    patients: NDArray[np.int64]
    read_as: str = ""
    named: bool = False
    beyond: int = field(default=0, repr=False)


def with_room(array: NDArray[Any], rows: int, *, axis: int = 0) -> NDArray[Any]:
    """An array of which so many rows can be written to: itself, or twice as large with what it holds."""
    had = array.shape[axis]
    if had >= rows:
        return array
    shape = list(array.shape)
    shape[axis] = max(rows, 2 * had)
    found = np.empty(shape, dtype=array.dtype)
    np.moveaxis(found, axis, 0)[:had] = np.moveaxis(array, axis, 0)
    return found


def read_table(
    path: Path,
    schema: Schema,
    *,
    labelled: bool,
    decimal: str | None = None,
    own: OwnColumns | None = None,
) -> Rows:
    """A CSV file with a header, encoded by the schema; columns that the schema does not name are left alone.

    With `labelled` every row must have a label and, where the schema has patients, name one; else both may be
    missing (a public pool). `decimal` says how this file writes numbers (`csv_file.POINT`, `COMMA`); None: as
    can be told from it. Without `own` the settings are those beside the file.

    Raises:
        InputError: the file cannot be read, lacks a column, or a value is not what the schema says; the error
            names file, row and column, and what would be right.
    """
    reader = TableReader(path, schema, decimal=decimal, own=own)
    reader.require_columns(labelled=labelled)
    for chunk in in_chunks(reader.records()):
        reader.add(chunk)
    return reader.rows()


def _looks_like_data(header: list[str], schema: Schema, needed: list[str]) -> bool:
    """Whether the first line names no column and half of it could be values."""
    values = {value for _, values in (*schema.columns, *schema.outcomes) for value in values} | {"?"}
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


def as_bits(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of several labels' values, int64 (labels, n), as a bit for each; -1 where a row lacks one."""
    bits = (found << np.arange(len(found))[:, None]).sum(axis=0)
    return np.where((found < 0).any(axis=0), UNLABELLED, bits)


YES_NO = (
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
            [place for place, value in enumerate(values) if value.casefold() in words] for words in YES_NO
        ]
        self._words: dict[str, int] = {}
        if all(len(places) == 1 for places in said):
            for words, bits, [place] in zip(YES_NO, _BITS, said, strict=True):
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


class ColumnReader:
    """Reads a column's texts: numbers, or the places of values in their list; NaN where one is missing."""

    def __init__(self, table: TableReader, name: str, values: tuple[str, ...]) -> None:
        self.name, self.values, self.place = name, values, table.places.get(name)
        own = table.own.of(name)
        self._table, self._own, self._factor = table, own.map, 1.0 if own.factor is None else own.factor
        self._names, self._known = _Names(values), dict[str, float]()
        numbers = (number_in(text) for text in table.schema.missing)
        self._alike = {number_in(text): meant for text, meant in self._own.items()}  # 999.0 is 999
        self._odd = {*numbers} | {*self._alike}  # numbers that are none, or another

    def read(self, text: str, row: int) -> float:
        """A value in the study's unit; InputError: it is not what the schema says."""
        if (known := self._known.get(text)) is None:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            known = self._known[text] = self._encode(text, row) if self.values else self._number(text, row)
        return known

    def read_all(self, texts: Sequence[str], rows: Sequence[int]) -> list[float] | NDArray[np.float64]:
        """Values of so many rows, as `read` has them."""
        found = list(map(self._known.get, texts))
        if None not in found:  # as in most chunks
            return cast(list[float], found)
        if (numbers := self._plain(texts)) is not None:  # as in those of numbers with many decimals
            return numbers
        return [
            self.read(texts[place], rows[place]) if known is None else known
            for place, known in enumerate(found)
        ]

    def _plain(self, texts: Sequence[str]) -> NDArray[np.float64] | None:
        """Plain numbers and empty cells; None where something else is among them."""
        if self.values or self._own:
            return None
        there = [bool(text) for text in texts]
        numbers = plain_numbers([text for text in texts if text], pointed=self._pointed)
        if numbers is None or not self._odd.isdisjoint(numbers):
            return None
        found = np.full(len(texts), math.nan)
        found[there] = np.array(numbers) * self._factor
        return found if np.abs(found[there]).max(initial=0.0) <= LARGEST else None

    @property
    def _pointed(self) -> bool:
        place, file = self.place, self._table.file
        return place is not None and place < len(file.header) and file.is_pointed(place)

    def _number(self, text: str, row: int) -> float:
        number = plain_number(text, pointed=self._pointed)
        if number is None or number in self._odd or abs(number * self._factor) > LARGEST:
            return self._encode(text, row)
        return number * self._factor

    def _encode(self, text: str, row: int) -> float:
        where, lacks = self._table.where(self.name, row), self._table.schema.lacks
        own = text in self._own
        text = self._own.get(text, text)
        if self.values:
            chosen = self._names.find(text)
            if chosen is None and not lacks(text):
                hint = _meant(text, self.values, "did you mean {}?")
                raise InputError(f"{where} is none of {', '.join(self.values)}{hint}")
            return math.nan if chosen is None else float(chosen)
        if self.place is not None and self.place < len(self._table.file.header):  # others' are plain already
            text = self._table.file.number(text, self.place, row)
        if not own and (number := number_in(text)) is not None:
            text = self._alike.get(number, text)
        if lacks(text) or is_missing_word(text):
            return math.nan
        number, label = number_in(text), self.name == self._table.schema.label
        if number is None:
            missing = "a word for a missing value stands in the study's data.table.missing"
            missing = "one is meant in every row" if label else missing
            raise InputError(f"{where} is not a finite number; {missing}")
        if abs(number * self._factor) > LARGEST and not label:  # beyond the range is its nearer end
            raise InputError(f"{where} is too large: at most {LARGEST:.1e} is meant")
        return number * self._factor


class TableReader:
    """Reads a hospital's table by a study's schema and the hospital's own settings for its file.

    Whatever reads such a table reads it through this. `places` are the columns' by the study's names,
    `left_out` the rows that `records` left out.

    Raises:
        InputError: the file, or the settings beside it, cannot be read.
    """

    def __init__(
        self, path: Path, schema: Schema, *, decimal: str | None = None, own: OwnColumns | None = None
    ) -> None:
        self.file, self.schema = CsvFile(path, decimal=decimal), schema.in_one_form()
        self.own = OwnColumns.beside(path, self.schema) if own is None else own
        self._decimal = decimal
        header, self._joined = (
            [*self.file.header],
            [self._by_patient(path.parent / f) for f in self.own.files],
        )
        for names, _ in self._joined:
            header += names
        self.header = self.own.named(path, header)
        self.places = {name: place for place, name in enumerate(self.header) if name}
        self.columns = [ColumnReader(self, name, values) for name, values in self.schema.columns]
        self._classes = {
            name: (_Names(values), self.own.of(name).map) for name, values in self.schema.outcomes
        }
        numeric = self.schema.target_range is not None
        self._targets = ColumnReader(self, self.schema.label, ()) if numeric else None
        self._beyond = 0  # targets outside of their range
        self._inputs, self._count = np.empty((0, self.schema.num_features)), 0
        self._labels, self._patients = np.empty((2, 0), dtype=np.int64)
        self._labelled, self.left_out = True, list[int]()

    def _by_patient(self, path: Path) -> tuple[list[str], dict[str, list[str]]]:
        """The columns of a further file but the patient's, and each patient's values in them."""
        file, name = CsvFile(path, decimal=self._decimal), self._patient_name
        if name not in file.header:
            hint = _why_missing(name, file.header)
            raise InputError(f"{path} row 1: no column {name!r}, by which it is joined{hint}")
        place, rows = file.header.index(name), dict[str, list[str]]()
        for (number, named), (_, cells) in zip(file.rows(), file.rows(plain=True), strict=True):
            if len(cells) != len(file.header):
                raise InputError(f"{path} row {number}: {len(cells)} values for {len(file.header)} columns")
            del cells[place]
            who = named[place]  # as it is written, as in the file that it is joined to
            if self.schema.lacks(who):
                continue  # nobody's: no row is given them
            if who in rows:
                raise InputError(
                    f"{path} row {number}, column {name}: a patient of an earlier row; one row a patient is "
                    "meant, and several are in the file that others are joined to"
                )
            rows[who] = cells
        return [each for each in file.header if each != name], rows

    @property
    def _patient_name(self) -> str:
        """What the file itself calls the patient's column."""
        patient = self.schema.patient or ""
        return self.own.of(patient).name or patient

    def records(self) -> Iterator[tuple[int, list[str]]]:
        """The file's rows with their numbers, each with its patient's values of further files.

        A row that has not as many values as columns is left as it is, or out.
        """
        if not (self.own.leave_out and self._labelled):
            yield from self._all_records()
            return
        self.left_out.clear()
        asked = [(self.places.get(name), self.own.of(name).map) for name in self._in_every_row]
        for number, cells in self._all_records():
            if len(cells) == len(self.header) and not any(
                place is not None and self.schema.lacks(codes.get(cells[place], cells[place]))
                for place, codes in asked
            ):
                yield number, cells
            else:
                self.left_out.append(number)

    def _all_records(self) -> Iterator[tuple[int, list[str]]]:
        if not self._joined:
            yield from self.file.rows()
            return
        width, name = len(self.file.header), self._patient_name
        place = self.file.header.index(name) if name in self.file.header else None
        for number, cells in self.file.rows():
            if len(cells) == width:
                who = None if place is None else cells[place]
                for names, rows in self._joined:
                    blank = [""] * len(names)
                    cells = cells + (blank if who is None else rows.get(who, blank))
            yield number, cells

    def where(self, name: str, row: int) -> str:
        """The place of a value, for errors."""
        return f"{self.file.path} row {row}, column {name}"

    def needed(self, *, labelled: bool) -> list[str]:
        """The columns that the file has to have, by the study's names."""
        own = self._in_every_row if labelled else []
        return [name for name, _ in self.schema.columns if not self.own.of(name).missing] + own

    @property
    def _in_every_row(self) -> list[str]:
        patient = [self.schema.patient] if self.schema.patient else []
        return [name for name, _ in self.schema.outcomes] + patient

    def require_columns(self, *, labelled: bool, lacking: bool = False) -> None:
        """Hold the header to the schema: each column there once, or with `lacking` not; else InputError."""
        self._labelled, needed = labelled, self.needed(labelled=labelled)
        path, header, schema = self.file.path, self.header, self.schema
        if _looks_like_data(header, schema, needed):
            raise InputError(
                f"{path} row 1: looks like data; a header is meant there, with the study's columns "
                f"{', '.join(needed)}"
            )
        if self._joined and not lacking and schema.patient not in header:
            raise InputError(f"{path} row 1: no column {self._patient_name!r}, by which others are joined")
        for name in needed:
            if name not in header and not lacking:
                raise InputError(
                    f"{path} row 1: the study's column {name!r} is missing{_why_missing(name, header)}"
                )
        labels = [name for name, _ in schema.outcomes]
        for label in labels if not labelled else ():
            # A pool may be without labels; one with almost that column was meant to have them.
            others = [name for name in header if name not in {*needed, *labels, schema.patient}]
            hint = _meant(label, others, "there is {}, which looks like it", cutoff=0.8)
            if label not in header and hint:
                raise InputError(f"{path} row 1: the study's label {label!r} is missing{hint}")
        for name in {*needed, *labels}:
            if header.count(name) > 1:
                raise InputError(f"{path} row 1: the column {name!r} is there twice")

    def add(self, rows: Sequence[tuple[int, list[str]]]) -> None:
        """More rows with their numbers.

        Raises:
            InputError: there are not as many values as columns, or one is not what the schema says: in the
                first row of which that is so.
        """
        try:
            self._add(rows)
        except InputError:
            for row in rows if len(rows) > 1 else ():
                self.add([row])
            raise

    def _add(self, rows: Sequence[tuple[int, list[str]]]) -> None:
        for number, cells in rows:
            if len(cells) != len(self.header):
                raise InputError(
                    f"{self.file.path} row {number}: {len(cells)} values for {len(self.header)} columns"
                )
        numbers, texts = [number for number, _ in rows], [*zip(*[cells for _, cells in rows], strict=True)]
        end, at = self._count + len(rows), 0
        self._inputs = with_room(self._inputs, end)
        self._labels, self._patients = with_room(self._labels, end), with_room(self._patients, end)
        part = self._inputs[self._count : end]
        for column in self.columns:
            own = np.full(len(rows), np.nan)
            if column.place is not None:
                own[:] = column.read_all(texts[column.place], numbers)
            width = max(1, len(column.values))
            part[:, at : at + width] = own[:, None] == np.arange(width) if column.values else own[:, None]
            at += width
        patient, found = self.places.get(self.schema.patient or ""), list[list[int]]()
        for name, _ in self.schema.outcomes:
            place = self.places.get(name)
            labels = [""] * len(rows) if place is None else texts[place]
            found.append(
                [self.label(text, number, name) for text, number in zip(labels, numbers, strict=True)]
            )
        self._labels[self._count : end] = found[0] if len(found) == 1 else as_bits(np.array(found))
        if patient is not None:
            names = [*map(self.patient, texts[patient], numbers)]
            self._patients[self._count : end] = patient_numbers(names)
        self._count = end

    def rows(self) -> Rows:
        """All rows; InputError: there are none."""
        if not self._count:
            raise InputError(f"{self.file.path}: holds no rows under its header")
        # Numbered by name alone: by their order, a patient's number would follow from others.
        named = self.schema.patient in self.places
        patients = self._patients[: self._count] if named else np.arange(self._count, dtype=np.int64)
        inputs, labels = self._inputs[: self._count], self._labels[: self._count]
        return Rows(inputs, labels, patients, self.described(), named=named, beyond=self._beyond)

    def described(self) -> str:
        """How the file is written and what its own settings change, in words; empty where nothing is odd."""
        return "; ".join(filter(None, (self.file.described(), self.own.described())))

    def target(self, text: str, row: int) -> float:
        """A row's number, where the label is one; NaN where it has none and needs none.

        Raises:
            InputError: it is no number.
        """
        assert self._targets is not None and self.schema.target_range is not None
        number, (low, high) = self._targets.read(text, row), self.schema.target_range
        if math.isnan(number) and self._labelled:
            meant = f"a number from {low:.15g} to {high:.15g} is meant in every row"
            raise InputError(f"{self.where(self.schema.label, row)}: the label is missing; {meant}")
        self._beyond += number < low or number > high
        return number

    def label(self, text: str, row: int, name: str | None = None) -> int:
        """The place of a row's class, or of its target; -1 where it has none and needs none.

        Of several labels that of `name`.

        Raises:
            InputError: it is none of the classes.
        """
        if self._targets is not None:
            number = self.target(text, row)
            return UNLABELLED if math.isnan(number) else self.schema.target_place(number)
        name = name or self.schema.label
        classes, own = self._classes[name]
        text = own.get(text, text)
        place = classes.find(text)
        if place is not None:
            return place
        known, where = ", ".join(classes.values), self.where(name, row)
        if not self.schema.lacks(text):
            hint = _meant(text, classes.values, "did you mean {}?")
            raise InputError(f"{where} is none of the classes {known}{hint}")
        if self._labelled:
            raise InputError(f"{where}: the label is missing; one of {known} is meant in every row")
        return UNLABELLED

    def patient(self, text: str, row: int) -> str:
        """What names a row's patient; InputError: nothing does, and something has to."""
        if not self.schema.lacks(text):
            return text
        where = self.where(self.schema.patient or "", row)
        # Rows without a patient would all become one patient's, who is then protected less than it seems.
        if self._labelled:
            raise InputError(
                f"{where}: the patient is missing; give every row one, of its own where it is not known"
            )
        return f"\n{where}"  # of its own: no patient's name begins so

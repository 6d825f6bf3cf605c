"""CSV files of hospitals: a schema inferred from them, and one file dealt out to try a study with."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pate_fed.data.csv_file import CsvFile, letters_of
from pate_fed.data.schema import MISSING, Schema, is_missing_word, number_in
from pate_fed.data.table import YES_NO
from pate_fed.disk import write_private
from pate_fed.errors import InputError, naming_refusal
from pate_fed.format import counted
from pate_fed.structure import nearest

MOST_VALUES = 20  # of a category, or of a label: more are names, dates or notes
_MOSTLY = 0.9
_ALL_DIFFERENT = 1000  # whole numbers, none of them twice: no measurement does that, a counter does
_NUMBERED = re.compile(r"(^|[_\W])(id|nbr|nr|no|num|number|key|index|uid|uuid)$|Id$|ID$")
_LABELS = ("label", "class", "target", "outcome", "diagnosis", "y")
# Names as `letters_of` writes them, the surest first: a patient may have several cases.
_NUMBER_WORDS = "(id|uid|ident|identifier|nr|nbr|no|num|nummer|number|key|code|schlussel|pseudonym)"
_PATIENTS = (
    re.compile(f"(patient|patienten|patientin|mrn|pid)s?{_NUMBER_WORDS}?|pat{_NUMBER_WORDS}"),
    re.compile(f"(subject|subjekt|proband|probanden){_NUMBER_WORDS}?|u?subjid|person{_NUMBER_WORDS}"),
    re.compile(f"(case|fall){_NUMBER_WORDS}"),  # alone a control's other, or a fall
)
_OFTEN = 500  # rows that a patient has on average: what repeats so is no patient
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\b.*|\d{1,2}[- ]?[A-Za-z]{3}[- ]?\d{4}\b.*")
_DAYS = 'written as "number" into the study, days since 1970-01-01 are read'


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """What would stand in a study's terms: a column's name, or a value of it in so many rows."""

    column: str
    value: str | None = None
    rows: int = 0

    def __str__(self) -> str:
        return self.column if self.value is None else f"{self.column}: {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredSchema:
    """A schema, the columns that are no part of it with the reason, and the rows of each file.

    `texts` are all that the schema took from the files: who writes it asks about them first.
    `perhaps_patients` are columns that may be the patient's where none was found; `cases` says that the
    patient's column numbers cases, by its name. `read_as` has a line for each file that is written otherwise
    than with commas, points and UTF-8.
    """

    schema: Schema
    left_out: tuple[tuple[str, str], ...]
    rows: tuple[int, ...]
    texts: tuple[Text, ...] = ()
    perhaps_patients: tuple[str, ...] = ()
    cases: bool = False
    read_as: tuple[str, ...] = ()


def infer_schema(
    paths: Sequence[Path],
    *,
    label: str | None = None,
    labels: Sequence[str] = (),
    patient: str | None = None,
    decimal: str | None = None,
    target_range: tuple[float, float] | None = None,
) -> InferredSchema:
    """The schema that all files fit.

    A column of numbers is a number, one of at most 20 texts a category; what has more texts, a date or a
    name, is left out, and so is a column that only counts the rows. Without `label` and `patient`
    their columns are found by the usual names. With a `target_range` the label is a number. `labels` are in
    place of one: columns of two values each.

    Raises:
        InputError: a file that cannot be read, other columns in one than in the first, or no column that
            could be the label.
    """
    files = [CsvFile(path, decimal=decimal) for path in paths]
    header, counts, rows = _count(files)
    if not labels and label is None:
        label = _label(paths[0], header, counts)
    taught = [*labels] or [label or ""]
    for name in taught:
        _named(paths[0], header, name, "--label")
    if patient is None:
        patient = _patient([name for name in header if name not in taught])
    else:
        _named(paths[0], header, patient, "--patient")
    words: set[str] | None = None
    if target_range is not None:
        words = _words(counts[taught[0]], partial(_place_of, files, taught[0]))
        if words is None:
            raise InputError(f"--target-range: {label} in {paths[0].name} holds texts; numbers are meant")
    outcomes = [(name, _values(counts[name]) if target_range is None else ()) for name in taught]
    for name, values in outcomes if target_range is None else ():
        if not 2 <= len(values) <= (MOST_VALUES if not labels else 2):
            meant = f"2 to {MOST_VALUES} classes are meant, or of a number --target-range LOW:HIGH"
            meant = "two are meant, for no and for yes, where labels are several" if labels else meant
            raise InputError(f"--label {name}: {counted(len(values), 'value')} in {paths[0].name}; {meant}")
    if labels:
        outcomes = [(name, no_first(values) or values) for name, values in outcomes]
    features = [name for name in header if name not in (*taught, patient)]
    columns, left_out, missing = _sorted_out(features, counts, files)
    if not columns:
        raise InputError(f"{paths[0]}: no column could teach anything: numbers or categories are meant")
    found = {value for _, values in (*columns, *outcomes) for value in values}
    schema = Schema(
        label="" if labels else taught[0],
        classes=() if labels else outcomes[0][1],
        labels=tuple(outcomes) if labels else (),
        columns=tuple(columns),
        patient=patient,
        missing=tuple(sorted((missing | (words or set())) - found)),
        target_range=target_range,
    )
    names = [name for name, _ in columns] + taught + ([] if patient is None else [patient])
    texts = [Text(column=name) for name in sorted(names, key=header.index)] + [
        Text(column=name, value=value, rows=counts[name][value])
        for name, values in [*outcomes, *columns]
        for value in values
    ]
    asked = [] if patient is not None else [name for name in header if name not in taught]
    return InferredSchema(
        schema=schema,
        left_out=tuple(left_out),
        rows=rows,
        texts=tuple(texts),
        perhaps_patients=tuple(name for name in asked if _may_name_patients(name, counts[name])),
        cases=patient is not None and _PATIENTS[-1].fullmatch(letters_of(patient)) is not None,
        read_as=tuple(f"{file.path} read as {told}" for file in files if (told := file.described())),
    )


def no_first(values: tuple[str, ...]) -> tuple[str, ...] | None:
    """Two values, the one that says no before the one that says yes; None where neither is known to."""
    if values in (("0", "1"), ("F", "T"), ("f", "t")):
        return values
    one, two = ([value.casefold() in words for words in YES_NO] for value in values)
    if one == two:
        return None
    return values[::-1] if one[0] or two[1] else values


def _sorted_out(
    features: Sequence[str], counts: dict[str, Counter[str]], files: Sequence[CsvFile]
) -> tuple[list[tuple[str, tuple[str, ...]]], list[tuple[str, str]], set[str]]:
    """Columns with their values, or none for numbers; columns left out, and why; texts for missing."""
    columns: list[tuple[str, tuple[str, ...]]] = []
    left_out: list[tuple[str, str]] = []
    missing: set[str] = set()
    for name in features:
        values = _values(counts[name])
        words = _words(counts[name], partial(_place_of, files, name))
        if _identifies(name, counts[name], files=len(files)):
            left_out.append((name, "has another whole number in each row: it numbers them"))
        elif words is not None:
            missing |= words
            columns.append((name, ()))
        elif not values:
            left_out.append((name, "has no value"))
        elif all(_DATE.fullmatch(value) for value in values):
            left_out.append((name, f"holds dates: {_DAYS}"))
        elif len(values) > MOST_VALUES:
            left_out.append((name, f"has {len(values)} texts: names or notes"))
        else:
            columns.append((name, values))
    return columns, left_out, missing


def _count(files: Sequence[CsvFile]) -> tuple[list[str], dict[str, Counter[str]], tuple[int, ...]]:
    """The header, each column's values with their counts over all files, and each file's rows."""
    first: list[str] = []
    counts: dict[str, Counter[str]] = {}
    rows = []
    for file in files:
        path, header = file.path, file.header
        if not header or not all(header) or len(set(header)) < len(header):
            raise InputError(f"{path} row 1: a header is meant, with every column's name once")
        if any(number_in(name) is not None for name in header):
            raise InputError(f"{path} row 1: looks like data; a header with the columns' names is meant")
        if not first:
            first, counts = header, {name: Counter() for name in header}
        elif set(header) != set(first):
            other = sorted(set(header) ^ set(first))
            raise InputError(f"{path} row 1: not the columns of {files[0].path}: {', '.join(other)} differ")
        found, number_of = file.counted()
        for name, texts in found.items():
            counts[name].update(texts)
        if not number_of:
            raise InputError(f"{path}: holds no rows under its header")
        rows.append(number_of)
    return first, counts, tuple(rows)


def _named(path: Path, header: list[str], name: str, option: str) -> str:
    if name not in header:
        raise InputError(f"{option} {name}: {path.name} has no such column{nearest(name, header)}")
    return name


def _patient(names: Sequence[str]) -> str | None:
    """The column that is a patient's by its name, the surest name first; None where there is none."""
    found = (name for usual in _PATIENTS for name in names if usual.fullmatch(letters_of(name)))
    return next(found, None)


def _may_name_patients(name: str, count: Counter[str]) -> bool:
    """Whether a column has many values, some of them twice: texts but dates, or numbers by its name."""
    known = {text: times for text, times in count.items() if text not in MISSING}
    if len(known) <= MOST_VALUES or max(known.values()) < 2 or sum(known.values()) > _OFTEN * len(known):
        return False
    if _words(count) is not None:
        return _NUMBERED.search(name) is not None and all(text.isdigit() for text in known)
    return not all(_DATE.fullmatch(text) for text in known)


def _label(path: Path, header: list[str], counts: dict[str, Counter[str]]) -> str:
    usual = [name for name in header if name.lower() in _LABELS]
    if len(usual) == 1:
        return usual[0]
    if 2 <= len(_values(counts[header[-1]])) <= MOST_VALUES and not usual:
        return header[-1]
    raise InputError(f"{path}: which column is the label? Give --label, one of {', '.join(header)}")


def _values(count: Counter[str]) -> tuple[str, ...]:
    """What is not missing: in the order of numbers, else of letters; numbers in their shortest form once."""
    kept: dict[float | str, str] = {}
    for text in count:
        if text in MISSING:
            continue
        number = number_in(text)
        key = text if number is None else number
        if key not in kept or (len(text), text) < (len(kept[key]), kept[key]):
            kept[key] = text
    return tuple(kept[key] for key in sorted(kept, key=lambda key: (isinstance(key, str), key)))


def _identifies(name: str, count: Counter[str], *, files: int) -> bool:
    """Whether a column holds another whole number in each row, by its name or by so many rows."""
    enough = 20 if _NUMBERED.search(name) else _ALL_DIFFERENT
    if len(count) < enough or max(count.values()) > files:  # each file may number its own
        return False
    return all(text.isascii() and text.isdigit() for text in count)


def _place_of(files: Sequence[CsvFile], name: str, text: str) -> str:
    """Where a column's text stands first."""
    places = (
        f"{file.path} row {number}, column {name}"
        for file in files
        for number, cells in file.rows(plain=True)
        if cells[file.header.index(name)] == text
    )
    return next(places)


def _words(count: Counter[str], place_of: Callable[[str], str] | None = None) -> set[str] | None:
    """The words for a missing value among a column's numbers; None where it holds texts."""
    texts = {text for text in count if text not in MISSING and number_in(text) is None}
    words = {text for text in texts if is_missing_word(text)}
    numbers = sum(times for text, times in count.items() if number_in(text) is not None)
    others = sum(count[text] for text in texts - words)
    if not numbers or numbers < _MOSTLY * (numbers + others):
        return None
    if place_of is not None:
        for text in count:  # the text itself may tell of a patient, and errors are kept in logs
            if text in texts - words:
                raise InputError(
                    f"{place_of(text)}: a text stands among numbers, and is no known word for a missing "
                    "value; write a number, or leave the cell empty"
                )
    return words


_PUBLIC = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """The parties' files and the pool's, and the numbers of the rows that are in none of them."""

    private: tuple[Path, ...]
    pool: Path
    left_out: tuple[int, ...]


def deal_csv(path: Path, folder: Path, *, parties: int, schema: Schema, decimal: str | None = None) -> Dealt:
    """Write a file for each party, and one of a random third as the public pool, in a new `folder`.

    They have the schema's columns alone, and numbers for patients. All rows of one patient, where the schema
    names these, go to one file. Parties have equally many of these. A row without its label or patient, which
    no party could use, goes to none.

    Raises:
        InputError: fewer rows or patients than files, a file that cannot be read, or a folder that is there.
    """
    file = CsvFile(path, decimal=decimal)
    header, rows = file.header, [*file.rows(plain=True)]
    units, left_out = _units(header, rows, schema)
    if not 0 < parties < len(units):
        known = counted(len(units), "row" if schema.patient is None else "patient")
        without = (
            "" if not left_out else f", {counted(len(left_out), 'row')} without label or patient left out"
        )
        if len(units) < 2:
            few = "two or more are meant, as one goes into the pool"
            raise InputError(f"--deal {parties}: {path} has {known}{without}; {few}")
        raise InputError(f"--deal {parties}: 1 to {len(units) - 1} is meant, of {known} in {path}{without}")
    order = [units[place] for place in np.random.default_rng(0).permutation(len(units))]
    public = max(1, min(round(_PUBLIC * len(units)), len(units) - parties))
    width = len(str(parties))
    private = [folder / f"party-{number:0{width}}.csv" for number in range(1, parties + 1)]
    with naming_refusal(f"{folder}: cannot be made", "; --deal writes its files there"):
        folder.mkdir(mode=0o700)
    pool = folder / "pool.csv"
    names = {schema.patient, *(name for name, _ in (*schema.columns, *schema.outcomes))}
    kept = [place for place, name in enumerate(header) if name in names]
    for written, part in [
        (pool, order[:public]),
        *((each, order[public + place :: parties]) for place, each in enumerate(private)),
    ]:
        text, table = io.StringIO(), [header, *(row for unit in part for row in unit)]
        csv.writer(text, lineterminator="\n").writerows([row[place] for place in kept] for row in table)
        write_private(written, text.getvalue().encode(), durable=False)
    return Dealt(private=tuple(private), pool=pool, left_out=tuple(left_out))


def _units(
    header: list[str], rows: list[tuple[int, list[str]]], schema: Schema
) -> tuple[list[list[list[str]]], list[int]]:
    """The rows of each patient, or each row, and the numbers of those that lack what a party's row needs."""
    key = None if schema.patient is None else header.index(schema.patient)
    needed = [header.index(name) for name, _ in schema.outcomes] + ([] if key is None else [key])
    units: dict[str, list[list[str]]] = {}
    left_out = []
    for number, cells in rows:
        if any(schema.lacks(cells[place]) for place in needed):
            left_out.append(number)
        else:
            units.setdefault(str(number) if key is None else cells[key], []).append(cells)
    for number, unit in enumerate(units.values() if key is not None else (), start=1):
        for cells in unit:
            cells[key or 0] = str(number)
    return list(units.values()), left_out

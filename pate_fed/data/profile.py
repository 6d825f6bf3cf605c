"""What a hospital's table holds, beside what its study and the public pool have: for its own terminal alone.

What does not fit is counted and named by row and column. No text of a cell stands in anything made here but
codes that are the study's own values written otherwise (m for male), which are proposed to be mapped.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.csv_file import in_chunks
from pate_fed.data.infer import MOST_VALUES, _patient
from pate_fed.data.own_columns import OwnColumns
from pate_fed.data.schema import Schema, number_in
from pate_fed.data.table import Rows, TableReader, with_room
from pate_fed.errors import InputError
from pate_fed.format import counted, share_text

Floats = NDArray[np.float64]

_SHOWN = 5  # rows that a note names
_BARS = "·▁▂▃▄▅▆▇█"
_ALONE, _FEW = 0.99, 20  # right labels by which a column leaks, and records with which nothing is said of it
_INSIDE = 0.9  # of the values a factor has to bring into the pool's range
_CODE = re.compile(r"\d{1,2}")  # what it means is asked, never guessed
_LETTERS = 3  # of a column's name that another one may be short for
_MALE = "m male man mann männlich homme masculin hombre masculino maschio".split()
_FEMALE = "f w female woman frau weiblich femme féminin mujer femenino femmina".split()
# What one unit is in the other (SI conversions of the AMA Manual of Style, 11th ed.), by columns' names.
_UNITS = (
    (r"gluc|glu$|blutzucker|^bz$", 18.016, "mmol/l", "mg/dl"),
    (r"chol|ldl|hdl", 38.67, "mmol/l", "mg/dl"),
    (r"trig", 88.57, "mmol/l", "mg/dl"),
    (r"crea|krea", 1 / 88.42, "µmol/l", "mg/dl"),
    (r"bili", 1 / 17.104, "µmol/l", "mg/dl"),
    (r"uric|harns", 1 / 59.48, "µmol/l", "mg/dl"),
    (r"calc|kalz", 4.008, "mmol/l", "mg/dl"),
    (r"h(a?e|ä)mogl|^hb$|^hgb$", 0.1, "g/l", "g/dl"),
    (r"height|gr(ö|oe)(ß|ss)e|taille", 100.0, "m", "cm"),
    (r"weight|gewicht|poids", 0.45359, "lb", "kg"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnProfile:
    """What a column holds: {"low", "high"} of numbers, or counts of categories; empty where nothing is there.

    `missing` counts rows without a value, `bars` show how numbers lie from low to high. `pool` are the pool's
    range or shares, `pool_missing` its share without a value.
    """

    name: str
    kind: str
    missing: int
    values: Mapping[str, float]
    bars: str = ""
    pool: Mapping[str, float]
    pool_missing: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is odd about a column, and in which rows; with `mend` no study can read it so.

    A `change` of the column's settings is proposed: `text` asks for it, or for the factor that is None in it.
    Without one it asks for a name, which with `mend` has to be there, or for what a `code`, a text that is
    none of the study's, means.
    """

    column: str
    text: str
    rows: Sequence[int] = ()
    mend: bool = False
    change: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        more = f" and {len(self.rows) - _SHOWN:,} more" if len(self.rows) > _SHOWN else ""
        rows = f" (row{'s' * (len(self.rows) > 1)} {', '.join(map(str, self.rows[:_SHOWN]))}{more})"
        return f"{self.column}: {self.text}{rows * bool(self.rows)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProfile:
    """All of a hospital's table; `patients` are as many as it names, None: it names none.

    `unread` are the names of its columns that the study does not read.
    """

    records: int
    patients: int | None
    read_as: str
    columns: Sequence[ColumnProfile]
    notes: Sequence[Note]
    proposals: Sequence[Note]
    unread: Sequence[str] = field(repr=False)

    @property
    def fits(self) -> bool:
        """Whether a study can read it as it is."""
        return not any(note.mend for note in self.notes)


def examine(
    path: Path,
    schema: Schema,
    *,
    decimal: str | None = None,
    own: OwnColumns | None = None,
    pool: Floats | None = None,
    by_patient: bool = False,
) -> TableProfile:
    """Read a whole table by the schema and the hospital's own settings, whatever is wrong with single values.

    `pool` are the public inputs as the schema encodes them, float64 (n, features). `by_patient`: the study
    states its ε for a patient. Without `own` the settings are those beside the file.

    Raises:
        InputError: it is no table, its header is none, or it has no rows.
    """
    reader = TableReader(path, schema, decimal=decimal, own=own)
    reader.require_columns(labelled=True, lacking=True)
    return _TableExaminer(reader).profile(pool, by_patient=by_patient)


def examine_rows(
    rows: Rows, schema: Schema, own: OwnColumns, *, pool: Floats | None = None, ranges_alone: bool = False
) -> list[Note]:
    """What `examine` finds of each column in records that were read already; `rows` of a note count from 0.

    With `ranges_alone` only what is held to the pool's or the declared ranges.
    """
    found, start = _Examiner(schema, own, np.arange(len(rows.labels))), 0
    labels = [] if schema.target_range is not None else [rows.labels.astype(np.float64)]
    if schema.labels:
        labels = [(rows.labels >> place & 1).astype(np.float64) for place in range(len(schema.labels))]
    if rows.beyond and not ranges_alone:
        found.note_beyond(rows.beyond, len(rows.labels))
    for name, names in schema.columns:
        part, start = slice(start, start + max(1, len(names))), start + max(1, len(names))
        if own.of(name).missing:
            continue
        given = rows.inputs[:, part]
        values = np.where(given.any(axis=1), given.argmax(axis=1), np.nan) if names else given[:, 0]
        if not ranges_alone:
            found.look_at(name, values, labels)
        if not names:
            found.hold_to_range(name, values, None if pool is None else pool[:, part])
    return found.notes


class _Examiner:
    """Gathers notes on columns whose rows have these numbers."""

    def __init__(self, schema: Schema, own: OwnColumns, numbers: NDArray[np.int64]) -> None:
        self._schema, self._own, self._numbers = schema, own, numbers
        ends = () if schema.target_range is None else ((schema.label, schema.target_range),)
        self._declared = {name: {"low": low, "high": high} for name, (low, high) in (*schema.ranges, *ends)}
        self.notes: list[Note] = []
        self.proposals: list[Note] = []

    def _note(self, column: str, text: str, rows: Sequence[int] | None = None, *, mend: bool = False) -> None:
        """With `rows` only where there are some."""
        if rows is None or rows:
            self.notes.append(Note(column=column, text=text, rows=rows or (), mend=mend))

    def _propose(self, column: str, question: str, *, mend: bool = False, **change: Any) -> None:
        self.proposals.append(Note(column=column, text=question, mend=mend, change=change))

    def look_at(self, name: str, values: Floats, labels: Sequence[Floats]) -> None:
        """What is worth a look in a column that can be read; `labels` are the columns of classes."""
        kinds = np.unique(values[~np.isnan(values)])
        if len(kinds) < 2:
            self._note(name, "the same value in all rows with one" if len(kinds) else "no row has a value")
        elif shares := [share for each in labels if (share := _told_alone(values, each)) is not None]:
            why = "is it known only once the label is, or the label itself?"
            self._note(name, f"tells {share_text(max(shares))} of the labels alone: {why}")

    def hold_to_range(self, name: str, values: Floats, pool: Floats | None) -> dict[str, float]:
        """Hold numbers to the declared or the pool's range, which is given back; empty: there is none."""
        beside = {} if pool is None else _range(pool[~np.isnan(pool)])
        beside = self._declared.get(name, beside)
        if beside and not np.isnan(values).all():
            self._compare(name, values, **beside)
        return beside

    def _compare(self, name: str, values: Floats, *, low: float, high: float) -> None:
        """Hold numbers to the pool's or the declared range; most of them outside are in another unit."""
        rows = self._numbers[(values < low) | (values > high)].tolist()
        there = int((~np.isnan(values)).sum())
        whose = "declared" if name in self._declared else "pool's"
        says, factor = f"outside of the {whose} {low:g} to {high:g}", self._own.of(name).factor
        if 2 * len(rows) <= there or factor == 1:
            self._note(name, says, rows)
            return
        cure = "a factor of 1 in the settings says that its unit is the study's"
        if factor is not None:
            cure = f"after × {factor:g} of the settings; another factor is meant"
        self._note(name, f"most values are {says}: {cure}", rows, mend=True)
        inside = [
            (each, units)
            for pattern, known, one, other in _UNITS
            if re.search(pattern, name.casefold())
            for each, units in ((known, f"{one} to {other}"), (1 / known, f"{other} to {one}"))
            if ((values * each >= low) & (values * each <= high)).sum() >= _INSIDE * there
        ]
        if len(inside) == 1 and factor is None:
            [(each, units)] = inside
            question = f"most values are {says}, and × {each:.6g} ({units}) brings them in: do so?"
            self._propose(name, question, factor=float(f"{each:.6g}"))
        else:
            self._propose(name, "times what are its numbers in the study's unit?", factor=None)

    def note_beyond(self, beyond: int, records: int) -> None:
        """So many labels are numbers outside of the declared range; most of them are in another unit."""
        counts = (
            f"{counted(beyond, 'number')} of {records:,} beyond the declared range count as its nearer end"
        )
        self._note(self._schema.label, counts, mend=2 * beyond > records)


class _TableExaminer(_Examiner):
    def __init__(self, reader: TableReader) -> None:
        self._reader = reader
        self._texts: list[dict[str, int]] = [{} for _ in reader.header]
        numbers, ragged = self._take_rows()
        super().__init__(reader.schema, reader.own, numbers)
        self._note("whole rows", f"not the header's {len(reader.header)} values", ragged, mend=True)
        self._note("whole rows", "left out, as the settings say", reader.left_out)
        self._lacking = [*ragged]  # rows that can be left out

    def _take_rows(self) -> tuple[NDArray[np.int64], list[int]]:
        """Take all rows, a column as its texts and which of them each has; numbers of rows, and of ragged."""
        reader, width, ragged = self._reader, len(self._reader.header), list[int]()
        self._codes = np.empty((width, 0), dtype=np.int32)
        numbers, count = np.empty(0, dtype=np.int64), 0
        for chunk in in_chunks(reader.records()):
            ragged += [number for number, cells in chunk if len(cells) != width]
            rows = [row for row in chunk if len(row[1]) == width]
            self._codes = with_room(self._codes, count + len(rows), axis=1)
            numbers = with_room(numbers, count + len(rows))
            numbers[count : count + len(rows)] = [number for number, _ in rows]
            columns = zip(*[cells for _, cells in rows], strict=True)
            for texts, own, codes in zip(self._texts, columns, self._codes, strict=bool(rows)):
                for text in dict.fromkeys(own):
                    texts.setdefault(text, len(texts))
                codes[count : count + len(rows)] = [*map(texts.__getitem__, own)]
            count += len(rows)
        if not count and not ragged:
            raise InputError(f"{reader.file.path}: holds no rows under its header")
        self._codes = self._codes[:, :count]
        return numbers[:count], ragged

    def profile(self, pool: Floats | None, *, by_patient: bool) -> TableProfile:
        """What was found."""
        free = self._propose_names()
        start, found = 0, list[ColumnProfile]()
        labels, columns = list[Floats](), list[ColumnProfile]()
        for label, classes in self._schema.outcomes:
            if label not in self._reader.places:
                continue
            read: Callable[[str, int], float] = partial(self._reader.label, name=label)
            values, unread = self._read(label, read if classes else self._reader.target, classes)
            kind = "label" if classes else "number"
            columns.append(self._column(label, kind, values, unread, classes, None))
            labels += [values] if classes else []  # a column that tells a number alone is no fault
            for name in (each for each in classes if not columns[-1].values[each]):
                self._note(label, f"no record of {name}: what is trained here will never name it")
        for column in self._reader.columns:
            part = None if pool is None else pool[:, start : start + max(1, len(column.values))]
            start += max(1, len(column.values))
            values, unread = np.full(len(self._numbers), np.nan), 0
            if column.place is not None:
                values, unread = self._read(column.name, column.read, column.values)
                self.look_at(column.name, values, labels)
            elif self._reader.own.of(column.name).missing:
                self._note(column.name, "the file has no such column: missing for all its rows")
            kind = "category" if column.values else "number"
            found.append(self._column(column.name, kind, values, unread, column.values, part))
        patients = self._patients(by_patient=by_patient)
        self._same_rows()
        if self._lacking:
            count = counted(len({*self._lacking}), "row")
            question = f"leave out {count} without a label, a patient or all values?"
            self._propose("whole rows", question, leave_out=True)
        return TableProfile(
            records=len(self._numbers),
            patients=patients,
            read_as=self._reader.described(),
            columns=found + columns,
            notes=self.notes,
            proposals=self.proposals,
            unread=free,
        )

    def _propose_names(self) -> list[str]:
        """For columns that the file lacks another of its own, if one is near; those that nobody reads."""
        needed, places = self._reader.needed(labelled=True), self._reader.places
        free = [name for name in places if name not in needed]
        lacking = [name for name in needed if name not in places]
        near = {name: _named_like(name, free, patient=name == self._schema.patient) for name in lacking}
        twice, says = Counter(near.values()), "the file has no such column"
        for name, other in near.items():
            if other is not None and twice[other] == 1:
                self._note(name, says, mend=True)
                self._propose(name, f"{says}, and has {other!r}: is it that?", name=other)
            else:
                needs = name in {*dict(self._schema.outcomes), self._schema.patient}
                option = "" if needs else f", or give --missing {name}"
                self._note(name, f"{says}: say in the settings what it calls it{option}", mend=True)
                self._propose(name, f"{says}: what does it call it?", mend=needs)
        return free

    def _read(
        self, name: str, read: Callable[[str, int], float], values: Sequence[str]
    ) -> tuple[Floats, int]:
        """A column's values as `read` has them, NaN where it cannot, and in how many rows that is noted."""
        place, wrong = self._reader.places[name], dict[str, str]()
        found, of_reason = np.full(len(self._texts[place]), np.nan), defaultdict[str, list[int]](list)
        for text, at in self._texts[place].items():
            try:
                found[at] = read(text, 0)
            except InputError as error:
                wrong[text] = _reason(str(error).removeprefix(self._reader.where(name, 0)))
                of_reason[wrong[text]].append(at)
        codes = self._codes[place]
        rows = [(reason, self._numbers[np.isin(codes, each)].tolist()) for reason, each in of_reason.items()]
        for reason, where in sorted(rows, key=lambda each: each[1][0]):
            self._note(name, reason, where, mend=True)
        outcome = name in dict(self._schema.outcomes)
        if outcome:
            self._lacking += [row for reason, where in rows if "label is missing" in reason for row in where]
        meanings = _codes([*wrong], values)
        if meanings:
            meant = ", ".join(f"{text} as {value}" for text, value in meanings.items())
            self._propose(name, f"read {meant}?", map=meanings)
        told = {text for text, why in wrong.items() if "--decimal" in why or " missing" in why} | {*meanings}
        for text in sorted({*wrong} - told)[:_SHOWN]:
            asks, where = f"what does its code {text} mean", list[int]()
            if not (values and _CODE.fullmatch(text)):  # it may name somebody: its rows alone are told
                asks, where = "what is meant there", self._numbers[codes == self._texts[place][text]].tolist()
            asks += f"{': ' if values else ''}{', '.join(values)}?"
            self.proposals.append(Note(column=name, text=asks, rows=where, mend=outcome, code=text))
        return found[codes], sum(len(where) for _, where in rows)

    def _column(
        self, name: str, kind: str, values: Floats, unread: int, names: Sequence[str], pool: Floats | None
    ) -> ColumnProfile:
        there, bars, beside, lacks = values[~np.isnan(values)], "", dict[str, float](), 0.0
        found = _range(there)
        if names:
            counts = np.bincount(there.astype(np.int64), minlength=len(names))
            found = dict(zip(names, counts.tolist(), strict=True))
            if pool is not None:
                beside = dict(zip(names, pool.mean(axis=0).tolist(), strict=True))
                lacks = 1 - float(pool.sum() / len(pool))
        else:
            bars = _bars(there)
            if pool is not None:
                lacks = float(np.isnan(pool).mean())
            beside = self.hold_to_range(name, values, pool)
        missing = len(self._numbers) - len(there) - unread
        return ColumnProfile(
            name=name, kind=kind, missing=missing, values=found, bars=bars, pool=beside, pool_missing=lacks
        )

    def _patients(self, *, by_patient: bool) -> int | None:
        name = self._schema.patient
        if name is None or name not in self._reader.places:
            return None
        place = self._reader.places[name]
        lacking = [code for text, code in self._texts[place].items() if self._schema.lacks(text)]
        nameless = self._numbers[np.isin(self._codes[place], lacking)].tolist()
        times = np.bincount(self._codes[place], minlength=len(self._texts[place]))
        records = np.delete(times, lacking)
        self._note(name, "names no patient: give every row one", nameless, mend=True)
        self._lacking += nameless
        several = records[records > 1]
        if by_patient and len(records) == 1 and len(several):
            self._note(name, "all records are one patient's: is that the column of patients?", mend=True)
        elif len(several):
            most = f"at most {several.max():,} of one"
            self._note(name, f"{counted(len(several), 'patient')} with several records ({most}): all kept")
        return len(records)

    def _same_rows(self) -> None:
        """Records that are the same as an earlier one in all that is read."""
        needed, places = self._reader.needed(labelled=True), self._reader.places
        if all(name in places for name in needed) and len(self._numbers):
            same = np.zeros(len(self._numbers), dtype=np.int64)
            for name in needed:  # equal numbers: the same rows so far
                place = places[name]
                _, same = np.unique(same * len(self._texts[place]) + self._codes[place], return_inverse=True)
            _, first = np.unique(same, return_index=True)
            again = self._numbers[first[same] != np.arange(len(same))].tolist()
            self._note("whole rows", "the same as an earlier row in all that is read: kept", again)


def _range(values: Floats) -> dict[str, float]:
    return {"low": float(values.min()), "high": float(values.max())} if len(values) else {}


def _reason(error: str) -> str:
    """Why a value cannot be read, without the value, and the same for all values of which it holds."""
    if "--decimal" in error:
        return "may have a decimal point or comma: say --decimal point or --decimal comma"
    return error.lstrip(": ").removeprefix("is ").partition(";")[0]


def _bars(values: Floats) -> str:
    if not len(values):
        return ""
    counts, _ = np.histogram(values, bins=8)
    return "".join(_BARS[-(-8 * int(count) // int(counts.max()))] for count in counts)


def _told_alone(values: Floats, labels: Floats) -> float | None:
    """The share of labels that a column tells alone, by one threshold or by each of few values.

    None where that is too little to say so, or hardly more than the most frequent class tells.
    """
    known = ~np.isnan(labels)
    if known.sum() < _FEW:
        return None
    kinds, place = np.unique(np.where(np.isnan(values), -np.inf, values)[known], return_inverse=True)
    told, classes = labels[known].astype(np.int64), int(labels[known].max()) + 1
    counts = np.bincount(place * classes + told, minlength=len(kinds) * classes).reshape(-1, classes)
    below = counts.cumsum(axis=0)
    right = (below.max(axis=1) + (below[-1] - below).max(axis=1)).max()
    if len(kinds) <= MOST_VALUES:
        right = counts.max(axis=1).sum()
    share, usual = float(right / len(told)), float(below[-1].max() / len(told))
    return share if share >= _ALONE and 1 - share <= (1 - usual) / 10 and usual < 1 else None


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+", " ", text.casefold()).strip()


def _codes(texts: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """What each text means, where only one of the values is written so, or begins so, or is that sex.

    Numbers are never guessed. Where one letter could mean several, no letter of the column does.
    """
    found = {text: meant for text in texts if len(meant := {*_meanings(text, values)}) == 1}
    if any(len(text) == 1 and text not in found and number_in(text) is None for text in texts):
        found = {text: meant for text, meant in found.items() if len(text) > 1}
    return {text: next(iter(meant)) for text, meant in found.items()}


def _meanings(text: str, values: Sequence[str]) -> Iterator[str]:
    plain = _plain(text)
    if number_in(text) is not None or not plain:
        return
    if same := [value for value in values if _plain(value) == plain]:
        yield from same
        return
    sexes = [[value for value in values if _plain(value) in words] for words in (_MALE, _FEMALE)]
    if all(len(each) == 1 for each in sexes):
        yield from (each for words, [each] in zip((_MALE, _FEMALE), sexes, strict=True) if plain in words)
    elif text.isalpha():
        yield from (value for value in values if _plain(value).startswith(plain))


def _named_like(name: str, free: Sequence[str], *, patient: bool) -> str | None:
    """The one column of the same name in other letters, short for it, or misspelt; None: none or several."""
    plain = {each: _plain(each).replace(" ", "") for each in free}
    meant = _plain(name).replace(" ", "")
    short = {each for each in free if min(len(plain[each]), len(meant)) >= _LETTERS}
    for near in (
        [each for each in free if plain[each] == meant],
        [each for each in short if meant.startswith(plain[each]) or plain[each].startswith(meant)],
        [each for each in free if get_close_matches(meant, [plain[each]], cutoff=0.8)],
    ):
        if near:
            return near[0] if len(near) == 1 else None
    return _patient(free) if patient else None

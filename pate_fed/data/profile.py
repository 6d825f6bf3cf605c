"""What a hospital's table holds, beside what its study and the public pool have: for its own terminal alone.

What does not fit is counted and named by row and column. No text of a cell stands in anything made here but
codes that are the study's own values written otherwise (m for male), which are proposed to be mapped.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.infer import MOST_VALUES, _patient
from pate_fed.data.own_columns import OwnColumns
from pate_fed.data.schema import Schema, number_in
from pate_fed.data.table import TableReader
from pate_fed.errors import InputError
from pate_fed.format import counted, share_text

Floats = NDArray[np.float64]

_SHOWN = 5  # rows that a note names
_BARS = "·▁▂▃▄▅▆▇█"
_ALONE, _FEW = 0.99, 20  # right labels by which a column leaks, and records with which nothing is said of it
_LETTERS = 3  # of a column's name that another one may be short for
_MALE = {"m", "male", "man", "mann", "männlich", "homme", "masculin", "hombre", "masculino", "maschio"}
_FEMALE = {
    "f",
    "w",
    "female",
    "woman",
    "frau",
    "weiblich",
    "femme",
    "féminin",
    "mujer",
    "femenino",
    "femmina",
}
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
    """What a column holds: counts of its values, or the range of its numbers and how they lie in it.

    `missing` counts rows without a value. Those of the pool, where there is one, are a range or shares.
    """

    name: str
    kind: str
    missing: int
    low: float | None = None
    high: float | None = None
    bars: str = ""
    counts: Mapping[str, int]
    pool_low: float | None = None
    pool_high: float | None = None
    pool_missing: float | None = None
    pool_shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is odd about a column, and the first of the rows; with `mend` no study can read it so."""

    column: str
    text: str
    rows: tuple[int, ...] = ()
    count: int = 0
    mend: bool = False

    def __str__(self) -> str:
        if not self.count:
            return f"{self.column}: {self.text}"
        more = f" and {self.count - len(self.rows):,} more" if self.count > len(self.rows) else ""
        rows = f"row{'s' * (self.count > 1)} {', '.join(map(str, self.rows))}{more}"
        return f"{self.column}: {self.text} ({rows})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A change of a column's settings that the hospital is asked about."""

    column: str
    change: Mapping[str, Any]
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProfile:
    """All of a hospital's table; `patients` are as many as it names, None: it names none."""

    records: int
    patients: int | None
    read_as: str
    columns: tuple[ColumnProfile, ...]
    notes: tuple[Note, ...]
    proposals: tuple[Proposal, ...]

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
    return _Examiner(reader, pool).profile(by_patient=by_patient)


class _Examiner:
    def __init__(self, reader: TableReader, pool: Floats | None) -> None:
        self._reader, self._schema, self._pool = reader, reader.schema, pool
        self._notes: list[Note] = []
        self._proposals: list[Proposal] = []
        self._unread = Counter[str]()
        self._rows: list[tuple[int, list[str]]] = []
        ragged = []
        for number, cells in reader.file.rows():
            if len(cells) == len(reader.header):
                self._rows.append((number, cells))
            else:
                ragged.append(number)
        if not self._rows and not ragged:
            raise InputError(f"{reader.file.path}: holds no rows under its header")
        self._note("whole rows", f"not the header's {len(reader.header)} values", ragged, mend=True)

    def profile(self, *, by_patient: bool) -> TableProfile:
        """What was found."""
        self._propose_names()
        schema, start, found = self._schema, 0, list[ColumnProfile]()
        label, classes = schema.label, schema.classes
        labels = self._numbers(label, self._reader.label, classes) if self._there(label) else None
        for column in self._reader.columns:
            width = max(1, len(column.values))
            pool = None if self._pool is None else self._pool[:, start : start + width]
            start += width
            if column.place is None:
                missing = self._reader.own.of(column.name).missing
                if missing:
                    self._note(column.name, "the file has no such column: missing for all its rows")
                values = np.full(len(self._rows), np.nan)
            else:
                values = self._numbers(column.name, column.read, column.values)
                self._look_at(column.name, values, labels)
            found.append(self._column(column.name, values, column.values, pool))
        if labels is not None:
            found.append(self._column(label, labels, classes, None, kind="label"))
            for name in (each for each, count in found[-1].counts.items() if not count):
                self._note(label, f"no record of {name}: what is trained here will never name it")
        patients = self._patients(by_patient=by_patient)
        self._same_rows()
        return TableProfile(
            records=len(self._rows),
            patients=patients,
            read_as=self._reader.described(),
            columns=tuple(found),
            notes=tuple(self._notes),
            proposals=tuple(self._proposals),
        )

    def _note(self, column: str, text: str, rows: Sequence[int] | None = None, *, mend: bool = False) -> None:
        """With `rows` only where there are some."""
        if rows is None or rows:
            some = tuple(rows or ())
            self._notes.append(Note(column=column, text=text, rows=some[:_SHOWN], count=len(some), mend=mend))

    def _propose(self, column: str, question: str, **change: Any) -> None:
        self._proposals.append(Proposal(column=column, change=change, question=f"{column}: {question}"))

    def _there(self, name: str) -> bool:
        return name in self._reader.places

    def _propose_names(self) -> None:
        """For columns that the file lacks another of its own, or that all rows lack it."""
        known = {*self._reader.needed(labelled=True)}
        free = [name for name in self._reader.header if name and name not in known]
        lacking = [name for name in self._reader.needed(labelled=True) if not self._there(name)]
        near = {name: _named_like(name, free, patient=name == self._schema.patient) for name in lacking}
        twice = Counter(near.values())
        for name in lacking:
            self._note(name, "the file has no such column", mend=True)
            other = near[name]
            if other is not None and twice[other] == 1:
                self._propose(
                    name, f"the file has no such column, and has {other!r}: is it that?", name=other
                )
            elif name not in (self._schema.label, self._schema.patient):
                self._propose(
                    name, "the file has no such column: is it missing for all its rows?", missing=True
                )

    def _numbers(self, name: str, read: Callable[[str, int], float], values: Sequence[str]) -> Floats:
        """A column's values as `read` has them, NaN where it cannot; what it cannot read is noted."""
        place, found, wrong = self._reader.places[name], list[float](), dict[str, str]()
        rows = defaultdict[str, list[int]](list)
        for number, cells in self._rows:
            text = cells[place]
            if (reason := wrong.get(text)) is None:
                try:
                    found.append(read(text, number))
                    continue
                except InputError as error:
                    reason = wrong[text] = _reason(str(error).removeprefix(self._reader.where(name, number)))
            found.append(np.nan)
            rows[reason].append(number)
        for reason, where in rows.items():
            self._note(name, reason, where, mend=True)
            self._unread[name] += len(where)
        if values and (codes := _codes([*wrong], values)):
            meant = ", ".join(f"{text} as {value}" for text, value in codes.items())
            self._propose(name, f"read {meant}?", map={**self._reader.own.of(name).map, **codes})
        return np.array(found)

    def _look_at(self, name: str, values: Floats, labels: Floats | None) -> None:
        """What is worth a look in a column that can be read."""
        there = values[~np.isnan(values)]
        if not len(there):
            self._note(name, "no row has a value")
        elif len(there) > 1 and (there == there[0]).all():
            self._note(name, "the same value in all rows that have one")
        elif labels is not None and (share := _told_alone(values, labels)) is not None:
            self._note(
                name,
                f"tells {share_text(share)} of the labels alone: is it known only once the label is, or the "
                "label itself?",
            )

    def _column(
        self,
        name: str,
        values: Floats,
        names: Sequence[str],
        pool: Floats | None,
        *,
        kind: str | None = None,
    ) -> ColumnProfile:
        there = values[~np.isnan(values)]
        facts: dict[str, Any] = {"counts": {}, "pool_shares": {}}
        if names:
            counts = np.bincount(there.astype(np.int64), minlength=len(names)).tolist()
            facts["counts"] = dict(zip(names, counts, strict=True))
            if pool is not None:
                facts["pool_shares"] = dict(zip(names, pool.mean(axis=0).tolist(), strict=True))
                facts["pool_missing"] = 1 - float(pool.sum() / len(pool))
        elif len(there):
            facts |= {"low": float(there.min()), "high": float(there.max()), "bars": _bars(there)}
        if not names and pool is not None:
            facts["pool_missing"] = float(np.isnan(pool).mean())
            if facts["pool_missing"] < 1:
                facts |= {"pool_low": float(np.nanmin(pool)), "pool_high": float(np.nanmax(pool))}
                self._compare(name, values, facts["pool_low"], facts["pool_high"])
        missing = len(self._rows) - len(there) - self._unread[name]
        kind = kind or ("category" if names else "number")
        return ColumnProfile(name=name, kind=kind, missing=missing, **facts)

    def _compare(self, name: str, values: Floats, low: float, high: float) -> None:
        """Hold numbers to the pool's range; most of them outside are in another unit, it seems."""
        outside = (values < low) | (values > high)
        there = int((~np.isnan(values)).sum())
        rows = [self._rows[place][0] for place in np.flatnonzero(outside)]
        says, factor = f"outside of the pool's {low:g} to {high:g}", self._reader.own.of(name).factor
        if 2 * len(rows) <= there or factor == 1:
            self._note(name, says, rows)
            return
        inside = [
            (each, one, other)
            for pattern, factor_, si, usual in _UNITS
            if re.search(pattern, name.casefold())
            for each, one, other in ((factor_, si, usual), (1 / factor_, usual, si))
            if 10 * ((values * each >= low) & (values * each <= high)).sum() >= 9 * there
        ]
        cure = "a factor of 1 in the settings says that its unit is the study's"
        if factor is not None:
            cure = f"after × {factor:g} of the settings; another factor is meant"
        self._note(name, f"most values are {says}: {cure}", rows, mend=True)
        if len(inside) == 1 and factor is None:
            [(each, one, other)] = inside
            question = f"most values are {says}, and × {each:.6g} ({one} to {other}) brings them in: do so?"
            self._propose(name, question, factor=float(f"{each:.6g}"))

    def _patients(self, *, by_patient: bool) -> int | None:
        name = self._schema.patient
        if name is None or not self._there(name):
            return None
        place, rows = self._reader.places[name], Counter[str]()
        nameless = []
        for number, cells in self._rows:
            try:
                rows[self._reader.patient(cells[place], number)] += 1
            except InputError:
                nameless.append(number)
        self._note(name, "names no patient: give every row one", nameless, mend=True)
        several = [count for count in rows.values() if count > 1]
        if by_patient and len(rows) == 1 and several:
            self._note(name, "all records are one patient's: is that the column of patients?", mend=True)
        elif several:
            most = f"at most {max(several):,} of one"
            self._note(name, f"{counted(len(several), 'patient')} with several records ({most}): all kept")
        return len(rows)

    def _same_rows(self) -> None:
        """Records that are the same as an earlier one in all that is read."""
        needed = self._reader.needed(labelled=True)
        if not all(map(self._there, needed)):
            return
        places = [self._reader.places[name] for name in needed]
        seen, again = set[tuple[str, ...]](), list[int]()
        for number, cells in self._rows:
            row = tuple([cells[place] for place in places])
            if row in seen:
                again.append(number)
            seen.add(row)
        self._note("whole rows", "the same as an earlier row in all that is read: kept", again)


def _reason(error: str) -> str:
    """Why a value cannot be read, without the value, and the same for all values of which it holds."""
    if "--decimal" in error:
        return "may have a decimal point or comma: say --decimal point or --decimal comma"
    return error.lstrip(": ").removeprefix("is ").partition(";")[0]


def _bars(values: Floats) -> str:
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
    ways: tuple[Callable[[str], bool], ...] = (
        lambda each: each == meant,
        lambda each: (
            min(len(each), len(meant)) >= _LETTERS and (meant.startswith(each) or each.startswith(meant))
        ),
        lambda each: bool(get_close_matches(meant, [each], cutoff=0.8)),
    )
    for way in ways:
        if near := [each for each in free if way(plain[each])]:
            return near[0] if len(near) == 1 else None
    return _patient(free) if patient else None

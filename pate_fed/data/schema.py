"""A table's schema: its label, its classes and its columns, and what stands for a missing value.

The schema is part of a study's terms, so that every hospital encodes its records as the public pool is. A
number is one feature, NaN where it is missing; a category is one feature a value, all 0 where it is missing.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pate_fed.structure import check, refusal, setting

MISSING = frozenset({"", "?", "NA", "N/A", "nan", "NaN", "NULL", "null", "\\N"})
# What stands for a missing value among numbers, beside MISSING. Any other text there may be a patient's.
_MISSING_WORDS = """
    -, --, –, —, ., .., *, /, x, na, n/a, n.a., n. a., #n/a, #na, #n/d, #nv, #null!, nan, nil, none, null,
    (null), \\n, nd, n.d., not available, not done, not known, unknown, unk, missing, pending,
    unbekannt, unbek, unbek., k.a., k. a., keine angabe, fehlt, fehlend, nicht erhoben, nicht bekannt,
    inconnu, inconnue, manquant, non disponible, non connu, nr, n.r., non renseigné,
    desconocido, desconocida, sin dato, no disponible, s/d, desconhecido, sem dados,
    sconosciuto, ignoto, mancante, non noto, onbekend, ontbreekt, okänd, saknas, ukjent, mangler, ukendt,
    tuntematon, puuttuu, nieznany, nieznane, brak, brak danych, neznámé, neuvedeno, bilinmiyor,
    неизвестно, нет данных, 不明, 不详
"""
_KNOWN_WORDS = frozenset(word.strip() for word in _MISSING_WORDS.split(",")) | {
    f".{letter}" for letter in "_abcdefghijklmnopqrstuvwxyz"
}  # the last of SAS and Stata
MOST_TEXT = 1000  # characters of a name or a value
TARGET_STEPS = 10**6  # of a target's range: its place in it is a whole number
MOST_LABELS = 16  # of a record, where there are several


def _ranges(given: Any) -> Any:
    return list(given.items()) if isinstance(given, Mapping) else given


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
    belong to one patient; it is never a feature. `missing` are texts that stand for a missing value beside
    the usual ones (nothing, ?, NA, N/A, nan, NULL), numbers however they are written. `ranges` are declared
    for every number where no public inputs are there: what can be measured, never what records hold. So is
    `target_range` where the label is a number and has no classes: one beyond it counts as the nearer end.
    `labels` are in place of one `label`: 2 to 16 columns, each with the value that says no and the one that
    says yes.

    Raises:
        InputError: names twice, too few classes, no column, or ranges of other columns than the numbers.
    """

    label: str = setting("", allowed="the name of a column", most=MOST_TEXT, help="the column of the class")
    classes: tuple[str, ...] = setting((), most=MOST_TEXT, help="what that column may hold")
    target_range: tuple[float, float] | None = setting(
        None,
        low=-1e50,
        high=1e50,
        allowed="[lowest, highest], the first the smaller,",
        help="in place of classes: the label is a number, and what it can be",
    )
    labels: tuple[tuple[str, tuple[str, ...]], ...] = setting(
        (),
        read=_pairs,
        most=MOST_TEXT,
        allowed="name = [no, yes], for each label,",
        help="in place of label and classes: several columns, each with the value for no and that for yes",
    )
    columns: tuple[tuple[str, tuple[str, ...]], ...] = setting(
        read=_pairs,
        most=MOST_TEXT,
        allowed='name = "number" or a list of values, for each column,',
        help='the columns that are read: "number", or a list of values',
    )
    patient: str | None = setting(
        None,
        allowed="the name of a column",
        most=MOST_TEXT,
        help="the column that is equal for a patient's rows",
    )
    missing: tuple[str, ...] = setting((), most=MOST_TEXT, help="texts that stand for a missing value")
    ranges: tuple[tuple[str, tuple[float, float]], ...] = setting(
        (),
        read=_ranges,
        low=-1e100,
        high=1e100,
        allowed="name = [lowest, highest], the first the smaller, for each column of numbers,",
        help="what numbers can be, where there are no public inputs",
    )

    def __post_init__(self) -> None:
        check(self)
        names = [name for name, _ in (*self.columns, *self.outcomes)]
        names += [self.patient] if self.patient is not None else []
        for name, count in Counter(names).items():
            if count > 1:
                raise refusal(self, "columns", f"the column {name!r} is named more than once")
        if self.labels:
            self._check_labels()
        elif not self.label:
            raise refusal(self, "label", "the name of a column is meant, or several labels")
        elif (ends := self.target_range) is not None:
            # As texts too: what a hospital agrees to is what it reads.
            if self.classes:
                raise refusal(self, "target_range", "no classes are meant beside it")
            if not ends[0] < ends[1] or len(set(self.class_names)) < 2:
                wanted = "[lowest, highest], the first the smaller, other in 15 digits, is meant"
                raise refusal(self, "target_range", wanted)
        elif len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise refusal(self, "classes", "two or more are meant, each once")
        if not self.columns:
            raise refusal(self, "columns", "at least one is meant")
        numbers = [name for name, values in self.columns if not values]
        rise = all(low < high for _, (low, high) in self.ranges)
        if self.ranges and (sorted(name for name, _ in self.ranges) != sorted(numbers) or not rise):
            listed = ", ".join(map(repr, numbers)) or "none, as all columns are categories"
            raise refusal(self, "ranges", f"name = [lowest, highest] for each number is meant: {listed}")
        missing = set(self.missing)
        for text in {value for _, values in (*self.columns, *self.outcomes) for value in values}:
            if text in missing:
                raise refusal(self, "missing", f"{text!r} is a value of a column: no value can be both")

    @property
    def num_features(self) -> int:
        """Numbers a row becomes."""
        return sum(max(1, len(values)) for _, values in self.columns)

    def _check_labels(self) -> None:
        if self.label or self.classes or self.target_range is not None:
            raise refusal(self, "labels", "no label, classes or target_range is meant beside them")
        if not 2 <= len(self.labels) <= MOST_LABELS:
            raise refusal(self, "labels", f"2 to {MOST_LABELS} are meant; of one the name stands in label")
        for name, values in self.labels:
            if not name or len(set(values)) != 2 or len(values) != 2:
                raise refusal(self, "labels", f"{name!r}: two values are meant, that for no and that for yes")
        if len(set(self.class_names)) < 2 * len(self.labels):
            raise refusal(self, "labels", "names and values that read alike together are not meant")

    @property
    def outcomes(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The columns that hold what is learnt, each with its values; a number has none."""
        return self.labels or ((self.label, self.classes),)

    @property
    def no_class(self) -> str:
        """What the label is where it is no class, in words; empty where it is one."""
        if self.labels:
            return "several labels"
        return "" if self.target_range is None else "a number"

    @property
    def most_label(self) -> int | None:
        """The greatest label of a record where it is no class; None where it is.

        Of a number it is `TARGET_STEPS` (`target_place`); of several labels all bits, one a label, the first
        the lowest.
        """
        if self.labels:
            return int(2 ** len(self.labels)) - 1
        return None if self.target_range is None else TARGET_STEPS

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes; of a number the two ends of its range, which share each record by where it stands.

        Of several labels the values of each: a record has one of each two.
        """
        if self.labels:
            return tuple(f"{name}: {value}" for name, values in self.labels for value in values)
        return (
            self.classes if self.target_range is None else tuple(f"{end:.15g}" for end in self.target_range)
        )

    @property
    def label_names(self) -> tuple[str, ...]:
        """Of several labels each one with the value that says yes, as answers about it are named."""
        return self.class_names[1::2] if self.labels else ()

    def target_place(self, number: float) -> int:
        """Where a target stands in its range, from 0 to `TARGET_STEPS`; beyond it that is the nearer end."""
        assert self.target_range is not None
        low, high = self.target_range
        return round(TARGET_STEPS * ((min(max(number, low), high) - low) / (high - low)))

    def in_one_form(self) -> Schema:
        """The same with all texts in Unicode's form NFC, in which those of files are."""

        def one(text: str) -> str:
            return unicodedata.normalize("NFC", text)

        def each(columns: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
            return tuple((one(name), tuple(map(one, values))) for name, values in columns)

        return replace(
            self,
            label=one(self.label),
            classes=tuple(map(one, self.classes)),
            labels=each(self.labels),
            columns=each(self.columns),
            patient=None if self.patient is None else one(self.patient),
            missing=tuple(map(one, self.missing)),
            ranges=tuple((one(name), ends) for name, ends in self.ranges),
        )

    def lacks(self, text: str) -> bool:
        """Whether a text stands for a missing value, in a column of which it is no value."""
        if text in MISSING or text in self.missing:
            return True
        number = number_in(text) if self.missing else None
        return number is not None and number in {number_in(each) for each in self.missing}


def is_missing_word(text: str) -> bool:
    """Whether a text stands for a missing value wherever numbers are meant, in the common languages."""
    return text in MISSING or unicodedata.normalize("NFC", text).casefold() in _KNOWN_WORDS


def number_in(text: str) -> float | None:
    """The finite number that a text is, written with a decimal point; None where it is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None

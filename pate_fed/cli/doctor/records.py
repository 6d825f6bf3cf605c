"""A hospital's records as its study will read them, and what a teacher of theirs would be worth.

What is found here is for the hospital's own terminal: no count, class or accuracy goes into a file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.kinds.labels import read_own_labels
from clients.local import check_records, kind_of, study_of
from pate_fed.cli.doctor.machine import CheckResult
from pate_fed.config.registry import find_part
from pate_fed.config.sections import Parties
from pate_fed.config.study import read_study
from pate_fed.data import InputSpec, Rows, Schema, split_by_patient
from pate_fed.format import accuracy_text, share_text
from pate_fed.kinds.terms import Terms
from pate_fed.learning import TABLE_TEACHERS, TeacherSettings
from pate_fed.privacy.protection import RECORD_UNIT

Ints = NDArray[np.int64]

_READABLE = "can be read as the study wants them"
QUICK = "hog-linear"  # learns from images within a second, whatever the study's own teachers are
_MOST_TRIED, _PATIENCE_S = 5, 5.0  # teachers, and after how long no other one is tried
_MOST_RECORDS = 2000  # of images, to learn from and to test on
_FOLDS = 5  # with one teacher a fifth of the records is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRecords:
    """The records that a study wants: their inputs, and the teachers that they are split among.

    Where it `trains` no teachers, what is tried is the hospital's own model.
    """

    spec: InputSpec
    parties: Parties
    teacher: TeacherSettings
    trains: bool = True
    unit: str = RECORD_UNIT

    @classmethod
    def by_terms(cls, terms: Terms) -> WantedRecords:
        """By signed terms."""
        study = study_of(terms)
        return cls(
            spec=kind_of(terms),
            parties=study.parties,
            teacher=study.teacher,
            trains=terms.asks.trains,
            unit=terms.privacy.unit,
        )

    @classmethod
    def by_study(cls, config: Path) -> WantedRecords:
        """By a study.toml."""
        study = read_study(config).resolve()
        trains = study.aggregation.votes
        return cls(
            spec=study.data.kind(),
            parties=study.parties,
            teacher=study.teacher,
            trains=trains,
            unit=study.privacy.unit,
        )

    @property
    def no_class(self) -> str:
        """What a label is where no teacher learns it, in words; else empty."""
        return "" if self.spec.schema is None else self.spec.schema.no_class

    def written(self, decimal: str | None) -> WantedRecords:
        """The same where the hospital's CSV files write numbers so."""
        return replace(self, spec=replace(self.spec, decimal=decimal))

    def read(self, path: Path) -> tuple[Rows, CheckResult]:
        """The records, and how many there are of each class."""
        rows = check_records(path, self.spec, unit=self.unit)
        inputs = "×".join(map(str, rows.inputs.shape[1:]))
        how = f"; read as {rows.read_as}" if rows.read_as else ""
        if self.no_class == "a number":
            told = f"{len(rows.labels)} records, {inputs} features, and a number to be told{how}"
            return rows, CheckResult(told, file_text=_READABLE)
        counts = label_counts(rows.labels, self.spec.schema, len(self.spec.classes))
        what = f"{inputs} features" if self.spec.schema is not None else f"images of {inputs}"
        shown = ", ".join(f"{count} {name}" for count, name in zip(counts, self.spec.classes, strict=True))
        missing = [name for count, name in zip(counts, self.spec.classes, strict=True) if not count]
        if missing:
            unknown = f"no record of {', '.join(missing)}: teachers here will never name that"
            return rows, CheckResult(warnings=(unknown,))
        return rows, CheckResult(f"{len(rows.labels)} records, {what}: {shown}{how}", file_text=_READABLE)


def label_counts(labels: Ints, schema: Schema | None, classes: int) -> list[int]:
    """How many records there are of each class, or of each value of several labels."""
    if schema is None or not schema.labels:
        return np.bincount(labels, minlength=classes).tolist()  # type: ignore[no-any-return]
    yes = [int((labels >> place & 1).sum()) for place in range(len(schema.labels))]
    return [count for each in yes for count in (len(labels) - each, each)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedLabels:
    """The labels that a study of private labels wants."""

    pool_size: int
    num_classes: int

    def read(self, path: Path) -> tuple[None, CheckResult]:
        """How many there are; no rows, as there is nothing to try a teacher on."""
        index, _ = read_own_labels(path, pool_size=self.pool_size, num_classes=self.num_classes)
        return None, CheckResult(f"labels of {len(index)} public inputs", file_text=_READABLE)


def wanted_by(terms: Terms, *, decimal: str | None) -> WantedRecords | WantedLabels:
    """What a hospital's file has to hold under signed terms."""
    if not terms.asks.reads_inputs:
        return WantedLabels(pool_size=terms.pool_size, num_classes=terms.num_classes)
    return WantedRecords.by_terms(terms).written(decimal)


def try_teachers(rows: Rows, wanted: WantedRecords) -> CheckResult:
    """Train a few teachers as the study would, or quicker ones of images, and test them on other records.

    With several teachers each is tested on the others' parts, which no patient shares; with one a fifth of
    the patients is left out.
    """
    if what := wanted.no_class:
        return CheckResult(f"no model is tried: what is learnt is {what}, which none of these learns")
    everyone = np.arange(len(rows.labels), dtype=np.int64)
    patients = len(np.unique(rows.patients))
    if patients < 2:
        return CheckResult("not tried: one patient's records are too few to leave some out")
    units = len(everyone) if wanted.unit == RECORD_UNIT else patients
    proposed = wanted.parties.proposed_teachers(units)
    teachers = min(proposed, patients)
    folds = teachers if teachers > 1 else min(_FOLDS, patients)
    parts = split_by_patient(everyone, rows.patients, folds=folds, seed=0)
    tried = right = usual = number = 0
    started = time.monotonic()
    most = np.bincount(rows.labels).argmax()
    for part in parts[:_MOST_TRIED]:
        others = np.setdiff1d(everyone, part)
        own, left_out = (part, others) if teachers > 1 else (others, part)
        asked = _some(left_out)
        truth = rows.labels[asked]
        right += int((predict_by_teacher(rows, own, asked, wanted) == truth).sum())
        usual += int((truth == most).sum())
        tried, number = tried + len(truth), number + 1
        if time.monotonic() > started + _PATIENCE_S:
            break
    accuracy, chance = right / tried, usual / tried
    # Several teachers may be asked about the same record: no independent trials, so there is no interval.
    told = f"{share_text(accuracy, tried)} right of {tried:,}"
    if teachers == 1:
        told = accuracy_text(accuracy, tried)
    name = wanted.teacher.name if wanted.spec.schema is not None else QUICK
    text = (
        f"{number} of {name} tried on records that they did not see: {told}, where always naming the most "
        f"frequent class is {share_text(chance, tried)}"
    )
    if proposed < wanted.parties.teachers_per_client:
        text += f"; for so many --teachers {proposed} is proposed"
    if accuracy <= chance:
        poor = f"{text}: do labels and records belong together?"
        poor += " With fewer teachers each learns from more" if teachers > 1 else ""
        return CheckResult(warnings=(poor,))
    return CheckResult(text, file_text="tried; what came of it is shown on a terminal only")


def _some(index: Ints) -> Ints:
    """At random, as files are often in the order of their classes."""
    return np.random.default_rng(0).permutation(index)[:_MOST_RECORDS]


def predict_by_teacher(rows: Rows, own: Ints, asked: Ints, wanted: WantedRecords) -> Ints:
    """Classes of the records `asked` by a teacher of the records `own`, both int64 indices."""
    classes = len(wanted.spec.classes)
    if wanted.spec.schema is not None:
        own_code = wanted.teacher.own  # none of it is run before the hospital agreed
        settings = TeacherSettings(name=TABLE_TEACHERS[0]) if own_code else wanted.teacher
    else:
        own, settings = _some(own), TeacherSettings(name=QUICK)
    train = find_part(settings.name, "teacher")
    teacher = train(rows.inputs[own], rows.labels[own], num_classes=classes, settings=settings, seed=0)
    found: Ints = teacher.predict(rows.inputs[asked])
    return found

"""A pilot before a study: class sums and votes in small, on public inputs whose labels are known.

Labelled inputs stand for records. A student of their sums, under as much less noise than the study's as there
are fewer of them, is tested on inputs that it has not summed. What differs is how much the drawing of records
wavers. The same of a quarter tells what that does (`Trial`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.registry import find_part
from pate_fed.errors import InputError
from pate_fed.format import counted
from pate_fed.kinds.make import feature_map_of
from pate_fed.kinds.rounds import LENGTH, MOST_UNIT, UNIT, WHOLE_LENGTH
from pate_fed.learning.features.build import anchor_places
from pate_fed.learning.features.directions import DirectionFeatures
from pate_fed.learning.features.feature_map import DIRECTIONS, FeatureMap, FeatureSettings, Pull, clipped
from pate_fed.learning.features.residuals import (
    ClassPull,
    ResidualPull,
    WholePull,
    pack_weights,
    unpack_weights,
)
from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.settings import TeacherSettings
from pate_fed.learning.students.class_sums import RARE, RoundsFit, SumsStudent
from pate_fed.privacy.mechanisms.class_sums import class_length
from pate_fed.privacy.planning.choice import (
    FEWER,
    Sites,
    Trial,
    room_for_rounds,
    rounds_of_whole,
    sums_noise,
    useful_rounds,
    whole_length,
)
from pate_fed.privacy.planning.vote_model import VoteModel, mean_right
from pate_fed.privacy.protection import HOSPITAL_UNIT, PATIENT_UNIT

if TYPE_CHECKING:
    from pate_fed.config.study import Study
    from pate_fed.data import Dataset

Ints = NDArray[np.int64]

_LEAST, _MOST = 10, 2000  # labelled inputs
_TESTS = 4  # a part of what is known
_MOST_TEACHERS = 100
_TESTED, _SURE, _MOST_DRAWS = 2000, 0.01, 32  # inputs in all, and the mean's standard error


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Inputs (n, ...), their labels int64 (n,), the hospital of each, and the patient, None: not named."""

    inputs: NDArray[Any]
    labels: Ints
    owners: Ints
    patients: Ints | None = None

    def only(self, rows: Any) -> Records:
        """Those at places, or of a mask."""
        patients = None if self.patients is None else self.patients[rows]
        return Records(self.inputs[rows], self.labels[rows], self.owners[rows], patients)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsPlan:
    """How a study of class sums asks and adds noise: `sigma` is in steps, of all hospitals together."""

    classes: int
    records: int
    sigma: float
    rounds: int = 0
    first: int = 1
    unit: int = UNIT
    most: float | None = None

    @classmethod
    def of(cls, sites: Sites, features: FeatureMap, public: NDArray[Any]) -> SumsPlan:
        """As by default, for a map of public inputs (n, ...)."""
        n, sigma = sites.hospitals * sites.records, sums_noise(sites)
        more: dict[str, Any] = {}
        if isinstance(features, DirectionFeatures):
            most, later = features.usual_lengths(sites.records, sites.classes, public)
            unit = min(MOST_UNIT, max(1, round(WHOLE_LENGTH * most / later)))
            rounds = rounds_of_whole(sites.hospitals, sites.records, sites.classes, sigma)
            more = {"first": WHOLE_LENGTH, "unit": unit, "most": most}
            sigma *= most / whole_length(sites.records, sites.classes)
        else:
            rounds = useful_rounds(n, sites.classes, sigma) if room_for_rounds(n) else 0
            more = {"first": class_length(LENGTH, sites.protection.adjacency)} if rounds else {}
        # Gaussian mechanisms of one size: the squares of what they cost add up.
        sigma *= math.sqrt(features.squared_norm * (1 + rounds)) * more.get("first", 1)
        return cls(classes=sites.classes, records=n, sigma=sigma, rounds=rounds, **more)

    def fit(self, features: FeatureMap, public: NDArray[Any]) -> RoundsFit:
        """What makes a student of the sums, with public inputs (n, ...) as the pool."""
        records = self.records if self.most is not None else None
        return RoundsFit(
            features, public, sigma=self.sigma, length=self.first, unit=self.unit, records=records
        )


def sums_student(
    features: FeatureMap, records: Records, fit: RoundsFit, plan: SumsPlan, *, seed: int, kept: Any
) -> SumsStudent:
    """The student of records' sums under seeded noise, which protects nobody: for public inputs alone.

    `kept` are the records' features, whole numbers (n, dimension); `fit` is the plan's, not begun.
    """
    rng, shape, whole = np.random.default_rng(seed), (features.dimension, plan.classes), plan.most is not None
    weights, fit = np.zeros(shape), fit.again(sigma=plan.sigma, records=plan.records if whole else None)
    lattice, norm = features.settings.lattice, features.squared_norm
    for number in range(1 + plan.rounds):
        unit = plan.unit if number else plan.first
        pull: Pull = ClassPull(num_classes=plan.classes, length=plan.first)
        if whole:
            pull = WholePull(weights=weights, lattice=lattice, length=WHOLE_LENGTH, unit=unit)
        elif number:
            pull = ResidualPull(weights=weights, squared_norm=norm, length=LENGTH, unit=unit)
        noisy = np.rint(rng.normal(0, plan.sigma, shape)).astype(np.int64)
        for own in np.unique(records.owners) if whole else (None,):
            rows = slice(None) if own is None else records.owners == own
            part, groups = records.only(rows), None if whole else records.patients
            how: dict[str, Any] = {"num_classes": plan.classes, "groups": groups, "kept": kept[rows]}
            total = features.contributions(part.inputs, part.labels, pull=pull, **how)
            most = None if plan.most is None else int(norm * (WHOLE_LENGTH * plan.most) ** 2)
            noisy += total if most is None else clipped(total, most)
        weights = fit.go_on(weights, noisy, number) if number else fit.begin(noisy)
        if not plan.rounds and not whole:
            return fit.student(fit.fitted, sharpness=fit.sharpness)
        weights = unpack_weights(pack_weights(weights), shape)
    return fit.student(weights)


def apart(settings: FeatureSettings, public: Records, seed: int) -> tuple[NDArray[Any], Records]:
    """The pool of a pilot, drawn anchors of its map in their places, and the others: of other patients.

    An anchor's own feature holds most of it, so that as a record it would teach less than a study's do.
    """
    count = len(public.labels)
    order, anchors = _shuffled(public, seed), anchor_places(settings, count)
    pool = np.empty_like(public.inputs)
    others = np.setdiff1d(np.arange(count), anchors)
    pool[np.concatenate([anchors, others])] = public.inputs[order]
    return pool, public.only(order[len(anchors) :])


def _shuffled(public: Records, seed: int) -> Ints:
    """The records' places, drawn by a seed, a patient's together."""
    names = np.arange(len(public.labels))
    if public.patients is not None:
        names = np.unique(public.patients, return_inverse=True)[1]
    drawn = np.random.default_rng([0, seed]).permutation(len(names))
    return np.argsort(drawn[names], kind="stable")


def pilot_sums(
    settings: FeatureSettings, public: Records, plan_of: Callable[..., SumsPlan], *, own: int = 1
) -> Trial:
    """What a student of as many records as the study's is right in, as far as labelled inputs tell.

    At most three quarters of those that are no anchors, drawn at random, are records, whole patients where
    these are named, and the others test. That is drawn again until its mean is sure enough, of a table with
    other anchors. `plan_of` takes the map and its pool. A hospital whose whole sum is cut has `own`. Where a
    class is rare, each counts alike, as with the student.
    """
    found, spread, tested = list[tuple[float, float]](), math.inf, 0
    counts = np.bincount(public.labels)
    alike = bool((counts + 2 * np.sqrt(counts) < RARE * counts.mean()).any())  # not by chance
    while len(found) < _MOST_DRAWS and (tested < _TESTED or spread > _SURE):
        seed = len(found)
        if not found or settings.columns:  # the map of images takes longer than all else
            pool, known = apart(settings, public, seed)
            features = feature_map_of(settings, pool)
            plan, kept, count = plan_of(features, pool), features.features(known.inputs), len(known.labels)
            scaled = (kept / math.sqrt(features.squared_norm)).astype(np.float32)
            full, fit = min(plan.records, count - max(1, count // _TESTS)), plan.fit(features, pool)
        rest, test = np.split(_shuffled(known, seed), [full])
        right = []
        for size in (full, max(2, full // FEWER)):
            each = size if plan.most is None else own
            rows = rest[: max(1, size // each) * each][:size]  # whole hospitals
            records = replace(known.only(rows), owners=np.arange(len(rows)) // each)
            share = len(rows) / plan.records  # of the noise: signals are alike
            most = None if plan.most is None else plan.most * min(1.0, len(rows) / each)
            less = replace(plan, records=len(rows), sigma=plan.sigma * share, most=most)
            student = sums_student(features, records, fit, less, seed=seed, kept=kept[rows])
            truth = known.labels[test]
            right.append(mean_right(student.predict_of(scaled[test]) == truth, truth, alike=alike))
        found.append((right[0], right[1]))
        tested += count - full
        spread = float(np.std([each for each, _ in found])) / math.sqrt(len(found))
    mean, fewer = (float(each) for each in np.mean(found, axis=0))
    effective = len(counts) / float((1 / np.maximum(counts, 1)).mean()) if alike else len(public.labels)
    effective *= 1 if settings.columns else count / len(public.labels)  # of a table all test, in turn
    error = math.hypot(spread, math.sqrt(mean * (1 - mean) / effective))
    return Trial(rows=full, right=mean, fewer=fewer, error=error, pool=len(public.labels), alike=alike)


def pilot_votes(settings: TeacherSettings, public: Records, sites: Sites) -> VoteModel:
    """How teachers vote on half of the labelled inputs; each learnt from some of the others."""
    taught, asked = np.array_split(_shuffled(public, 0), 2)
    own = min(len(taught), max(1, sites.hospitals * sites.records // sites.teachers))
    count, more = min(sites.teachers, _MOST_TEACHERS), dict[str, Any]()
    if public.inputs.ndim > 2:
        more = {"encoder": fit_encoder(public.inputs)}
    totals = np.zeros((len(asked), sites.classes))
    train = partial(find_part(settings.name, "teacher"), num_classes=sites.classes, settings=settings, **more)
    for seed in range(count):
        rows = np.random.default_rng([1, seed]).choice(taught, own, replace=False)
        known = public.only(rows)
        made = train(known.inputs, known.labels, seed=seed)
        totals[np.arange(len(asked)), made.predict(public.inputs[asked])] += 1
    told = f"a pilot of {counted(count, 'teacher')} on {len(asked):,} labelled public inputs"
    return VoteModel(totals / count, public.labels[asked], told)


def with_pilot(sites: Sites, study: Study, dataset: Dataset) -> Sites:
    """The sites with pilots on the data set's public inputs, at most 2,000 of those that have a label.

    What a hospital has alone, if nobody stated it, is the better of a teacher and its own sums without noise.

    Raises:
        InputError: too few have a label, or no noise of a usual size keeps ε.
    """
    known = np.flatnonzero(dataset.public_labels >= 0)[:_MOST]
    if len(known) < _LEAST:
        raise InputError(f"--pilot: {len(known)} public inputs have a label, {_LEAST} at least are meant")
    inputs, labels = np.asarray(dataset.public_images[known]), np.asarray(dataset.public_labels[known])
    patients = dataset.public_patients if sites.protection.unit == PATIENT_UNIT else None
    patients = None if patients is None else patients[known]
    numbers = inputs.shape[1] if study.data.own and inputs.ndim == 2 else 0
    settings = study.sums.of_inputs(study.data.table, numbers=numbers)
    if sites.protection.unit == HOSPITAL_UNIT:
        settings = replace(settings, name=DIRECTIONS)
    public = Records(inputs, labels, 0 * labels, patients)
    found = pilot_sums(settings, public, partial(SumsPlan.of, sites), own=sites.records)
    tried = replace(sites, pilot=found, votes=pilot_votes(study.teacher, public, sites))
    if sites.alone is not None:
        return tried
    own = SumsPlan(classes=sites.classes, records=sites.records, sigma=1.0)
    alone = pilot_sums(settings, public, lambda *_: own).expected(sites.records, sites.classes)
    return replace(tried, alone=max(alone, tried.agreement, 1.001 / sites.classes))

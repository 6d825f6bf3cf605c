"""A pilot before a study: class sums in small, on public inputs whose labels are known.

Labelled inputs stand for records. A student of their sums, under as much less noise than the study's as there
are fewer of them, is tested on inputs that it has not summed. Where the study has more records than there are
inputs, the same of a quarter of them tells how much more would help (`Trial`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.kinds.rounds import LENGTH, MOST_UNIT, UNIT, WHOLE_LENGTH
from pate_fed.learning.features.directions import DirectionFeatures
from pate_fed.learning.features.feature_map import FeatureMap, Pull, clipped
from pate_fed.learning.features.residuals import (
    ClassPull,
    ResidualPull,
    WholePull,
    pack_weights,
    unpack_weights,
)
from pate_fed.learning.students.class_sums import RoundsFit, SumsStudent, fit_sums_student
from pate_fed.privacy.mechanisms.class_sums import SumShape, class_length, least_share
from pate_fed.privacy.planning.choice import (
    Sites,
    Trial,
    room_for_rounds,
    rounds_of_whole,
    sums_noise,
    useful_rounds,
)
from pate_fed.privacy.protection import HOSPITAL_UNIT, Shares

Ints = NDArray[np.int64]

_LEAST, _PARTS = 10, 5  # labelled inputs, and into how many parts they are dealt, one of which tests
_LESS = 4  # times fewer, to see how much more would help


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Inputs (n, ...), their labels int64 (n,), the hospital of each, and the patient, None: not named."""

    inputs: NDArray[Any]
    labels: Ints
    owners: Ints
    patients: Ints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SumsPlan:
    """How a study of class sums asks and adds noise; `sigma` is in steps, of all hospitals together."""

    classes: int
    records: int
    rounds: int
    sigma: float
    first: int = 1
    unit: int = UNIT
    most: float | None = None

    @classmethod
    def of(cls, sites: Sites, features: FeatureMap, public: NDArray[Any]) -> SumsPlan:
        """As by default, for a map of public inputs (n, ...)."""
        n, whole = sites.hospitals * sites.records, sites.protection.unit == HOSPITAL_UNIT
        size: dict[str, Any] = {"num_classes": sites.classes, "dimension": features.dimension}
        norm, protection, given = features.squared_norm, sites.protection, dict[str, Any]()
        if whole:
            assert isinstance(features, DirectionFeatures)
            most, later = features.usual_lengths(sites.records, sites.classes, public)
            unit = min(MOST_UNIT, max(1, round(WHOLE_LENGTH * most / later)))
            rounds = rounds_of_whole(sites.hospitals, sites.records, sites.classes, sums_noise(sites))
            given = {"first": WHOLE_LENGTH, "unit": unit, "most": most}
            protection, length = replace(protection, votes_moved=most), WHOLE_LENGTH
        else:
            rounds = useful_rounds(n, sites.classes, sums_noise(sites)) if room_for_rounds(n) else 0
            given, length = {"first": class_length(LENGTH, protection.adjacency)} if rounds else {}, LENGTH
        shape = SumShape(**size, squared_norm=norm)
        if given:
            more = {"questions": 1 + rounds, "class_norm": norm * given["first"] ** 2}
            shape = SumShape(**size, squared_norm=norm * length**2, **more)
        shares = sites.shares or Shares.usual(sites.hospitals)
        least = {"survivors": shares.least_voters, "colluders": shares.colluders}
        sigma = least_share(sites.epsilon, sites.delta, shape, protection, **least)
        return cls(
            classes=sites.classes, records=n, rounds=rounds, sigma=sigma * math.sqrt(sites.hospitals), **given
        )


def sums_student(
    features: FeatureMap,
    records: Records,
    public: NDArray[Any],
    plan: SumsPlan,
    *,
    seed: int,
    kept: NDArray[Any] | None = None,
) -> SumsStudent:
    """The student of records' sums under seeded noise, which protects nobody: for public inputs alone.

    `kept` are the records' features, where they are at hand.
    """
    rng, shape = np.random.default_rng(seed), (features.dimension, plan.classes)
    kept = features.features(records.inputs) if kept is None else kept
    whole, rounds = plan.most is not None, plan.most is not None or plan.rounds > 0
    weights, fit, noisy = np.zeros(shape), None, np.zeros(shape, dtype=np.int64)
    for number in range(1 + plan.rounds):
        pull: Pull | None = None
        if whole:
            unit = plan.unit if number else plan.first
            pull = WholePull(
                weights=weights, lattice=features.settings.lattice, length=WHOLE_LENGTH, unit=unit
            )
        elif rounds and not number:
            pull = ClassPull(num_classes=plan.classes, length=plan.first)
        elif number:
            norm = features.squared_norm
            pull = ResidualPull(weights=weights, squared_norm=norm, length=LENGTH, unit=plan.unit)
        total = np.zeros(shape)
        for owner in np.unique(records.owners) if whole else (None,):
            own = np.flatnonzero(records.owners == owner) if whole else np.arange(len(records.labels))
            groups = None if records.patients is None or whole else records.patients[own]
            given: dict[str, Any] = {"num_classes": plan.classes, "groups": groups, "pull": pull}
            part = features.contributions(records.inputs[own], records.labels[own], **given, kept=kept[own])
            if plan.most is not None:
                part = clipped(part, int(features.squared_norm * (WHOLE_LENGTH * plan.most) ** 2))
            total += part
        noisy = np.rint(total + rng.normal(0, plan.sigma, shape)).astype(np.int64)
        if not rounds:
            return fit_sums_student(noisy, features, public, sigma=plan.sigma)
        if fit is None:
            told = plan.records if whole else None
            how: dict[str, Any] = {"length": plan.first, "unit": plan.unit, "records": told}
            fit = RoundsFit(features, public, sigma=plan.sigma, **how)
        weights = fit.go_on(weights, noisy, number) if number else fit.begin(noisy)
        weights = unpack_weights(pack_weights(weights), shape)
    assert fit is not None
    return fit.student(weights)


def pilot_sums(
    features: FeatureMap, public: Records, sites: Sites, *, draws: int = 4, seed: int = 0
) -> Trial:
    """What a student of as many records as the study's is right in, as far as labelled inputs tell.

    Each of the `draws` leaves out a fifth of the public inputs at random, whole patients where these are
    named.

    Raises:
        InputError: fewer than 10 inputs, or no noise of a usual size keeps ε.
    """
    count = len(public.labels)
    if count < _LEAST:
        raise InputError(f"{count} public inputs with a label: {_LEAST} at least are meant")
    plan, kept = SumsPlan.of(sites, features, public.inputs), features.features(public.inputs)
    scaled = (kept / math.sqrt(features.squared_norm)).astype(np.float32)
    names = None if public.patients is None else np.unique(public.patients, return_inverse=True)[1]
    found = np.zeros((draws, 2))
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        names = (
            np.arange(count)
            if public.patients is None
            else np.unique(public.patients, return_inverse=True)[1]
        )
        order = np.argsort(rng.permutation(count)[names], kind="stable")
        test, rest = order[: count // _PARTS], order[count // _PARTS :]
        full = min(plan.records, len(rest))
        for place, size in enumerate((full, max(2, full // _LESS))):
            rows, own = rest[:size], sites.records if plan.most is not None else size
            if size >= own:  # whole hospitals
                rows = rows[: size // own * own]
            patients = None if public.patients is None else public.patients[rows]
            records = Records(public.inputs[rows], public.labels[rows], np.arange(len(rows)) // own, patients)
            less = _less(plan, len(rows), own)
            student = sums_student(features, records, public.inputs, less, seed=draw, kept=kept[rows])
            said = student.predict_proba_of(scaled[test]).argmax(axis=1)
            found[draw, place] = float((said == public.labels[test]).mean())
    right, fewer = found.mean(axis=0)
    spread = float(found[:, 0].std(ddof=1)) / math.sqrt(draws) if draws > 1 else 0.0
    error = math.hypot(spread, math.sqrt(right * (1 - right) / count))
    return Trial(rows=full, right=float(right), fewer=float(fewer), error=error)


def _less(plan: SumsPlan, rows: int, own: int) -> SumsPlan:
    """Of fewer records, of which a hospital should have `own`, under as much less noise."""
    most = None if plan.most is None else plan.most * min(1.0, rows / own)
    return replace(plan, records=rows, sigma=plan.sigma * rows / plan.records, most=most)

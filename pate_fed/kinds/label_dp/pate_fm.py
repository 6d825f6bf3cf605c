"""PATE-FM: every teacher sees all features and its share of the labels; Confident-GNMax; a FixMatch student.

Malek et al., "Antipodes of label differential privacy" (NeurIPS 2021); LDP, Algorithms 4 and 5. The shares
are disjoint, so one replaced label changes one teacher, and one vote of a query moves. What is paid for:
every query that is asked, answered or not, and every answer; both are capped beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.release import PrivateLabels
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.checks import check_count, check_delta, check_epsilon
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.mechanisms.noisy_max import ConfidentGNMax, Release
from pate_fed.privacy.protection import LABEL

Ints = NDArray[np.int64]

MOST_LABELS = 250  # as in the papers; a semi-supervised student needs no more
LEAST_LABELS = 2  # a class
THRESHOLD, NOISE1 = 0.5, 1.6  # of the teachers, and of σ2: the papers' T 400 of 800, σ1 800 and σ2 500
WANTED_NOISE = 0.3  # σ2 in units of the teachers that the plan pays for with fewer labels
QUERIES = 2  # asked at most, an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class PateFM:
    """What is fixed before the first vote is seen: the vote, and how much is asked and answered at most.

    `epsilon` is what all of that costs at `delta` if both caps are reached, whatever the votes.
    """

    mechanism: ConfidentGNMax
    asked: int
    answered: int
    epsilon: float
    delta: float

    def release(self, totals: ArrayLike, noise: NoiseSource) -> Release:
        """Answers to the queries, in order.

        Shapes: `totals` int (asked, classes).

        Raises:
            InputError: totals that are none, or more queries than the plan has.
        """
        if len(np.asarray(totals)) > self.asked:
            raise InputError(f"{len(np.asarray(totals))} queries: the plan pays for {self.asked} at most")
        return self.mechanism.release(totals, noise, max_answers=self.answered, protection=LABEL)

    def labelled(self, label: Ints, noise: NoiseSource) -> PrivateLabels:
        """Labels int64 (n,) that follow from the answers alone, at the ε of the plan."""
        return PrivateLabels(
            label=label,
            num_classes=self.mechanism.num_classes,
            epsilon=self.epsilon,
            delta=self.delta,
            how=(
                f"Confident-GNMax of {self.mechanism.num_teachers} teachers, at most {self.answered} answers"
            ),
            noise=noise.kind,
            private=noise.private,
        )


def plan_pate_fm(
    *, num_teachers: int, num_classes: int, epsilon: float, delta: float, labels: int | None = None
) -> PateFM:
    """Noise for a budget: so many `labels`, or as many up to 250 as leave σ2 at 0.3 of the teachers.

    Raises:
        InputError: counts or budget out of range.
    """
    check_count("num_teachers", num_teachers, least=2)
    check_epsilon(epsilon), check_delta(delta)
    if labels is None:
        labels = _labels(num_teachers, num_classes, epsilon, delta)
    answered = check_count("labels", labels, least=1)
    *_, (_, sigma2) = _bisected(answered, num_teachers, num_classes, epsilon, delta)
    mechanism, asked = _mechanism(sigma2, num_teachers, num_classes), QUERIES * answered
    spent = epsilon_of(mechanism.cost(asked, answered, LABEL), delta)
    return PateFM(mechanism=mechanism, asked=asked, answered=answered, epsilon=spent, delta=delta)


def _mechanism(sigma2: float, num_teachers: int, num_classes: int) -> ConfidentGNMax:
    return ConfidentGNMax(
        num_teachers=num_teachers,
        num_classes=num_classes,
        threshold=math.ceil(THRESHOLD * num_teachers),
        sigma1=NOISE1 * sigma2,
        sigma2=sigma2,
    )


def _labels(num_teachers: int, num_classes: int, epsilon: float, delta: float) -> int:
    """How many labels leave σ2 at the wanted share of the teachers, by what one label's noise is."""
    most, least = max(MOST_LABELS, 5 * num_classes), LEAST_LABELS * num_classes

    def at(sigma: float) -> int:
        return max(least, min(most, math.floor((WANTED_NOISE * num_teachers / sigma) ** 2)))

    for low, high in _bisected(1, num_teachers, num_classes, epsilon, delta):
        if at(low) == at(high):  # many are at a limit, which takes no exact noise
            break
    return at(high)


def _bisected(
    answered: int, num_teachers: int, num_classes: int, epsilon: float, delta: float
) -> Iterator[tuple[float, float]]:
    """Ever closer bounds, to one part in 1,000, of the least σ2 at which both caps cost at most ε.

    The upper one always does.
    """
    low, high = 1e-2, 1e8
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        mechanism = _mechanism(middle, num_teachers, num_classes)
        cost = mechanism.cost(QUERIES * answered, answered, LABEL)
        # Outcomes never cost more than the totals that they came from, whose price is known at once.
        fits = epsilon_of(cost.as_totals, delta) <= epsilon or epsilon_of(cost, delta) <= epsilon
        low, high = (low, middle) if fits else (middle, high)
        yield low, high


def shares_of_labels(records: int, num_teachers: int, *, seed: int) -> list[Ints]:
    """Disjoint positions, one share a teacher, all of them together every record.

    Raises:
        InputError: more teachers than records.
    """
    if not 1 <= num_teachers <= records:
        raise InputError(f"--teachers {num_teachers}: must be from 1 to the {records} records")
    order = np.random.default_rng(seed).permutation(records)
    return [np.asarray(part, dtype=np.int64) for part in np.array_split(order, num_teachers)]

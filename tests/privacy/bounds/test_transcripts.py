"""Whole transcripts of adaptive studies with few teachers: their true δ against the stated one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from winner_laws import gaussian_masses, winner_law

from pate_fed.privacy import RECORD, ConfidentGNMax, GNMax, Protection, epsilon_of

Floats = NDArray[np.float64]


def _histograms(teachers: int, classes: int) -> list[tuple[int, ...]]:
    every = itertools.product(range(teachers + 1), repeat=classes)
    return [row for row in every if sum(row) == teachers]


def _query_laws(
    mechanism: GNMax | ConfidentGNMax, teachers: int, most: int, votes: int = 1
) -> tuple[Floats, Floats]:
    """Laws of one query on pairs that up to `votes` votes part, the `most` pairs that it tells apart best.

    Shapes: (pairs, classes + 1) both, the last outcome "not answered".
    """
    sigma2 = mechanism.sigma if isinstance(mechanism, GNMax) else mechanism.sigma2
    argmax = gaussian_masses(sigma2, 40)
    laws: dict[tuple[int, ...], Floats] = {}
    for row in _histograms(teachers, mechanism.num_classes):
        answered = 1.0
        if isinstance(mechanism, ConfidentGNMax):
            bit = gaussian_masses(mechanism.sigma1, 60)
            answered = float(bit[60 + round(mechanism.threshold) - max(row) :].sum())
        laws[row] = np.append(answered * winner_law(row, argmax), 1 - answered)
    pairs = [
        (laws[row], laws[other])
        for row, other in itertools.permutations(laws, 2)
        if sum(abs(a - b) for a, b in zip(row, other, strict=True)) <= 2 * votes
    ]
    ranked = sorted(pairs, key=lambda pair: -float(np.sum((pair[0] - pair[1]) ** 2 / (pair[1] + 1e-12))))
    first, second = zip(*ranked[:most], strict=True)
    return np.array(first), np.array(second)


def _true_delta(here: Floats, there: Floats, *, epsilon: float, asked: int, labels: int) -> float:
    """δ at ε of the worst adaptive analyst, who chooses each query's neighbours from past outputs."""

    def worst(p: Floats, q: Floats, asked: int, labels: int) -> Floats:
        if asked == 0 or labels == 0:
            left: Floats = np.maximum(p - np.exp(epsilon) * q, 0.0)
            return left
        total = np.zeros((len(p), len(here)))
        for outcome in range(here.shape[1]):
            answered = outcome < here.shape[1] - 1
            after = worst(
                np.outer(p, here[:, outcome]).ravel(),
                np.outer(q, there[:, outcome]).ravel(),
                asked - 1,
                labels - answered,
            )
            total += after.reshape(total.shape)
        best: Floats = total.max(axis=1)
        return best

    one = np.ones(1)
    return float(worst(one, one, asked, labels)[0])


STUDIES = [
    # teachers, threshold, σ1, σ2, asked, labels; the least that the true δ may be of the stated one
    (7, None, None, 2.0, 4, 4, 0.5),
    (6, None, None, 1.2, 3, 3, 0.5),
    (7, 0, 30.0, 2.0, 4, 3, 0.2),
    (7, 5, 2.0, 30.0, 4, 2, 0.02),
    (5, 3, 3.0, 3.0, 4, 2, 0.1),
    (5, 3, 2.0, 2.0, 3, 2, 0.2),
]


@pytest.mark.parametrize("delta", [0.2, 0.1])
@pytest.mark.parametrize(("teachers", "threshold", "sigma1", "sigma2", "asked", "labels", "least"), STUDIES)
def test_the_true_delta_of_whole_transcripts_is_below_the_stated_one(
    teachers: int,
    threshold: int | None,
    sigma1: float | None,
    sigma2: float,
    asked: int,
    labels: int,
    least: float,
    delta: float,
) -> None:
    """The rest of the gap is RDP's at few queries, and that few of the pairs of neighbours are tried."""
    size = {"num_teachers": teachers, "num_classes": 3}
    mechanism: GNMax | ConfidentGNMax = GNMax(**size, sigma=sigma2)
    if threshold is not None and sigma1 is not None:
        mechanism = ConfidentGNMax(**size, threshold=threshold, sigma1=sigma1, sigma2=sigma2)
    here, there = _query_laws(mechanism, teachers, 8)
    stated = epsilon_of(mechanism.cost(asked, labels, RECORD), delta)
    true = _true_delta(here, there, epsilon=stated, asked=asked, labels=labels)
    assert least * delta <= true <= delta


@pytest.mark.parametrize(
    ("votes", "sigma", "asked", "least"), [(2, 2.0, 1, 0.4), (2, 3.0, 3, 0.4), (3, 3.0, 2, 0.4)]
)
def test_the_same_where_a_unit_sways_several_votes(
    votes: int, sigma: float, asked: int, least: float
) -> None:
    """They may go from and to any classes, otherwise in each query."""
    delta = 0.2
    mechanism = GNMax(num_teachers=7, num_classes=3, sigma=sigma)
    here, there = _query_laws(mechanism, 7, 12, votes)
    stated = epsilon_of(mechanism.cost(asked, asked, Protection(unit="hospital", votes_moved=votes)), delta)
    true = _true_delta(here, there, epsilon=stated, asked=asked, labels=asked)
    assert least * delta <= true <= delta

"""Randomised response and the response with a prior: their odds, laws and frequencies."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published import randomized_response_epsilon
from scipy import stats

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.randres import WORDS, PriorRes, RandRes, keep_words
from pate_fed.privacy import SeededNoise, SystemNoise

# Table 2 of Tang et al.: classes, ε, the private label accuracy that is printed, in %.
TABLE_2 = [
    (10, 0.5, 15.5), (10, 1.0, 23.2), (10, 2.0, 45.2), (10, 4.0, 85.9),
    (100, 1.0, 2.7), (100, 2.0, 6.9), (100, 4.0, 35.8), (100, 6.0, 80.4),
]  # fmt: skip


@pytest.mark.parametrize(("classes", "epsilon", "printed"), TABLE_2)
def test_table_2_by_formula_and_by_sampling(classes: int, epsilon: float, printed: float) -> None:
    mechanism = RandRes(num_classes=classes, epsilon=epsilon)
    formula = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    assert mechanism.probability == pytest.approx(formula, rel=1e-15)
    # The table shows one draw on 50,000 labels: within three deviations of the formula, and its rounding.
    spread = 100 * math.sqrt(formula * (1 - formula) / 50_000)
    assert 100 * formula == pytest.approx(printed, abs=3 * spread + 0.05)
    labels = np.arange(50_000) % classes
    drawn = mechanism.release(labels, SeededNoise(0))
    assert 100 * np.mean(drawn.label == labels) == pytest.approx(100 * formula, abs=4 * spread)
    assert drawn.delta == 0 and drawn.epsilon == epsilon and not drawn.private


@settings(max_examples=60, deadline=None)
@given(
    epsilon=st.floats(1e-9, 200, allow_nan=False), classes=st.sampled_from([2, 3, 10, 100, 1000]),
)  # fmt: skip
def test_the_odds_never_pass_e_to_the_epsilon(epsilon: float, classes: int) -> None:
    mechanism = RandRes(num_classes=classes, epsilon=epsilon)
    getcontext().prec = 80
    bound = Decimal(epsilon).exp()
    assert Decimal(mechanism.keep_words * (classes - 1)) / Decimal(WORDS - mechanism.keep_words) <= bound
    if mechanism.keep_words < WORDS - 1:  # and one draw in 2^62 more would pass it
        more = Decimal((mechanism.keep_words + 1) * (classes - 1)) / Decimal(WORDS - mechanism.keep_words - 1)
        assert more > bound * (1 - Decimal(10) ** -50)
    if 1e-6 < epsilon < 15:
        assert randomized_response_epsilon(classes, mechanism.probability) == pytest.approx(epsilon, rel=1e-8)


def test_randres_frequencies_are_p_and_uniform_else() -> None:
    mechanism = RandRes(num_classes=5, epsilon=0.7)
    for true in range(5):
        drawn = mechanism.release(np.full(40_000, true), SystemNoise()).label
        expected = np.full(5, 40_000 * mechanism.other)
        expected[true] = 40_000 * mechanism.probability
        assert stats.chisquare(np.bincount(drawn, minlength=5), expected).pvalue > 1e-9
        wrong = np.roll(expected, 1)
        assert stats.chisquare(np.bincount(drawn, minlength=5), wrong).pvalue < 1e-9


@given(
    epsilon=st.floats(0.01, 8), data=st.data(), classes=st.integers(2, 8),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_the_response_with_a_prior_keeps_epsilon(epsilon: float, data: st.DataObject, classes: int) -> None:
    """All output probabilities of all labels, in closed form from k and the words."""
    prior = np.array([data.draw(st.floats(0.001, 1)) for _ in range(classes)])
    mechanism = PriorRes(num_classes=classes, epsilon=epsilon)
    k = int(mechanism.choices((prior / prior.sum())[None])[0])
    if k == 1:
        return
    keep = keep_words(epsilon, k) / WORDS
    law = np.full((classes, k), 1 / k)
    law[:k] = (1 - keep) / (k - 1)
    law[np.arange(k), np.arange(k)] = keep
    assert (law.max(axis=0) / law.min(axis=0)).max() <= math.exp(epsilon) * (1 + 1e-12)


def test_the_response_with_a_prior_has_that_law() -> None:
    prior = np.tile([0.5, 0.3, 0.15, 0.05], (30_000, 1))
    mechanism = PriorRes(num_classes=4, epsilon=1.0)
    k = int(mechanism.choices(prior[:1])[0])
    slow = [math.e / (math.e + j - 1) * sum(sorted(prior[0])[-j:]) for j in range(1, 5)]
    assert k == int(np.argmax(slow)) + 1 == 2
    keep = math.e / (math.e + 1)
    for label, expected in ((0, keep), (1, 1 - keep), (2, 0.5), (3, 0.5)):
        found = mechanism.release(np.full(30_000, label), prior, SeededNoise(label)).label
        assert set(found.tolist()) <= {0, 1}
        assert np.mean(found == 0) == pytest.approx(expected, abs=0.015)
    sure = np.tile([1.0, 0.0, 0.0, 0.0], (5, 1))
    assert mechanism.release(np.full(5, 3), sure, SeededNoise(0)).label.tolist() == [0] * 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandRes(num_classes=10, epsilon=0), "epsilon"),
        (lambda: RandRes(num_classes=10, epsilon=-1.0), "epsilon"),
        (lambda: RandRes(num_classes=10, epsilon=1e-12), "at least 1e-09"),
        (lambda: RandRes(num_classes=10, epsilon=math.nan), "epsilon"),
        (lambda: RandRes(num_classes=1, epsilon=1.0), "num_classes"),
        (lambda: PriorRes(num_classes=10, epsilon=-2), "epsilon"),
        (lambda: RandRes(num_classes=3, epsilon=1).release([0, 3], SeededNoise(0)), "outside the classes"),
        (lambda: RandRes(num_classes=3, epsilon=1).release([-1], SeededNoise(0)), "outside the classes"),
        (lambda: RandRes(num_classes=3, epsilon=1).release([], SeededNoise(0)), "at least one"),
        (lambda: RandRes(num_classes=3, epsilon=1).release([0.5], SeededNoise(0)), "whole number"),
        (lambda: PriorRes(num_classes=3, epsilon=1).release([0], [[1.0, 0.0]], SeededNoise(0)), "prior"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]

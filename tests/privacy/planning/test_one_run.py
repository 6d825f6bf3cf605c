"""The one-run bound: its formula against sums of plain fractions, and that it is a lower bound."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pate_fed.privacy.planning.attack import chance_of_guesses, one_run_bound


def plainly(right: int, guesses: int, canaries: int, odds: Fraction, delta: Fraction) -> float:
    """Theorem 3.1's right side, with e^ε as a fraction: every sum over all outcomes."""
    share = odds / (1 + odds)
    law = [
        math.comb(guesses, hits) * share**hits * (1 - share) ** (guesses - hits)
        for hits in range(guesses + 1)
    ]
    most = max(
        (2 * canaries * delta / i * sum(law[max(0, right - i) : right]) for i in range(1, canaries + 1)),
        default=Fraction(0),
    )
    return float(min(1, sum(law[right:]) + most))


@pytest.mark.parametrize("delta", [Fraction(1, 10**6), Fraction(1, 1000), Fraction(1, 10)])
@pytest.mark.parametrize("odds", [Fraction(1), Fraction(3, 2), Fraction(20)])
def test_the_chance_is_the_theorem_s(odds: Fraction, delta: Fraction) -> None:
    for right, guesses, canaries in ((0, 1, 1), (1, 1, 4), (3, 7, 7), (7, 7, 20), (19, 25, 40), (40, 40, 50)):
        given = {"epsilon": math.log(odds), "delta": float(delta)}
        found = chance_of_guesses(right, guesses=guesses, canaries=canaries, **given)
        assert found == pytest.approx(plainly(right, guesses, canaries, odds, delta), rel=1e-9, abs=1e-15)


def test_what_is_refuted_is_the_largest_of_all() -> None:
    given: dict[str, Any] = {"guesses": 1000, "canaries": 20_000, "delta": 1e-7}
    found = one_run_bound(900, confidence=0.99, **given)
    assert chance_of_guesses(900, epsilon=found, **given) <= 0.01
    assert chance_of_guesses(900, epsilon=found + 1e-6, **given) > 0.01
    assert 1.7 < found < math.log(9)
    assert one_run_bound(500, confidence=0.99, **given) == 0.0
    assert one_run_bound(900, confidence=0.999, **given) < found


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_randomised_response_attains_it_and_is_accused_as_seldom_as_stated(epsilon: float) -> None:
    """Its right guesses are binomial, so nothing is lost but the confidence's own share."""
    rights = np.random.default_rng(1).binomial(300, 1 / (1 + math.exp(-epsilon)), size=400)
    given: dict[str, Any] = {"guesses": 300, "canaries": 300, "delta": 1e-12, "confidence": 0.9}
    of = {right: one_run_bound(right, **given) for right in set(rights.tolist())}
    bounds = np.array([of[right] for right in rights.tolist()])
    assert 0.03 < (bounds > epsilon).mean() < 0.15
    assert np.median(bounds) >= 0.8 * epsilon

"""The second tier of the independent verifier, beside what is stated and votes that an adversary may give."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from pate_fed.privacy import RECORD, ConfidentGNMax, GNMax, LNMax, capped_cost_epsilon
from pate_fed.privacy.ledger import verify_exact, verify_independent


@pytest.mark.parametrize(
    ("mechanism", "asked", "answered", "delta"),
    [
        (GNMax(sigma=6.0, classes=3), 4, 4, 1e-7),
        (GNMax(sigma=6.0, classes=3), 80, 80, 1e-5),
        (LNMax(scale=1.5, classes=3), 3, 3, 1e-7),
        (ConfidentGNMax(classes=3, threshold=8, sigma1=6.0, sigma2=4.0, num_teachers=12), 6, 4, 1e-5),
        (ConfidentGNMax(classes=3, threshold=8, sigma1=6.0, sigma2=4.0, num_teachers=12), 90, 40, 1e-7),
    ],
)
def test_the_second_tier_is_within_one_percent(
    mechanism: Any, asked: int, answered: int, delta: float
) -> None:
    """And never below votes of two classes that are nearly level at every query."""
    stated = capped_cost_epsilon(mechanism.cost(asked, answered, RECORD), delta)
    charge = mechanism.name, mechanism.parameters(), asked, answered
    protection = asdict(RECORD)
    terms = {"protection": protection, "delta": delta, "sanitise": None}
    first, _ = verify_independent.own_epsilon(terms, [charge])
    own = min(first, verify_exact.votes_epsilon([charge], protection, delta, first, honest=False))
    assert own <= 1.01 * stated
    noise = "laplace" if mechanism.name == "lnmax" else "gaussian"
    given = mechanism.parameters()
    level = two_classes(noise, given.get("sigma2", given.get("sigma", given.get("scale"))))
    k = np.arange(answered + 1)
    p, q = binom.logpmf(k, answered, level), binom.logpmf(k, answered, 1 - level)
    assert np.maximum(0.0, np.exp(p) - np.exp(own + q)).sum() <= delta


def two_classes(noise: str, scale: float) -> float:
    """The chance that the one ahead by a vote wins; a vote that moves makes it the chance to lose."""
    z = np.abs(np.arange(-400, 401)) / scale
    mass = np.exp(-(z * z / 2 if noise == "gaussian" else z))
    apart = np.convolve(mass / mass.sum(), mass / mass.sum())
    return float(apart[800:].sum() + apart[799] / 2)

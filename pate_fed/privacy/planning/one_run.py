"""A lower bound of ε from one run: canaries that are in by a fair coin each, and guesses which are.

Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846), Theorem 3.1. Where every coin of m moves the law of the
output by (ε, δ) at most, and r of them are guessed from it,

    P[at least v guesses are right] <= P[B >= v] + max over i from 1 to v of 2mδ/i P[v > B >= v - i],

with B binomial of r trials at e^ε/(1 + e^ε). Why: at δ = 0 a coin is even before, and by Bayes' rule its odds
after the output are e^ε at most, whatever the other coins are; so right guesses are dominated by B. A δ adds
guesses that are right beyond it, 2mδ of them in the mean at most. Given B, the worst law of their number with
that mean is 0 or one i: a linear programme. What holds at ε holds above it, so every ε at which the right
side is below the chance of a mistake is refuted, and all below it.
"""

from __future__ import annotations

import math

import numpy as np

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.noise_law import betainc
from pate_fed.privacy.checks import check_count, check_delta, is_number

_MOST = 30.0  # no number of guesses refutes a larger ε
_STEPS = 50


def chance_of_guesses(right: int, *, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Upper bound on the chance of so many right guesses where (ε, δ) holds."""
    count = np.arange(1, right + 1)
    share = 1 / (1 + math.exp(-epsilon))
    tails = np.concatenate([[1.0], betainc(count, guesses - count + 1, share)])  # P[B >= 0..right]
    more = (tails[right - count] - tails[right]) / count
    return min(1.0, float(tails[right] + 2 * canaries * delta * more.max(initial=0.0)))


def one_run_bound(right: int, *, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """The lower bound of ε at δ, with `confidence`, of so many right guesses; how many are made was fixed.

    Raises:
        InputError: counts that do not go together, or a δ or confidence out of range.
    """
    check_count("canaries", canaries, least=1), check_delta(delta)
    if not 0 <= right <= check_count("guesses", guesses, least=1) <= canaries:
        raise InputError(
            f"right={right}, guesses={guesses}, canaries={canaries}: must not fall in this order"
        )
    if not is_number(confidence) or not 0.5 < confidence < 1:
        raise InputError(f"confidence={confidence!r}: must be above 0.5 and below 1")
    low, high = -1.0, _MOST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        chance = chance_of_guesses(
            right, guesses=guesses, canaries=canaries, epsilon=max(middle, 0.0), delta=delta
        )
        low, high = (middle, high) if chance <= 1 - confidence else (low, middle)
    return max(low, 0.0)

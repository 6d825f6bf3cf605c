"""The noise and the caps that spend a budget: what is stated comes close to it and never passes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_SPENT = 0.995  # part of the budget at which no better noise is searched for
_AIM = 0.998
_TRIES = 10
_MANY = 100  # labels of which one is less than a hundredth, so that their number may do the rest
_SLOW = 100.0  # votes of noise from which pricing takes long, so that their number does it too
_WIDE = 1e7  # votes of noise that nobody learns anything through


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStudy:
    """A study of which the noise of the vote and the number of labels are open.

    By noise in votes and labels `price` is the ε that is stated and `about` what they reveal, as a ρ; `room`
    is about the ρ that an ε buys. These two are estimates that steer. No less noise than `least_sigma` is
    taken.
    """

    price: Callable[[float, int], float]
    about: Callable[[float, int], float]
    room: Callable[[float], float]
    most_labels: int
    least_sigma: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Noise and labels within a budget, and the ε that is stated for them."""

    sigma: float
    labels: int
    epsilon: float


def spend(study: OpenStudy, *, epsilon: float, labels: int) -> Spent | None:
    """Noise for so many labels, or about so many, of which the stated ε is close to `epsilon` and not above.

    None where the budget does not buy one label.
    """
    labels, rho, best = min(labels, study.most_labels), study.room(epsilon), None
    sigma = _noise(study, labels, rho)
    for _ in range(_TRIES):
        # Several offers of much noise then have one, which is priced once, and their counts do the rest.
        sigma = round_up(sigma, digits=2 if sigma >= _SLOW and labels < study.most_labels else 4)
        if sigma > _WIDE:
            break
        found = study.price(sigma, labels)
        if found <= epsilon and (best is None or found > best.epsilon):
            best = Spent(sigma=sigma, labels=labels, epsilon=found)
        if best is not None and best.epsilon >= _SPENT * epsilon:
            return best
        if labels < study.most_labels and (labels >= _MANY or sigma >= _SLOW or sigma <= study.least_sigma):
            best = _count(study, sigma, (labels, found), epsilon)
            if best is None or best.labels < study.most_labels or best.epsilon >= _SPENT * epsilon:
                return best
            labels, found = best.labels, best.epsilon  # no more labels are to be had: the noise does the rest
        # The estimate errs by a factor that hardly changes with the noise.
        rho *= study.room(_AIM * epsilon) / max(study.room(found), 1e-300)
        before, sigma = sigma, _noise(study, labels, rho)
        if round_up(sigma) == before:
            sigma = before * 1.001 if found > epsilon else before
            if sigma == before:
                break
    return best


def _count(study: OpenStudy, sigma: float, first: tuple[int, float], epsilon: float) -> Spent | None:
    """The most labels that this noise allows, but for a fraction of a hundredth."""
    low, high, best = 0, study.most_labels + 1, None
    labels, found = first
    for _ in range(2 * _TRIES):
        if found <= epsilon:
            low, best = labels, Spent(sigma=sigma, labels=labels, epsilon=found)
        else:
            high = labels
        if high - low <= 1 or (best is not None and best.epsilon >= _SPENT * epsilon):
            break
        guess = math.floor(labels * study.room(_AIM * epsilon) / max(study.room(found), 1e-300))
        labels = guess if low < guess < high else (low + high) // 2
        found = study.price(sigma, labels)
    return best


def _noise(study: OpenStudy, labels: int, rho: float) -> float:
    """The least noise with which so many labels reveal at most `rho`; ∞ where none does."""
    low, high = math.log(max(study.least_sigma, 1e-3)), math.log(2 * _WIDE)
    if study.about(math.exp(high), labels) > rho:
        return math.inf
    if study.least_sigma and study.about(study.least_sigma, labels) <= rho:
        return study.least_sigma
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if study.about(math.exp(middle), labels) > rho else (low, middle)
    return max(math.exp(high), study.least_sigma)


def round_up(sigma: float, *, digits: int = 4) -> float:
    """Rounded up to so many digits, so that what is shown is what is spent."""
    if not math.isfinite(sigma):
        return sigma
    step = 10.0 ** (math.floor(math.log10(sigma)) - digits + 1)
    return float(f"{math.ceil(sigma / step * (1 - 1e-12)) * step:.7g}")

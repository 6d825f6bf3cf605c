"""Exact log-tails of discrete Gaussian and Laplace noise, the noise that runs.

The difference of two discrete Gaussians needs no numerical convolution: completing the square gives
Pr[Z - Z' = k] = exp(-k²/(4σ²)) θ(k mod 2) / N², with N = Σ exp(-x²/(2σ²)), θ(0) = Σ exp(-x²/σ²) and
θ(1) = Σ exp(-(x + 1/2)²/σ²), sums over all integers x.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pate_fed.privacy.bounds.orders import Floats

Ints = NDArray[np.int64]

# Mass beyond this many standard deviations past a gap is below 1e-21 of the gap's own tail.
_REACH = 14.0
_SLACK = 1e-9  # more than the logarithm of a tail can be off
_WIDEST = 20_000.0  # σ beyond which a table of tails takes long


def _theta(width: float, shift: float) -> float:
    """Σ over integers x of exp(-(x + shift)²/width²)."""
    if width > 6:  # Poisson summation: the next term is exp(-π² width²) < 1e-154
        return width * math.sqrt(math.pi)
    x = np.arange(-64, 65) + shift
    return float(np.exp(-((x / width) ** 2)).sum())


def log_tail_gaussian(gap: Ints, sigma: float) -> Floats:
    """Log-tail ln Pr[Z >= gap] of the discrete Gaussian. Shapes: any to the same, in votes."""
    normaliser = math.log(_theta(math.sqrt(2) * sigma, 0.0))
    return _log_tail(gap, sigma, lambda k: -((k / sigma) ** 2) / 2 - normaliser)


def log_tail_gaussian_difference(gap: Ints, sigma: float) -> Floats:
    """Log-tail ln Pr[Z - Z' >= gap] of two independent discrete Gaussians; a tie counts at gap 0."""
    return _log_tail(gap, math.sqrt(2) * sigma, lambda k: log_mass_gaussian_difference(k, sigma))


def log_mass_gaussian_difference(k: Ints, sigma: float) -> Floats:
    """Ln Pr[Z - Z' = k] of two independent discrete Gaussians. Shapes: any to the same, in votes."""
    normaliser = 2 * math.log(_theta(math.sqrt(2) * sigma, 0.0))
    with np.errstate(divide="ignore"):  # θ(1) underflows for σ below 0.02: an odd difference never happens
        parity = np.log([_theta(sigma, 0.0), _theta(sigma, 0.5)]) - normaliser
    found: Floats = parity[k % 2] - ((k / sigma) / 2) ** 2
    return found


def moved_count_epsilon(sigma: float, delta: float) -> float:
    """ε at δ of discrete Gaussian noise on counts of which one loses what another gains, 1; rounded up.

    The loss grows with the difference D of the two noises, so δ(ε) = max over g of Pr[D >= g] - e^ε Pr[D >=
    g + 2], and ε = max over g of ln((Pr[D >= g] - δ) / Pr[D >= g + 2]). ∞ for noise that needs a long table.
    """
    if sigma > _WIDEST:
        return math.inf
    # Chernoff: beyond this Pr[D >= g] is below δ.
    most = math.ceil(2 * sigma * math.sqrt(-math.log(delta))) + 1
    tail = log_tail_gaussian_difference(np.arange(most + 3), sigma)
    left = np.exp(tail[:-2] + _SLACK) - delta
    open_ = left > 0
    found = np.log(left[open_]) - tail[2:][open_] + _SLACK
    return float(found.max(initial=0.0))


def log_tail_laplace_difference(gap: Ints, scale: float) -> Floats:
    """Log-tail ln Pr[Z - Z' >= gap] of two independent discrete Laplace variables, gap >= 0."""
    ratio, step = math.exp(-1 / scale), -math.expm1(-1 / scale)
    both = 2 * ratio**2 / (step * (1 + ratio))
    factor = (gap + 1 + both) / step + ratio / step**2
    tail: Floats = 2 * math.log(step / (1 + ratio)) - gap / scale + np.log(factor)
    return np.minimum(tail, 0.0)


def _log_tail(gap: Ints, deviation: float, log_mass: Callable[[Ints], Floats]) -> Floats:
    """Logarithm of Pr[K >= gap] of a symmetric integer law with a Gaussian fall, from a table of masses."""
    gap = np.asarray(gap, dtype=np.int64)
    if gap.size == 0:
        return np.zeros(gap.shape)
    above = np.where(gap > 0, gap, 1 - gap)  # Pr[K >= g] = 1 - Pr[K >= 1 - g]
    table = _upper_tails(int(above.max()), deviation, log_mass)
    tail = table[above]
    with np.errstate(divide="ignore"):
        return np.where(gap > 0, tail, np.log1p(-np.exp(tail)))


def _upper_tails(most: int, deviation: float, log_mass: Callable[[Ints], Floats]) -> Floats:
    """Logarithm of Pr[K >= k] for k = 0..most; entry 0 is not used."""
    if most <= deviation:  # the tails are above 0.15, so nothing cancels, and no long table is needed
        mass = np.exp(log_mass(np.arange(most + 1)))
        below = np.concatenate(([0.0], np.cumsum(mass)))[: most + 1]
        near: Floats = np.log(0.5 + mass[0] / 2 - below)
        return near
    reach = most + math.ceil(_REACH * deviation) + 2
    masses = log_mass(np.arange(reach + 1))
    tails: Floats = np.logaddexp.accumulate(masses[::-1])[::-1]
    return tails[: most + 1]

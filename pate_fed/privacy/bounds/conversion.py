"""Conversion to (ε, δ)-DP of an RDP curve, as in the papers and tighter by default, and of Gaussian DP.

On a one-sided data-dependent curve the statement is one-sided too. Every ε is rounded up. Of Gaussian PATE
with Q queries asked and A answered, one vote moved: ρ = Q/(2 σ1²) + A/σ2², RDP α ρ at every order α. A is
random; the totals hold where it is capped beforehand or a filter stands in front.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.intervals import ONE, ZERO, Interval, fraction_up, gaussian_delta_within, raised
from pate_fed.privacy.bounds.noise_law import log_ndtr, log_tail_gaussian_difference
from pate_fed.privacy.checks import Floats, check_count, check_curve, check_delta, check_sigma
from pate_fed.privacy.protection import RECORD, Protection

CONVERSIONS = ("improved", "classic")

# Far above the rounding of any curve computed here, far below what a reader can see.
_ROUNDING = 1e-12
_LOG_ULPS = 8  # units in the last place, of what only leads to an ε
_SLACK = 1e-12  # more than the logarithm of a tail is off, mostly
_WIDEST_MOVED = 1000.0  # σ beyond which sums of tails take long
_NEAR = Fraction(6, 10**17)  # ln of a ratio to rounded continuous noise, for two counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedEpsilon:
    """ε at δ, rounded up, and the order it was reached at.

    `at_edge` says that the best order is an end of the grid, so that a wider grid may give a smaller ε.
    """

    epsilon: float
    delta: float
    order: float
    conversion: str
    at_edge: bool


def round_up(epsilon: float, *, magnitude: float | None = None) -> float:
    """Upper bound on ε in spite of its rounding error: a float above it; 0 and infinity stay.

    `magnitude` is the largest summand that ε came from, where it is larger than ε.
    """
    if epsilon <= 0 or math.isinf(epsilon):
        return max(epsilon, 0.0)
    return math.nextafter(epsilon + _ROUNDING * max(abs(magnitude or 0.0), epsilon), math.inf)


def overhead(orders: Floats, delta: float, conversion: str = "improved") -> Floats:
    """ε less RDP at each order: what the conversion adds.

    Classic: ln(1/δ)/(α-1) (Mironov 2017, Proposition 3). Improved: ln(1-1/α) - ln(δ α)/(α-1) (Canonne, Kamath
    and Steinke 2020, Proposition 12).

    Raises:
        InputError: an unknown conversion.
    """
    if conversion == "classic":
        return -math.log(delta) / (orders - 1)  # Mironov 2017, Proposition 3
    if conversion == "improved":
        return np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    raise InputError(f"conversion={conversion!r}: must be one of {', '.join(CONVERSIONS)}")


@lru_cache(maxsize=4096)
def overhead_up(order: float, delta: float, conversion: str = "improved") -> Fraction:
    """`overhead` at one order, certified to be no less."""
    at, less = Interval.of(order), Interval.of(Fraction(order) - 1)
    found = (ONE / Interval.of(delta)).ln() / less
    if conversion == "improved":
        found = found + (less / at).ln() - at.ln() / less
    return Fraction(found.high)


def to_epsilon(
    orders: ArrayLike, rdp: ArrayLike, delta: float, *, conversion: str = "improved"
) -> ConvertedEpsilon:
    """ε at δ of an RDP curve: the least over its orders, at least 0, rounded up.

    Shapes: `orders` and `rdp` (orders,).
    """
    grid, curve = check_curve(orders, rdp)
    extra = overhead(grid, check_delta(delta), conversion)
    candidates = curve + extra
    best = int(np.argmin(candidates))
    epsilon = math.inf
    if math.isfinite(curve[best]):
        found = Fraction(float(curve[best])) + overhead_up(float(grid[best]), float(delta), conversion)
        epsilon = fraction_up(max(found, Fraction(0)))
    return ConvertedEpsilon(
        epsilon=epsilon,
        delta=float(delta),
        order=float(grid[best]),
        conversion=conversion,
        at_edge=grid.size > 1 and candidates[best] > 0 and best in (0, grid.size - 1),
    )


def confident_rho(
    asked: int,
    answered: int,
    *,
    sigma1: float | None,
    sigma2: float,
    protection: Protection = RECORD,
) -> float:
    """ρ-zCDP of a run, so RDP α ρ (P18, Proposition 8 and section 4.2); `sigma1` None: no threshold."""
    check_count("asked", asked)
    if check_count("answered", answered) > asked:
        raise InputError(f"answered={answered}: must not be more than the {asked} queries asked")
    rho = answered * protection.l2_squared / (2 * check_sigma("sigma2", sigma2) ** 2)  # P18, Proposition 8
    if sigma1 is not None:
        rho += asked * protection.top**2 / (2 * check_sigma("sigma1", sigma1) ** 2)  # P18, section 4.2
    return rho


def confident_mu(
    asked: int, answered: int, *, sigma1: float | None, sigma2: float, protection: Protection = RECORD
) -> float:
    """μ of the Gaussian DP of a run with continuous noise: μ² = 2ρ (Balle and Wang 2018, composition)."""
    return math.sqrt(2 * confident_rho(asked, answered, sigma1=sigma1, sigma2=sigma2, protection=protection))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ of the Gaussian mechanism with sensitivity/σ = μ at ε (Balle and Wang 2018, Theorem 8), rounded up.

    Certified: Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) with every operation rounded outward.
    """
    if not 0 < mu < math.inf or not 0 <= epsilon < math.inf:
        raise InputError(f"mu={mu!r}, epsilon={epsilon!r}: mu above 0 and epsilon of at least 0 are meant")
    return min(gaussian_delta_within(Fraction(mu), Fraction(epsilon)).up(), 1.0)


def near_delta(mu: float, epsilon: float) -> float:
    """About that, and mostly above it, for much less time: from logarithms of both terms."""
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    tail = float(log_ndtr(-mu / 2 - epsilon / mu))
    second = min(epsilon + tail, first)
    slack = _LOG_ULPS * sys.float_info.epsilon * (1 + abs(first) + abs(tail) + epsilon)
    return math.nextafter(math.exp(first) * (slack - math.expm1(second - first)), math.inf)


@lru_cache(maxsize=1024)
def gaussian_dp_epsilon(mu: float, delta: float) -> float:
    """ε at δ of μ-Gaussian DP, exact and rounded up; no RDP analysis of Gaussian noise can give less.

    Certified: `gaussian_delta` at the ε that is stated is δ at most. Exact for continuous Gaussian noise. For
    integer noise RDP is the proven figure.
    """
    delta = check_delta(delta)
    if mu == 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # ρ = μ²/2 converts to at most this (Bun and Steinke 2016, Proposition 1.3).
    low, high = 0.0, round_up(mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)))
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if near_delta(mu, middle) > delta else (low, middle)
    return raised(round_up(high), lambda epsilon: gaussian_delta(mu, epsilon) <= delta)


@lru_cache(maxsize=1024)
def moved_count_delta(sigma: float, epsilon: float) -> float:
    """δ at ε of discrete Gaussian noise on counts of which one loses what another gains, 1; certified.

    The loss (1 + D)/σ² grows with the difference D of the two noises, so with k the least whole number whose
    loss is ε it is Pr[D >= k] - e^ε Pr[D >= k + 2]. With w_j = exp(-j²/(4σ²)) and E and O the sums of w over
    all even and all odd j, Pr[D = j] is w_j E or w_j O, over E² + O². Beyond 1,000 votes of noise that of
    continuous noise is stated (docs/proofs/class-sums.md, Theorem 2, for two counts), within 1e-6 of it.
    """
    square = Fraction(sigma) ** 2
    # δ falls with ε, and is below any float long before this one.
    loss = min(Fraction(epsilon), 60 / Fraction(sigma) + 2 / square)
    if sigma > _WIDEST_MOVED:
        mu = Fraction(Interval.of(2 / (square - 2)).root().up())
        found = gaussian_delta_within(mu, max(loss - 2 * _NEAR, Fraction(0)))
        return min((found * Interval.of(_NEAR).exp()).up(), 1.0)
    first = math.ceil(loss * square - 1)
    last = math.isqrt(math.ceil(first**2 + 480 * square)) + 4  # beyond, less than e^-119 of the tail
    factor = (ZERO - Interval.of(1 / (4 * square))).exp()
    weight, ratio, square_of = ONE, factor, factor * factor  # w_0, w_1/w_0, and what the ratios fall by
    below, above, ends = ([ZERO, ZERO] for _ in range(3))  # by even and odd j: sums of w, and w at `first`
    for j in range(last):
        part = above if j >= first else below
        part[j % 2] = part[j % 2] + weight
        if j in (first, first + 1):
            ends[j % 2] = weight
        weight, ratio = weight * ratio, ratio * square_of
    beyond = Interval(ZERO.low, (weight / (ONE - ratio)).high)
    above = [part + beyond for part in above]
    even, odd = (one + one + two + two for one, two in zip(below, above, strict=True))
    even = even - ONE  # but for j = 0 each stands for its negative as well
    moved = [(one - two).positive() for one, two in zip(above, ends, strict=True)]
    lost = Interval.of(loss).exp() * (even * moved[0] + odd * moved[1])
    gap = (even * above[0] + odd * above[1] - lost).positive()
    return min((gap / (even * even + odd * odd)).up(), 1.0)


def moved_count_epsilon(sigma: float, delta: float) -> float:
    """ε at δ of the noise that `moved_count_delta` is about, rounded up: there δ is what is asked at most.

    ε = max over g of ln((Pr[D >= g] - δ) / Pr[D >= g + 2]).
    """
    if sigma > _WIDEST_MOVED:
        found = gaussian_dp_epsilon(math.sqrt(2 / (sigma * sigma - 2)), delta)
        return raised(found, lambda epsilon: moved_count_delta(sigma, epsilon) <= delta)
    # Chernoff: beyond this Pr[D >= g] is below δ.
    most = math.ceil(2 * sigma * math.sqrt(-math.log(delta))) + 1
    tail = log_tail_gaussian_difference(np.arange(most + 3), sigma)
    left = np.exp(tail[:-2] + _SLACK) - delta
    open_ = left > 0
    near = np.log(left[open_]) - tail[2:][open_] + _SLACK
    return raised(float(near.max(initial=0.0)), lambda epsilon: moved_count_delta(sigma, epsilon) <= delta)


_MANY_RESPONSES = 10**6  # beyond, their table would be long


def pure_rdp(epsilon: float, order: float) -> float:
    """RDP of whatever is ε-DP, rounded up: randomised response's, of which it is a function.

    Kairouz, Oh and Viswanath 2015, Theorem 3.1; at most min(ε, ε² α/2) (Bun and Steinke 2016, Proposition
    3.3).
    """
    most = min(epsilon, epsilon * epsilon * order / 2) * (1 + 2**-50)
    moment = np.logaddexp(order * epsilon, (1 - order) * epsilon) - np.logaddexp(0.0, epsilon)
    return float(min(most, (moment + 2**-49 * (1 + order * epsilon)) / (order - 1)))


def pure_epsilon(epsilon: float, times: int, delta: float) -> float:
    """ε at δ of so many ε-DP releases, each chosen from those before, rounded up; exact for their worst.

    Theorem 3.3 of the same: n randomised responses, whose loss is ε (2j - n) where j of them tell the truth.
    δ(ε') = max over g of Pr[j >= g] - e^ε' Pr[n - j >= g], so ε' is the largest ln((Pr[j >= g] - δ) / Pr[n -
    j >= g]). At most n ε.
    """
    most = epsilon * times * (1 + 2**-50)
    if times > _MANY_RESPONSES:
        return most
    from scipy.special import gammaln  # late: a hospital's process starts without SciPy

    j = np.arange(times + 1)
    logs = gammaln(times + 1) - gammaln(j + 1) - gammaln(times - j + 1)
    truth, lie = -np.logaddexp(0.0, -epsilon), -np.logaddexp(0.0, epsilon)
    here, there = (
        np.logaddexp.accumulate((logs + j * one + (times - j) * other)[::-1])[::-1]
        for one, other in ((truth, lie), (lie, truth))
    )
    off = 2**-48 * (float(gammaln(times + 1)) + times * (1 + epsilon))  # more than a logarithm is off by
    left = np.exp(np.minimum(here + off, 0.0)) - delta
    found = np.log(left[left > 0]) - there[left > 0] + off
    return min(most, float(found.max(initial=0.0)))

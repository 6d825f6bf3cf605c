"""Data-independent bounds of Gaussian PATE: zCDP, exact Gaussian DP, PATE++.

For Q queries asked and A answered, one vote moved: ρ = Q/(2 σ1²) + A/σ2², RDP α ρ at every order α. A is
random; the totals hold where it is capped beforehand or a filter stands in front.
"""

from __future__ import annotations

import math
import sys

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import round_up
from pate_fed.privacy.bounds.noise_law import log_ndtr
from pate_fed.privacy.checks import check_count, check_delta, check_sigma
from pate_fed.privacy.protection import RECORD, Protection

_LOG_ULPS = 8  # units in the last place; at most 2 were seen against 80 digits


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
    rho = answered * protection.l2_squared / (2 * check_sigma("sigma2", sigma2) ** 2)
    if sigma1 is not None:
        rho += asked * protection.top**2 / (2 * check_sigma("sigma1", sigma1) ** 2)
    return rho


def confident_mu(
    asked: int, answered: int, *, sigma1: float | None, sigma2: float, protection: Protection = RECORD
) -> float:
    """μ of the Gaussian DP of a run with continuous noise: μ² = 2ρ (Balle and Wang 2018, composition)."""
    return math.sqrt(2 * confident_rho(asked, answered, sigma1=sigma1, sigma2=sigma2, protection=protection))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ of the Gaussian mechanism with sensitivity/σ = μ at ε (Balle and Wang 2018, Theorem 8), rounded up.

    Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ), from logarithms of both terms and what these may be off: for small μ
    the terms are almost equal.
    """
    if not 0 < mu < math.inf or not epsilon >= 0:
        raise InputError(f"mu={mu!r}, epsilon={epsilon!r}: mu above 0 and epsilon of at least 0 are meant")
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    tail = float(log_ndtr(-mu / 2 - epsilon / mu))
    second = min(epsilon + tail, first)
    slack = _LOG_ULPS * sys.float_info.epsilon * (1 + abs(first) + abs(tail) + epsilon)
    return math.nextafter(math.exp(first) * (slack - math.expm1(second - first)), math.inf)


def gaussian_dp_epsilon(mu: float, delta: float) -> float:
    """ε at δ of μ-Gaussian DP, exact and rounded up; no RDP analysis of Gaussian noise can give less.

    Exact for continuous Gaussian noise. For integer noise RDP is the proven figure.
    """
    delta = check_delta(delta)
    if mu == 0:
        return 0.0
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # ρ = μ²/2 converts to at most this (Bun and Steinke 2016, Proposition 1.3).
    low, high = 0.0, round_up(mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)))
    # By bisection: whatever the rounding, δ at `high` stays below the one that is asked for.
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return round_up(high)

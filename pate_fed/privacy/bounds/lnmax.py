"""LNMax and the moments accountant of 2017 (P17, arXiv 1610.05755), for any number of moments.

P17's γ is 1/scale; one query is (2γ, 0)-DP. The smooth sensitivity that came with P17's code is wrong for
winners other than class 0 and is not built: a data-dependent ε of LNMax is for those who see the votes only.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import ConvertedEpsilon, round_up
from pate_fed.privacy.bounds.gnmax import log1mexp, log_union
from pate_fed.privacy.bounds.noise_law import log_tail_laplace_difference
from pate_fed.privacy.checks import (
    Floats,
    check_curve,
    check_delta,
    check_histograms,
    check_log_q,
    check_orders,
    check_sigma,
)

# P17 stops at 8, which costs up to 45 % of ε on its own MNIST run.
DEFAULT_MOMENTS: Floats = np.arange(1.0, 65.0)
DEFAULT_MOMENTS.flags.writeable = False


def lnmax_log_q(totals: ArrayLike, scale: float, *, discrete: bool = False) -> Floats:
    """Bound on ln q, q = Pr[outcome is not the plurality] <= 1 - 1/m (P17, Lemma 4).

    q = Σ (2 + d_j)/(4 e^(d_j)) over the losers, d_j = gap_j / scale. With `discrete` the tails are those of
    the integer noise that runs, and a tie counts as a loss.

    Shapes: `totals` (queries, classes) to (queries,).
    """
    votes, scale = check_histograms(totals), check_sigma("scale", scale)
    gaps = votes.max(axis=1, keepdims=True) - votes
    if discrete:
        terms = log_tail_laplace_difference(gaps, scale)
    else:
        terms = np.log(2 + gaps / scale) - math.log(4) - gaps / scale  # P17, Lemma 4
    return log_union(terms, votes)


def lnmax_data_independent(pure_epsilon: float, orders: ArrayLike) -> Floats:
    """RDP of an (ε, 0)-DP query: min(ε, ε² α/2) (P17, Theorem 2, with ε = 2γ).

    Shapes: (orders,).
    """
    epsilon = check_sigma("pure_epsilon", pure_epsilon)
    return np.minimum(epsilon, epsilon**2 / 2 * check_orders(orders))


def lnmax_rdp_from_log_q(log_q: ArrayLike, pure_epsilon: float, orders: ArrayLike) -> Floats:
    """RDP of LNMax where q bounds its miss probability (P17, Theorems 2 and 3).

    Theorem 3, ln[(1-q) ((1-q)/(1-e^ε q))^l + q e^(εl)]/l with l = α - 1 and ε = 2γ, holds for
    q < 1/(e^ε + 1) only.

    Shapes: `log_q` scalar or (queries,); (orders,) or (queries, orders).
    """
    grid, given = check_orders(orders), check_log_q(log_q)
    most = lnmax_data_independent(pure_epsilon, grid)
    flat = given.reshape(-1)
    valid = flat < -np.logaddexp(pure_epsilon, 0.0)  # q < 1/(e^ε + 1), the condition of Theorem 3
    out = np.broadcast_to(most, (flat.size, grid.size)).copy()
    if valid.any():
        low = flat[valid][:, None]
        log_kept = log1mexp(low)
        ratio = log_kept - log1mexp(low + pure_epsilon)
        moment = np.logaddexp(log_kept + (grid - 1) * ratio, low + (grid - 1) * pure_epsilon)
        out[valid] = np.minimum(most, np.maximum(moment, 0.0) / (grid - 1))
    return out if given.ndim else out[0]


def lnmax_log_moments(
    totals: ArrayLike, scale: float, moments: ArrayLike = DEFAULT_MOMENTS, *, discrete: bool = False
) -> Floats:
    """Log-moments α(l) of each LNMax query; they add up over queries (P17, Theorem 1.1).

    Shapes: `totals` (queries, classes), `moments` (moments,) above 0 to (queries, moments).
    """
    degrees = _check_moments(moments)
    log_q = lnmax_log_q(totals, scale, discrete=discrete)
    return degrees * lnmax_rdp_from_log_q(log_q, 2 / scale, degrees + 1)


def moments_epsilon(
    log_moments: ArrayLike, delta: float, moments: ArrayLike = DEFAULT_MOMENTS
) -> ConvertedEpsilon:
    """ε = min over l of (Σ α(l) + ln(1/δ))/l (P17, Theorem 1.2), rounded up; its `order` is the best l.

    Shapes: `log_moments` summed over queries, (moments,).
    """
    degrees = _check_moments(moments)
    _, total = check_curve(degrees + 1, log_moments)
    candidates = (total - math.log(check_delta(delta))) / degrees  # the tail bound, P17, Theorem 1.2
    best = int(np.argmin(candidates))
    return ConvertedEpsilon(
        epsilon=round_up(float(candidates[best])),
        delta=float(delta),
        order=float(degrees[best]),
        conversion="moments",
        at_edge=degrees.size > 1 and best in (0, degrees.size - 1),
    )


def _check_moments(moments: ArrayLike) -> Floats:
    try:
        return check_orders(np.asarray(moments) + 1.0) - 1.0
    except (InputError, TypeError, ValueError) as error:
        raise InputError("moments must be a list of finite numbers above 0, such as 1..64") from error

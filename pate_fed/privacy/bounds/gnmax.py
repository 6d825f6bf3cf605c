"""Data-dependent RDP of GNMax and its check (P18, Theorem 6, and one bit exactly), and of LNMax (P17).

Theorem 6, with the miss probability q of Proposition 7, bounds D(M(D) || M(D')) at the actual votes D only,
not the reverse; for σ of 10 votes and more the reverse was never seen above it (observed, not proven).
Whether a query is answered is one bit, whose divergence from a neighbour's bit is known exactly, in both
directions. P18 is arXiv 1802.08908.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import ConvertedEpsilon, round_up
from pate_fed.privacy.bounds.noise_law import (
    log_ndtr,
    log_tail_gaussian,
    log_tail_gaussian_difference,
    log_tail_laplace_difference,
)
from pate_fed.privacy.checks import (
    Floats,
    check_count,
    check_curve,
    check_delta,
    check_histograms,
    check_log_q,
    check_orders,
    check_sigma,
    check_threshold,
)
from pate_fed.privacy.protection import RECORD, Protection

# Entries of a block: its temporaries stay in a core's cache, and calls are few.
_BLOCK = 50_000


def effective_sigma(sigma: float, protection: Protection) -> float:
    """Noise s at which one moved vote costs what this unit costs: data-independent RDP α/s².

    σ itself for one vote; σ/k where a unit moves k votes; √2 larger where votes vanish instead of moving.
    """
    return sigma * math.sqrt(2 / protection.l2_squared)


def gnmax_log_q(totals: ArrayLike, sigma: float, *, discrete: bool = False) -> Floats:
    """Bound on ln q, q = Pr[outcome is not the plurality] <= 1 - 1/m (P18, Proposition 7).

    The union bound over the losers: Σ Pr[Z_j - Z_* >= gap_j]. With `discrete` the noise is the discrete
    Gaussian and a tie counts as a loss, which is the mechanism that runs; without it the noise is continuous,
    as in the paper.

    Shapes: `totals` (queries, classes) to (queries,).
    """
    votes, sigma = check_histograms(totals), check_sigma("sigma", sigma)

    def log_losses(gaps: NDArray[np.int64]) -> Floats:
        if discrete:
            return log_tail_gaussian_difference(gaps, sigma)
        # The difference of two noises has the deviation √2 σ (P18, Proposition 7).
        found: Floats = log_ndtr(-gaps / (math.sqrt(2) * sigma))
        return found

    # Gaps are whole: one table serves all queries, but where counts are so large that it would be the longer.
    most = int(votes.max(initial=0) - votes.min(initial=0))
    table = log_losses(np.arange(most + 1)) if most < votes.size else None
    out = np.empty(len(votes))
    step = max(1, _BLOCK // votes.shape[1])
    for start in range(0, len(votes), step):
        block = votes[start : start + step]
        gaps = block.max(axis=1, keepdims=True) - block
        out[start : start + step] = log_union(log_losses(gaps) if table is None else table[gaps], block)
    return out


def log_union(terms: Floats, votes: NDArray[np.int64]) -> Floats:
    """Log-sum-exp over the losers of each query, at most ln(1 - 1/m); a row of nothing but -inf gives -inf.

    Shapes: (queries, classes) both, `terms` changed in place, to (queries,).
    """
    # The winner is no loser; of a tie the first counts as the winner, the others as losers.
    terms[np.arange(len(votes)), votes.argmax(axis=1)] = -np.inf
    top = terms.max(axis=1, initial=-np.inf)
    shifted = np.exp(terms - np.where(np.isfinite(top), top, 0.0)[:, None])
    with np.errstate(divide="ignore"):
        total: Floats = top + np.log(shifted.sum(axis=1))
    np.minimum(total, math.log1p(-1 / votes.shape[1]), out=total)
    return total


def log1mexp(x: Floats) -> Floats:
    """The logarithm of 1 - e^x for x < 0, to full relative precision near both ends."""
    with np.errstate(divide="ignore"):
        return np.where(x > -0.7, np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


def theorem6(log_q: Floats, orders: Floats, sigma: float) -> Floats:
    """RDP by P18, Theorem 6, with μ2 = σ √ln(1/q), μ1 = μ2 + 1 (Proposition 10), where RDP is α/σ² too.

    `inf` where a condition of the theorem fails; 0 where q is 0. Not capped by α/σ².

    Shapes: `log_q` (queries,), `orders` (orders,) to (queries, orders).
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        mu2 = sigma * np.sqrt(-log_q)  # P18, Proposition 10
        e2 = mu2 / sigma**2
        # ln of the most that q may be: the theorem's side condition.
        most = (mu2 - 1) * e2 - mu2 * (np.log1p(1 / mu2) + np.log(mu2 / (mu2 - 1)))
        valid = (mu2 > 1) & (-log_q > e2) & (log_q <= most) & np.isfinite(log_q)
    out = np.full((log_q.size, orders.size), np.inf)
    out[log_q == -np.inf] = 0.0
    if valid.any():
        out[valid] = _theorem6_valid(log_q[valid], mu2[valid], e2[valid], orders, sigma)
    return out


def _theorem6_valid(log_q: Floats, mu2: Floats, e2: Floats, orders: Floats, sigma: float) -> Floats:
    """1/(α-1) ln[(1-q) A^(α-1) + q B^(α-1)] where q, μ2 and e2 satisfy the conditions; inf for α > μ1."""
    log_kept = log1mexp(log_q)
    # A = (1 - q) / (1 - (q e^ε2)^(1 - 1/μ2)), B = e^ε1 / q^(1/(μ1 - 1)) (P18, Theorem 6), εi = μi/σ².
    log_a = log_kept - log1mexp((log_q + e2) * (1 - 1 / mu2))
    log_b = (mu2 + 1) / sigma**2 - log_q / mu2
    less = orders - 1
    # With d = second - first summand, both in logarithms: the sum is first + max(d, 0) + log1p(e^-|d|).
    # In place, as this is the inner loop of every data-dependent figure.
    total = (log_b - log_a)[:, None] * less
    total += (log_q - log_kept)[:, None]
    rest = np.abs(total)
    np.negative(rest, out=rest)
    np.exp(rest, out=rest)
    np.log1p(rest, out=rest)
    np.maximum(total, 0.0, out=total)
    total += rest
    total += log_kept[:, None]
    total *= 1 / less
    total += log_a[:, None]
    # Divergences are at least 0; rounding alone could say otherwise for q near 1e-17.
    np.maximum(total, 0.0, out=total)
    np.copyto(total, np.inf, where=orders > (mu2 + 1)[:, None])
    return total


def gnmax_rdp_from_log_q(
    log_q: ArrayLike, sigma: float, orders: ArrayLike, *, protection: Protection = RECORD
) -> Floats:
    """RDP of GNMax where q bounds its miss probability: min(Theorem 6, α/σ²) (P18).

    Shapes: `log_q` scalar or (queries,), in nats; (orders,) or (queries, orders).
    """
    grid, sigma, given = check_orders(orders), check_sigma("sigma", sigma), check_log_q(log_q)
    flat, sigma = given.reshape(-1), effective_sigma(sigma, protection)
    out = np.empty((flat.size, grid.size))
    most = grid / sigma**2
    step = max(1, _BLOCK // grid.size)
    for start in range(0, flat.size, step):
        rows = slice(start, start + step)
        np.minimum(theorem6(flat[rows], grid, sigma), most, out=out[rows])
    return out if given.ndim else out[0]


def gnmax_rdp(
    totals: ArrayLike,
    sigma: float,
    orders: ArrayLike,
    *,
    discrete: bool = False,
    protection: Protection = RECORD,
) -> Floats:
    """Data-dependent RDP of GNMax for each query (P18, Theorem 6); private, as the votes are.

    Shapes: `totals` (queries, classes) to (queries, orders).
    """
    log_q = gnmax_log_q(totals, sigma, discrete=discrete)
    return gnmax_rdp_from_log_q(log_q, sigma, orders, protection=protection)


def gnmax_rdp_total(
    totals: ArrayLike,
    sigma: float,
    orders: ArrayLike,
    *,
    discrete: bool = False,
    protection: Protection = RECORD,
) -> Floats:
    """Data-dependent RDP of GNMax over all queries.

    Shapes: `totals` (queries, classes) to (orders,).
    """
    total: Floats = gnmax_rdp(totals, sigma, orders, discrete=discrete, protection=protection).sum(axis=0)
    return total


def _check_top(top: ArrayLike) -> Floats:
    array = np.asarray(top, dtype=np.float64)
    if array.ndim > 1 or not np.isfinite(array).all():
        raise InputError("the largest totals must be one finite number or a list of them")
    return array


def log_answered(
    top: ArrayLike, threshold: float, sigma1: float, *, discrete: bool = False
) -> tuple[Floats, Floats]:
    """Log-probabilities that a query is answered, and that it is not, where the largest total is `top`.

    Both tails are computed directly, so that neither is lost where the other is 1. With `discrete` the noise
    is the discrete Gaussian and a fractional threshold counts as the next whole one, as in the mechanism.

    Raises:
        InputError: parameters out of range, or fractions with `discrete`.
    """
    votes, sigma1, threshold = _check_top(top), check_sigma("sigma1", sigma1), check_threshold(threshold)
    if not discrete:
        z = (votes - threshold) / sigma1
        return log_ndtr(z), log_ndtr(-z)
    gap = (math.ceil(threshold) - votes).astype(np.int64)
    if (gap != math.ceil(threshold) - votes).any():
        raise InputError("the largest totals hold a fraction: counts of votes are whole")
    # Pr[Z < g] = Pr[Z >= 1 - g] by symmetry.
    return log_tail_gaussian(gap, sigma1), log_tail_gaussian(1 - gap, sigma1)


def _exp_less_linear(x: Floats) -> Floats:
    """e^x - 1 - x without cancellation."""
    small = np.clip(x, -0.5, 0.5)
    series = np.ones_like(x)
    for k in range(16, 2, -1):  # x²/2 (1 + x/3 (1 + x/4 (...)))
        series = 1 + small / k * series
    return np.where(np.abs(x) <= 0.5, small**2 / 2 * series, np.expm1(x) - x)


def bit_divergence(yes: Floats, no: Floats, yes_other: Floats, no_other: Floats, orders: Floats) -> Floats:
    """Rényi divergence D_α of one bit from another, given by their log-probabilities.

    With x = ln(p/p') per outcome, Σ p' (p/p')^α = 1 + Σ p' (e^(αx) - 1 - α(e^x - 1)), of which every summand
    is at least 0: nothing cancels where the bits are nearly alike.

    Shapes: four of (...,), orders (orders,) to (..., orders).
    """
    p, q = np.stack([yes, no], axis=-1)[..., None, :], np.stack([yes_other, no_other], axis=-1)[..., None, :]
    a = orders[:, None]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        x = p - q
        near = np.abs(a * x).max(axis=-1) <= 30.0
        rise = _exp_less_linear(np.clip(a * x, -30, 30)) - a * _exp_less_linear(np.clip(x, -30, 30))
        small = np.log1p(np.maximum((np.exp(q) * rise).sum(axis=-1), 0.0))
        terms = a * p + (1 - a) * q
        large = np.logaddexp(terms[..., 0], terms[..., 1])
    return np.maximum(np.where(near, small, large), 0.0) / (orders - 1)


def exact_bit_rdp(
    top: ArrayLike,
    threshold: float,
    sigma1: float,
    orders: ArrayLike,
    *,
    discrete: bool = False,
    protection: Protection = RECORD,
) -> Floats:
    """RDP of the answered bit, exact and in both directions, to the farthest neighbours `top` ± k.

    Nearer neighbours diverge less, as the bit's law is monotone in the largest total. The neighbours are not
    clamped to 0..n, so the figure may only be larger than needed.

    Shapes: `top` scalar or (queries,) to (orders,) or (queries, orders).
    """
    grid, votes = check_orders(orders), _check_top(top)
    # A batch has few different maxima, so each is done once.
    values, where = np.unique(votes, return_inverse=True)
    here = log_answered(values, threshold, sigma1, discrete=discrete)
    worst = np.zeros((values.size, grid.size))
    for step in (-protection.top, protection.top):
        there = log_answered(values + step, threshold, sigma1, discrete=discrete)
        np.maximum(worst, bit_divergence(*here, *there, grid), out=worst)
        np.maximum(worst, bit_divergence(*there, *here, grid), out=worst)
    out: Floats = worst[where.reshape(votes.shape)]
    return out


def exact_bit_worst_case(
    num_teachers: int,
    threshold: float,
    sigma1: float,
    orders: ArrayLike,
    *,
    lowest: int = 0,
    protection: Protection = RECORD,
) -> Floats:
    """Data-independent RDP of the answered bit: the exact one's maximum over all largest totals.

    A finite maximum over `lowest`..`num_teachers`, so no search can miss it. Interactive-GNMax compares
    differences of totals, which reach down to -`num_teachers`.

    Shapes: (orders,).
    """
    # a finite maximum: no search can miss it
    every = np.arange(lowest, check_count("num_teachers", num_teachers, least=1) + 1)
    curves = exact_bit_rdp(every, threshold, sigma1, orders, discrete=True, protection=protection)
    worst: Floats = curves.max(axis=0)
    return worst


# LNMax and the moments accountant of 2017 (P17, arXiv 1610.05755), for any number of moments.
#
# P17's γ is 1/scale; one query is (2γ, 0)-DP. The smooth sensitivity that came with P17's code is wrong for
# winners other than class 0 and is not built: a data-dependent ε of LNMax is for those who see the votes
# only.


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

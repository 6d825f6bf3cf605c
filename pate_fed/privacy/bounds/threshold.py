"""RDP of Confident-GNMax's threshold check: by Theorem 6 as in P18, and exactly, as it is one bit.

Whether a query is answered is one bit, so its divergence from a neighbour's bit is known exactly, in both
directions: nothing is lost, and nothing is one-sided. P18 is arXiv 1802.08908.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.discrete import log_tail_gaussian
from pate_fed.privacy.bounds.gnmax import gnmax_rdp_from_log_q
from pate_fed.privacy.bounds.orders import Floats, check_orders, check_sigma
from pate_fed.privacy.bounds.special import log_ndtr
from pate_fed.privacy.checks import check_count, check_threshold
from pate_fed.privacy.protection import RECORD, Protection


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


def threshold_rdp(
    top: ArrayLike, threshold: float, sigma1: float, orders: ArrayLike, *, discrete: bool = False
) -> Floats:
    """Data-dependent RDP of the check by Theorem 6 (P18, section 4.2), at most α/(2σ1²); one-sided.

    Shapes: `top` scalar or (queries,) to (orders,) or (queries, orders).

    Raises:
        InputError: parameters out of range.
    """
    yes, no = log_answered(top, threshold, sigma1, discrete=discrete)
    return gnmax_rdp_from_log_q(np.minimum(yes, no), math.sqrt(2) * sigma1, orders)


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

    Raises:
        InputError: parameters out of range.
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

    Raises:
        InputError: parameters out of range.
    """
    every = np.arange(lowest, check_count("num_teachers", num_teachers, least=1) + 1)
    curves = exact_bit_rdp(every, threshold, sigma1, orders, discrete=True, protection=protection)
    worst: Floats = curves.max(axis=0)
    return worst

"""Smooth sensitivity of GNMax's and the threshold check's data-dependent RDP at one order (P18, appendix B).

Only sums of local-sensitivity curves may be smoothed: one teacher votes on every query. P18 is arXiv
1802.08908; NRS07 is Nissim, Raskhodnikova and Smith, STOC 2007.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.gnmax import theorem6
from pate_fed.privacy.bounds.orders import Floats, check_histograms, check_orders, check_sigma, check_weights
from pate_fed.privacy.bounds.special import log_ndtr, ndtri_exp
from pate_fed.privacy.bounds.vote_moves import VoteMoves
from pate_fed.privacy.checks import check_count


@dataclass(frozen=True, slots=True, kw_only=True)
class GNMaxSensitivity:
    """Local sensitivity of GNMax's RDP bound b(q) at one order to one moved vote.

    b(q) is Theorem 6 below q0 and α/σ² above; q1 is where one vote can take q0 down to. Arguments and q0, q1
    are in logarithms, so nothing underflows.
    """

    sigma: float
    num_classes: int
    order: float
    log_q0: float
    log_q1: float

    def bound(self, log_q: Floats) -> Floats:
        """b(q): Theorem 6 for q < q0, else α/σ². Shapes: any to the same."""
        flat = log_q.reshape(-1)
        out = np.full(flat.shape, self.order / self.sigma**2)
        below = flat < self.log_q0
        out[below] = theorem6(flat[below], np.array([self.order]), self.sigma)[:, 0]
        np.minimum(out, self.order / self.sigma**2, out=out)
        return out.reshape(log_q.shape)

    def up(self, log_q: Floats) -> Floats:
        """Upper bound on ln q after one moved vote: B_U(q)."""
        return self._moved(self._quantile(log_q), 1)

    def down(self, log_q: Floats) -> Floats:
        """Lower bound on ln q after one moved vote: B_L(q)."""
        return self._moved(self._quantile(log_q), -1)

    def local(self, log_q: Floats) -> Floats:
        """Local sensitivity at q (P18, Algorithm 3). Shapes: any to the same."""
        # Within [q1, q0] b(q) may jump at q0, so q1 stands for all of it: the plateau of Algorithm 3.
        held = np.where((log_q >= self.log_q1) & (log_q <= self.log_q0), self.log_q1, log_q)
        quantile = self._quantile(held)
        here, more, less = self.bound(np.stack([held, self._moved(quantile, 1), self._moved(quantile, -1)]))
        found: Floats = np.maximum(more - here, here - less)
        return found

    def conditions(self) -> tuple[bool, bool]:
        """Whether conditions C5 and C6 hold, on a dense grid of q from q0 down to where b(q) vanishes.

        C5: b does not decrease up to q0. C6: b(B_U(q)) - b(q) does not decrease up to B_L(q0). Without them
        the local-sensitivity curve is not proven.
        """
        losers = math.log(self.num_classes - 1)
        top = float(ndtri_exp(self.log_q0 - losers))
        # Even steps of the normal quantile: a vote is worth √2/σ of it everywhere.
        grid = losers + log_ndtr(np.linspace(top - 34.0, top, 16_001))
        grid = np.minimum(grid, self.log_q0)
        curve = self.bound(grid[:-1])
        inner = grid[grid <= self.log_q1]
        rise = self.bound(self.up(inner)) - self.bound(inner)
        return _rises(curve), _rises(rise)

    def _quantile(self, log_q: Floats) -> Floats:
        # q above its cap of 1 - 1/m may not exceed the number of losers, or the quantile is undefined.
        found: Floats = ndtri_exp(np.minimum(log_q - math.log(self.num_classes - 1), 0.0))
        return found

    def _moved(self, quantile: Floats, votes: int) -> Floats:
        step = votes * math.sqrt(2) / self.sigma
        moved: Floats = np.minimum(math.log(self.num_classes - 1) + log_ndtr(quantile + step), 0.0)
        return moved


@lru_cache(maxsize=256)
def _plateau(pieces: GNMaxSensitivity) -> float:
    """Local sensitivity within [q1, q0]."""
    return float(pieces.local(np.array([pieces.log_q1]))[0])


def _rises(values: Floats) -> bool:
    return bool((np.diff(values) >= -1e-9 * np.abs(values[1:])).all())


@lru_cache(maxsize=256)
def gnmax_sensitivity(sigma: float, num_classes: int, order: float) -> GNMaxSensitivity:
    """Local sensitivity of GNMax for this σ, number of classes and order; independent of the votes.

    Raises:
        InputError: a parameter out of range.
    """
    sigma, order = check_sigma("sigma", sigma), float(check_orders(order)[0])
    check_count("num_classes", num_classes, least=2)
    log_q0 = _log_q0(sigma, order)
    blank = GNMaxSensitivity(
        sigma=sigma, num_classes=num_classes, order=order, log_q0=log_q0, log_q1=-math.inf
    )
    log_q1 = float(blank.down(np.array([log_q0]))[0])
    return replace(blank, log_q1=log_q1)


def _log_q0(sigma: float, order: float) -> float:
    """Largest ln q at which Theorem 6 is better than α/σ², at most the cap of its validity."""
    most = order / sigma**2
    grid = np.array([order])

    def better(log_q: float) -> bool:
        return bool(theorem6(np.array([log_q]), grid, sigma)[0, 0] <= most)

    high = min(-((1 + 1 / sigma) ** 2), -(((order - 0.99) / sigma) ** 2), -1 / sigma**2)
    if better(high):
        return high
    low = 2 * high
    while not better(low):
        low *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if better(middle) else (low, middle)
    return low


def gnmax_local_sensitivity(
    totals: ArrayLike,
    sigma: float,
    order: float,
    *,
    num_teachers: int,
    weights: ArrayLike | None = None,
    integer_noise: bool = False,
) -> Floats:
    """Local-sensitivity curve of GNMax, Σ over queries of weight × LS_d (P18, Algorithms 4 and 5).

    LS_d bounds the local sensitivity of a query's b(q) at any votes within d moves, d from 0 to at least
    `num_teachers` - 1. With `integer_noise`
    every gap counts for one vote less, a bound on the tails of integer noise with ties as losses for σ >= 2.

    Shapes: `totals` (queries, classes), `weights` (queries,) to (distances,); see `summed_curve`.

    Raises:
        InputError: totals that are no counts or have more votes than teachers, weights that do not fit, or
            parameters out of range.
    """
    votes = check_histograms(totals)
    check_count("num_teachers", num_teachers, least=1)
    if len(votes) and votes.sum(axis=1).max() > num_teachers:
        raise InputError(f"a query has more votes than the {num_teachers} teachers")
    share = check_weights(weights, len(votes))
    pieces = gnmax_sensitivity(float(sigma), votes.shape[1], float(order))
    moves = VoteMoves(votes, sigma=pieces.sigma, margin=1 if integer_noise else 0)
    return summed_curve(moves, pieces, share, num_teachers)


def summed_curve(moves: VoteMoves, pieces: GNMaxSensitivity, share: Floats, num_teachers: int) -> Floats:
    """The curve of `gnmax_local_sensitivity` from its parts, `share` (queries,) being the weights.

    It goes on until every query is on its plateau, or the maximum over it would jump between neighbours that
    are one move more and one less from there.

    Shapes: (distances,), at least `num_teachers` of them.
    """
    start = moves.log_q(np.zeros(moves.queries, dtype=np.int64), moves.every)
    apart = (start > pieces.log_q0).astype(np.int64) - (start < pieces.log_q1)
    # Until it enters [q1, q0], a query's curve follows its own moves; from there on it is the plateau.
    steps = np.zeros(moves.queries, dtype=np.int64)
    curve = np.zeros(num_teachers)
    for distance, query, log_q in moves.way(pieces.log_q1, pieces.log_q0, apart):
        steps += np.bincount(query, minlength=moves.queries)
        part = np.bincount(distance, weights=pieces.local(log_q) * share[query])
        curve = np.concatenate((curve, np.zeros(max(0, part.size + 1 - curve.size))))
        curve[: part.size] += part
    arrived = np.bincount(steps, weights=share, minlength=curve.size)
    total: Floats = curve + _plateau(pieces) * np.cumsum(arrived)
    return total


def threshold_local_sensitivity(rdp_by_top: ArrayLike, top: ArrayLike) -> Floats:
    """Local-sensitivity curve of the threshold check, Σ over queries of LS_d (P18, appendix B).

    `rdp_by_top[v]` is the check's RDP at one order where the largest total is v = 0..n: one table serves all
    queries. LS_d is the largest change by one vote at v - d or v + d, 0 beyond 0..n.

    Shapes: `rdp_by_top` (n + 1,), `top` int (queries,) to (n,).

    Raises:
        InputError: no table, or a total outside it.
    """
    table, votes = np.asarray(rdp_by_top, dtype=np.float64), np.atleast_1d(np.asarray(top))
    most = table.size - 1
    if table.ndim != 1 or most < 1 or not np.isfinite(table).all():
        raise InputError("the check's RDP must be a list of finite numbers for 0..n votes")
    if votes.dtype.kind not in "iu" or (votes.size and not 0 <= votes.min() <= votes.max() <= most):
        raise InputError(f"the largest totals must be whole numbers from 0 to {most}")
    jump = np.abs(np.diff(table))
    at = np.maximum(np.append(jump, 0.0), np.append(0.0, jump))
    total = np.zeros(most)
    values, times = np.unique(votes, return_counts=True)
    for value, count in zip(values, times, strict=True):
        down, up = at[value::-1], at[value:]
        curve = np.zeros(most + 1)
        curve[: down.size] = down
        curve[: up.size] = np.maximum(curve[: up.size], up)
        # At the farthest distance of all, n moves, there is no further one to protect.
        curve[max(value, most - value) :] = 0.0
        total += count * curve[:most]
    return total


def smooth_sensitivity(local: ArrayLike, beta: float) -> float:
    """β-smooth sensitivity max over d of e^(-β d) LS_d (NRS07, Definition 2.2) of a summed curve.

    Shapes: `local` (distances,).

    Raises:
        InputError: β not above 0, or a curve that is empty, negative or not a number.
    """
    curve = np.asarray(local, dtype=np.float64)
    if not 0 < beta < math.inf:
        raise InputError(f"beta={beta!r}: must be a finite number above 0")
    if curve.ndim != 1 or curve.size == 0 or not (curve >= 0).all():
        raise InputError("a local-sensitivity curve must be a list of numbers of at least 0")
    return float((np.exp(-beta * np.arange(curve.size)) * curve).max())

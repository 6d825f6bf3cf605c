"""Smooth sensitivity of GNMax's and the threshold check's data-dependent RDP at one order (P18, appendix B).

Only sums of local-sensitivity curves may be smoothed: one teacher votes on every query. What a release under
such noise (GNSS) costs is derived here, as the paper's figure is too small. P18 is arXiv 1802.08908; NRS07 is
Nissim, Raskhodnikova and Smith, STOC 2007.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.gnmax import theorem6
from pate_fed.privacy.bounds.noise_law import log_ndtr, ndtri_exp
from pate_fed.privacy.checks import (
    Floats,
    check_count,
    check_orders,
    check_sigma,
    is_number,
)

Ints = NDArray[np.int64]

_POINTS = 16_384  # of a part; 5,000 teachers and many queries have millions


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
        found: Floats = np.maximum(more - here, here - less)  # the worse of one vote more, one less
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
        step = votes * math.sqrt(2) / self.sigma  # one vote moves a gap by 2, the gap's noise is √2 σ
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
    """Local sensitivity of GNMax for this σ, number of classes and order; independent of the votes."""
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
    return float((np.exp(-beta * np.arange(curve.size)) * curve).max())  # NRS07: the largest of e^(-βd) LS_d


def gnss_rdp(order: float, *, beta: float, sigma_ss: float) -> float:
    """RDP of releasing f(D) + SS_β(D) N(0, σ_ss²) at one order α, for α (1 - e^(-2β)) < 1.

    The divergence of two Gaussians whose standard deviations differ by a factor up to e^β and whose means
    differ by at most the smaller smooth sensitivity: with u = e^(-2β) and v = 1 - α + α u it is at most
    α u/(2 σ_ss² v) + (-α β - ½ ln v)/(α - 1), and the other direction of u is smaller. This is exact for the
    worst pair; P18's Theorem 23 as printed (`gnss_rdp_printed`) is below it where α β is above about 0.3.

    Raises:
        InputError: β below 0, σ_ss not above 0, or an order outside (1, 1/(1 - e^(-2β))).
    """
    beta = check_release(beta, sigma_ss)
    most = -1 / math.expm1(-2 * beta) if beta > 0 else math.inf
    if not is_number(order) or not 1 < order < most:
        raise InputError(f"order={order!r}: must be above 1 and below 1/(1 - exp(-2 beta))={most:g}")
    # both directions; the first is the larger
    narrower, wider = (_gaussian_pair(order, log_u, sigma_ss) for log_u in (-2 * beta, 2 * beta))
    return max(narrower, wider)


def _gaussian_pair(order: float, log_u: float, sigma_ss: float) -> float:
    """Divergence of N(0, 1) from N(d, u), both times σ_ss², for the largest d² = min(1, u)."""
    v = 1 + order * math.expm1(log_u)  # above 0 for orders that `gnss_rdp` lets through
    mean = order * min(1.0, math.exp(log_u)) / (2 * sigma_ss**2 * v)
    return mean + (order * log_u - math.log(v)) / (2 * (order - 1))


def check_release(beta: float, sigma_ss: float) -> float:
    """β as a float; InputError where it or σ_ss is out of range."""
    if not is_number(beta) or not 0 <= beta < math.inf:
        raise InputError(f"beta={beta!r}: must be finite and at least 0")
    if not is_number(sigma_ss) or not 0 < sigma_ss < math.inf:
        raise InputError(f"sigma_ss={sigma_ss!r}: must be finite and above 0")
    return float(beta)


class VoteMoves:
    """Bound on ln q (P18, Proposition 7) of many queries after any number of moved votes.

    Moves go from the first to the second class ("closer", q grows) or from the currently second to the first
    ("apart", q shrinks; the second is whichever is largest then). `margin` is what every gap counts less.
    """

    def __init__(self, votes: Ints, *, sigma: float, margin: int) -> None:
        ranked = np.sort(votes, axis=1)[:, ::-1]
        self.queries, self.num_classes = ranked.shape
        self.every = np.arange(self.queries)
        self._first, self._rest = ranked[:, 0], ranked[:, 1:]
        # Apart: the k largest of the rest are level with the next one after _level[:, k-1] moves.
        self._prefix = np.cumsum(self._rest, axis=1)
        following = np.append(self._rest[:, 1:], np.zeros((self.queries, 1), dtype=np.int64), axis=1)
        self._level = self._prefix - np.arange(1, self.num_classes) * following
        # Gaps are whole and between 0 and all votes, so one table serves every query and distance.
        most = int((self._first + self._prefix[:, -1]).max(initial=0))
        self._log_chances = log_ndtr((margin - np.arange(most + 1)) / (math.sqrt(2) * sigma))
        self._chances = np.exp(self._log_chances)
        self._cap = math.log1p(-1 / self.num_classes)

    def log_q(self, moves: Ints, query: Ints, apart: Ints | None = None) -> Floats:
        """Bound on ln q of `query` after `moves`: apart where `apart` is 1 for the query, closer elsewhere.

        Shapes: (points,) each, `apart` (queries,) to (points,).
        """
        gaps = self._closer(moves, query)
        if apart is not None:
            away = apart[query] > 0
            gaps[away] = self._apart(moves[away], query[away])
        return self._from_gaps(gaps)

    def way(self, log_low: float, log_high: float, apart: Ints) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Moves of each query before ln q is within [log_low, log_high]: distance, query and ln q of each.

        `apart` (queries,) is 1 where q is above, -1 where it is below, 0 where it is within. A query that
        never gets there makes all moves that it can. In parts of bounded length, (points,) each; a distance
        is in one part only.
        """
        most = np.where(apart > 0, self._prefix[:, -1], (self._first - self._rest[:, 0]) // 2)
        open_, done = np.flatnonzero(apart != 0), 0
        while open_.size:
            span = max(1, min(_POINTS // open_.size, int(most[open_].max()) + 1 - done))
            query, distance = np.repeat(open_, span), np.tile(np.arange(done, done + span), open_.size)
            last = most[query]
            value = self.log_q(np.minimum(distance, last), query, apart)
            there = np.where(apart[query] > 0, value <= log_high, value >= log_low)
            there |= distance > last
            # What comes before the first that is there.
            before = ~np.logical_or.accumulate(there.reshape(-1, span), axis=1)
            kept = before.ravel()
            yield distance[kept], query[kept], value[kept]
            open_, done = open_[before[:, -1]], done + span

    def _closer(self, moves: Ints, query: Ints) -> Ints:
        gaps = (self._first[query] - moves)[:, None] - self._rest[query]
        gaps[:, 0] -= moves
        return gaps

    def _apart(self, moves: Ints, query: Ints) -> Ints:
        levelled = np.minimum((self._level[query] < moves[:, None]).sum(axis=1) + 1, self.num_classes - 1)
        left = self._prefix[query, levelled - 1] - moves
        # `left` votes spread evenly over the levelled classes, `short` of which have one less.
        height = -(-left // levelled)
        short = height * levelled - left
        rank = np.arange(self.num_classes - 1)
        even = height[:, None] - (rank < short[:, None])
        rest = np.where(rank < levelled[:, None], even, self._rest[query])
        return np.asarray((self._first[query] + moves)[:, None] - rest)

    def _from_gaps(self, gaps: Ints) -> Floats:
        if self._chances[-1] > 0:
            total: Floats = np.log(self._chances[gaps].sum(axis=1))
        else:  # far gaps underflow: relative to the nearest loser, which is the first
            logs = self._log_chances[gaps]
            total = logs[:, 0] + np.log(np.exp(logs - logs[:, :1]).sum(axis=1))
        return np.minimum(total, self._cap)

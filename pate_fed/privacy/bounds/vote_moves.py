"""Bound on q after k vote moves, in closed form for any k (P18, appendix B; arXiv 1802.08908)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pate_fed.privacy.bounds.orders import Floats
from pate_fed.privacy.bounds.special import log_ndtr

Ints = NDArray[np.int64]

_POINTS = 16_384  # of a part; 5,000 teachers and many queries have millions


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

"""Who masks with whom, and holds whose shares: all with all, or, of 200 hospitals on, the nearest on a ring.

The ring's order follows from the roster's digest, so that nobody chooses who is near whom: every hospital
makes it by itself. How many are near, and how many of their shares open a secret, follows from how many
hospitals there are, must survive, and may be in league with the coordinator. That the coordinator still
learns one sum alone, and how often not, is proven in docs/proofs/neighbours.md (after Bell et al. 2020, CCS,
whose graph this is).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SPARSE_FROM = 200
"""Hospitals from which on not all mask with all."""

_SECURE, _COMES = 128, 20  # bits: tries that a coordinator needs for one bad ring, rings for one failed sum
_LABEL = b"pate_fed/secure_sum/v3/ring"

Positions = NDArray[np.int64]


def told_by(count: int, colluders: int) -> int:
    """How many hospitals may be in league with the coordinator: as agreed, and never less than a fifth."""
    return max(colluders, count // 5)


def in_league(count: int, threshold: int, colluders: int) -> int:
    """How many hospitals may be in league with a coordinator that breaks the protocol."""
    full = shape(count, threshold, colluders)[0] == count
    return 2 * threshold - count - 1 if full else told_by(count, colluders)


@lru_cache(maxsize=64)
def shape(count: int, threshold: int, colluders: int) -> tuple[int, int]:
    """How many hold shares of a hospital's secrets, itself among them, and how many of them open one.

    All and `threshold` below 200 hospitals, and where no fewer serve. A tenth of the hospitals may be lost,
    or as many as the threshold lets go, and the sum still comes.
    """
    told, lost = told_by(count, colluders), min(count - threshold, count // 10)
    low, high = 0, 16  # the reach to each side: low does not serve, high does or is all
    if count < SPARSE_FROM or 2 * threshold <= count + told:
        return count, threshold
    while 2 * high < count - 1 and not _least(count, told, lost, high):
        low, high = high, 2 * high
    while high - low > 1:
        reach = (low + high) // 2
        low, high = (low, reach) if _least(count, told, lost, reach) else (reach, high)
    size = 2 * high + 1
    return (count, threshold) if size >= count else (size, _least(count, told, lost, high))


def keys_for(places: int, threshold: int, colluders: int) -> int:
    """How many sealing keys a hospital needs at most in a roster of at most `places`."""
    if places < SPARSE_FROM:
        return places
    counts = {*np.linspace(max(threshold, SPARSE_FROM), places, 9).astype(int).tolist()}
    sizes = [shape(count, threshold, colluders)[0] for count in counts]
    return min(places, max(SPARSE_FROM - 1, *sizes) + 8)  # between these it sways by less


def _least(count: int, told: int, lost: int, reach: int) -> int:
    """How many of the near ones open a secret; 0 where so few near ones do not serve."""
    size = 2 * reach + 1
    if size >= count:
        return 0
    least = size - _most(count, lost, size, count << _COMES)
    told_near = _most(count, told, size - 1, count * (count + 1) // 2 << _SECURE)
    return least if told_near < 2 * least - size - 1 else 0


def _most(count: int, marked: int, drawn: int, once_in: int) -> int:
    """The most marked ones among those drawn from `count` without replacement, but for one in so many draws.

    Exact: the tail of the hypergeometric law is summed from above in whole numbers.
    """
    found, draws = min(marked, drawn), math.comb(count, drawn)
    term = tail = math.comb(marked, found) * math.comb(count - marked, drawn - found)
    while tail * once_in <= draws:
        above = term * found * (count - marked - drawn + found)
        term = above // ((marked - found + 1) * (drawn - found + 1))
        tail, found = tail + term, found - 1
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Neighbours in one roster, by position; `near` is who holds the shares of a hospital, and masks with it.

    `size` hold shares, each in a slot from 0; `least` open a secret. `order` are the positions around the
    ring, `places` where each is on it.
    """

    size: int
    least: int
    order: Positions
    places: Positions

    @classmethod
    def of(cls, digest: str, count: int, threshold: int, colluders: int) -> Graph:
        """The one graph of a roster with this digest."""
        size, least = shape(count, threshold, colluders)
        order, places = _ring("" if size == count else digest, count)
        return cls(size, least, order, places)

    @property
    def full(self) -> bool:
        """Whether all mask with all."""
        return self.size == len(self.order)

    def near(self, position: int) -> Positions:
        """Who holds shares of this hospital, itself among them, by slot."""
        if self.full:
            return self.order
        first = int(self.places[position]) - self.size // 2
        near: Positions = self.order[np.arange(first, first + self.size) % len(self.order)]
        return near

    def slots(self, owners: Positions | int, holders: Positions | int) -> Positions:
        """The slot of each holder at its owner; `size` or more where it holds nothing of it."""
        apart = self.places[holders] - (0 if self.full else self.places[owners] - self.size // 2)
        slots: Positions = np.asarray(apart + np.zeros_like(owners)) % len(self.order)
        return slots

    def slot(self, owner: int, holder: int) -> int:
        """As `slots`, of one."""
        return int(self.slots(owner, holder))

    def among(self, position: int, chosen: Positions) -> Positions:
        """Those of the chosen that are near this hospital, in the order in which they were."""
        return chosen[self.slots(position, chosen) < self.size]

    def nearest(self, position: int, present: Positions, least: int) -> Positions:
        """Rows of those present, the nearest first: `least`, and all that are near one near this hospital."""
        apart = (self.places[present] - self.places[position]) % len(self.order)
        apart = np.minimum(apart, len(self.order) - apart)
        within = 0 if self.full else int((apart < self.size).sum())
        rows: Positions = np.argsort(apart, kind="stable")[: max(least, within)]
        return rows

    def fewest(self, owners: Positions, present: Positions) -> int:
        """The least number of those present that hold shares of one of the owners."""
        # in a window around each place, of which each present one is in `size`
        marks, reach = np.zeros(len(self.order), dtype=np.int64), self.size // 2
        marks[self.places[present]] = 1
        sums = np.concatenate([[0], marks[-reach:], marks, marks[:reach]]).cumsum()
        return int((sums[self.size :] - sums[: -self.size])[self.places[owners]].min())


@lru_cache(maxsize=4)
def _ring(digest: str, count: int) -> tuple[Positions, Positions]:
    """Positions around the ring, and each one's place; in the roster's order without a digest."""
    order = np.arange(count, dtype=np.int64)
    if digest:
        keys = [
            hashlib.sha256(_LABEL + bytes.fromhex(digest) + at.to_bytes(4)).digest() for at in range(count)
        ]
        order = np.array(sorted(range(count), key=keys.__getitem__), dtype=np.int64)
    return order, np.argsort(order)

"""Laws of a query's outcome on the lattice of whole vote totals: which of three wins, a, b or another class.

A and b stand u and v votes above the best of the other classes, whose tie key is κ. On a cell of the lattice
the chances are quadratic in κ. A divergence that is jointly convex is at most the largest at their Bernstein
coefficients (`docs/proofs/outcomes.md`, Lemma 2): those at κ = 0 are chances, those at κ = 1 are the next
cell's, those between are not and bound what lies between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate_fed.privacy.bounds.noise_law import PLAIN, Ints, NoiseLaw, running_sum, tail_sum
from pate_fed.privacy.checks import Floats

Bools = NDArray[np.bool_]

_BLOCK = 2**13  # terms that are summed at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The finite part of the lattice that no bound of Lemma 3 covers, by distances in votes.

    Below -`low` one of the two is out. From `both` on they are above all others. One that is `ahead` of the
    others and by `gap` before the other one wins.
    """

    low: int
    both: int
    ahead: int
    gap: int

    @property
    def widest(self) -> int:
        """The largest difference u - v, either way, that is looked at."""
        return max(self.gap, self.ahead + self.low) + 1

    @property
    def cells(self) -> int:
        """An upper bound on the number of pairs (u, v)."""
        return (2 * self.widest + 1) * (self.both + self.low + min(self.ahead, self.gap))

    def with_all_of(self, other: Region) -> Region:
        """The least region that holds both."""
        return Region(
            **{each.name: max(getattr(self, each.name), getattr(other, each.name)) for each in fields(Region)}
        )

    def span(self, gap: int) -> tuple[int, int]:
        """The least and the largest u = v + gap."""
        ahead = max(gap, 0)
        high = self.both - 1 + ahead
        if gap >= self.gap:
            high = min(high, self.ahead - 1)
        if -gap >= self.gap:
            high = min(high, self.ahead - 1 + gap)
        return ahead - self.low, high

    def holds(self, u: Ints, v: Ints) -> Bools:
        """Whether each pair is in it. Shapes: any that broadcast to one."""
        least = np.minimum(u, v)
        wins = ((u >= self.ahead) & (u - v >= self.gap)) | ((v >= self.ahead) & (v - u >= self.gap))
        found: Bools = (least >= -self.low) & (least < self.both) & ~wins
        return found


class _Row(NamedTuple):
    """Pairs with u - v = `gap`: u from `low` to `high`, and with what is a neighbour `first` to `last`."""

    gap: int
    low: int
    high: int
    first: int
    last: int


class Lattice:
    """Chances that a, b or another class wins, at every whole u and v of a region and its neighbour.

    The neighbour has u - `shift` and v + `shift`.
    """

    def __init__(self, law: NoiseLaw, region: Region, *, shift: int = 1) -> None:
        self._region, self._shift = region, shift
        ends = region.both + region.ahead + region.low
        self._depth = law.depth()
        self._most = region.widest + ends + 3 + shift + self._depth
        self._mass = law.masses(self._most)
        self._below = np.concatenate(([0.0], running_sum(self._mass)))
        self._pad = region.widest + 2 * shift + 1
        half = self._below[:-1] + self._mass / 2  # Pr[Z + U < j + U'], U and U' uniform tie keys
        self._half = np.concatenate((np.zeros(self._pad), half, np.ones(self._pad)))

    def pairs(self, form: Callable[[Floats], Floats]) -> Iterator[tuple[Floats, Floats]]:
        """The coefficients of (u, v) and of (u - shift, v + shift), some rows of the lattice at a time.

        Shapes: (3, cells) both; `form` is applied to each once, and keeps the shape.
        """
        for _, mine, other in self.placed(form):
            yield mine, other

    def placed(self, form: Callable[[Floats], Floats]) -> Iterator[tuple[Ints, Floats, Floats]]:
        """`pairs`, and before them u and v of each. Shapes: int64 (2, cells), (3, cells) twice."""
        step, widest = self._shift, self._region.widest
        laws: dict[int, tuple[int, Floats, Floats]] = {}
        for rows in self._blocks():
            ends = np.cumsum([0, *(row.last - row.first + 1 for row in rows)]).tolist()
            start, middle = map(form, self._coefficients(rows))
            mine, other, places = [], [], []
            for row, begin, end in zip(rows, ends[:-1], ends[1:], strict=True):
                laws[row.gap] = row.first, start[:, begin:end], middle[:, begin:end]
                before = laws.pop(row.gap - 2 * step, None)
                if before is None or row.low > row.high or row.gap < -widest:
                    continue
                here = slice(row.low - row.first, row.high - row.first + 1)
                there = slice(row.low - step - before[0], row.high - step - before[0] + 1)
                u = np.arange(row.low, row.high + 1)
                places += [np.stack((u, u - row.gap))] * 2
                mine += [each[:, here] for each in laws[row.gap][1:]]
                other += [each[:, there] for each in before[1:]]
            if mine:
                yield (
                    np.concatenate(places, axis=1),
                    np.concatenate(mine, axis=1),
                    np.concatenate(other, axis=1),
                )

    def _blocks(self) -> Iterator[list[_Row]]:
        """Rows of one difference u - v each, some at a time."""
        step, widest = self._shift, self._region.widest
        rows: list[_Row] = []
        for gap in range(-widest - 2 * step, widest + 1):
            low, high = self._region.span(gap)
            # The neighbour of gap + 2 shift is here, `shift` lower.
            next_low, next_high = self._region.span(gap + 2 * step)
            first, last = min(low, next_low - step), max(high, next_high - step)
            if first > last:
                continue
            rows.append(_Row(gap, low, high, first, last))
            if len(rows) * (last - first + self._depth) > _BLOCK:
                yield rows
                rows = []
        if rows:
            yield rows

    def _at(self, j: Ints) -> Floats:
        return self._mass[j + self._most]  # Pr[Z = j]

    def _under(self, j: Ints) -> Floats:
        return self._below[j + self._most + 1]  # Pr[Z <= j]

    def _coefficients(self, rows: list[_Row]) -> tuple[Floats, Floats]:
        """Bernstein coefficients 0 and 1 of the chances that a, b, another wins: (3, cells), u rising."""
        gaps, least, most = np.array([(row.gap, row.first, row.last) for row in rows]).T
        u = np.concatenate([np.arange(row.first, row.last + 1) for row in rows])
        v = u - np.repeat(gaps, most - least + 1)
        first = np.concatenate(self._beats(gaps, 1 - most, 1 - least))
        second = np.concatenate(self._beats(-gaps, 1 - (most - gaps), 1 - (least - gaps)))
        mass_u, mass_v, under_u, under_v = (
            self._at(-u),
            self._at(-v),
            self._under(-u - 1),
            self._under(-v - 1),
        )
        return _bernstein(first, second, mass_u, mass_v, under_u, under_v)

    def _beats(self, gaps: Ints, least: Ints, most: Ints) -> list[Floats]:
        """Σ over j >= j0 of Pr[Z = j] Pr[Z' + U' < j + U + gap] by row, j0 from `most` down to `least`."""
        # U, U' are uniform tie keys. From -gap on the second factor is at least 1/2, so what lies beyond the
        # noise's depth from there is below 1e-16 of the sum.
        ends = np.minimum(np.maximum(most, np.abs(gaps)) + self._depth, self._most)
        wide = int((ends - least).max()) + 1
        if wide > PLAIN:  # some sums take blocks of their own
            return [self._beat(*row) for row in zip(gaps, ends, least, most, strict=True)]
        # From the ends on; what stands beyond a row's last is not read.
        at = np.maximum(ends[:, None] + self._most - np.arange(wide), 0)
        sums = np.cumsum(self._mass[at] * self._half[at + (self._pad + gaps)[:, None]], axis=1)
        parts = zip(sums, (ends - most).tolist(), (ends - least + 1).tolist(), strict=True)
        return [row[begin:end] for row, begin, end in parts]

    def _beat(self, gap: int, end: int, least: int, most: int) -> Floats:
        part = slice(least + self._most, end + self._most + 1)
        terms = self._mass[part] * self._half[part.start + self._pad + gap : part.stop + self._pad + gap]
        return tail_sum(terms)[most - least :: -1]


class CoarseLattice:
    """The chances of `Lattice` where u and v are multiples of `step`, all at once.

    They suffice for more noise than `law` has (Lemma 7). What takes time depends on the noise in steps only.
    """

    def __init__(self, law: NoiseLaw, region: Region, *, shift: int = 1, step: int) -> None:
        self._shift, self._step = shift, step
        top = max(region.ahead, region.both + region.gap)
        self._places = np.arange(-(region.low // step), top // step + 1)
        u = self._places * step
        self._kept = region.holds(u[:, None], u[None, :])
        # Noise from -top on, to where what lies beyond is below 1e-16 of any chance; `_winning` reads further
        # ahead for the other total, by the largest difference.
        self._start = -int(self._places[-1]) - 1
        self._rows = (region.low + region.widest + law.depth()) // step + 2 - self._start
        self._columns = self._rows + len(u)
        self._most = (self._columns + abs(self._start) + 2) * step + 2 * shift + 2
        self._mass = law.masses(self._most)
        self._below = np.concatenate(([0.0], running_sum(self._mass)))
        self._half = self._below[:-1] + self._mass / 2

    def pairs(self, form: Callable[[Floats], Floats]) -> Iterator[tuple[Floats, Floats]]:
        """The Bernstein coefficients 0, 1 and 2 of (u, v) and of its neighbour. Shapes: (3, cells) both."""
        for _, mine, other in self.placed(form):
            yield mine, other

    def placed(self, form: Callable[[Floats], Floats]) -> Iterator[tuple[Ints, Floats, Floats]]:
        """`pairs`, and before them u and v of each. Shapes: int64 (2, cells), (3, cells) twice."""
        k = self._shift
        at = np.stack(np.nonzero(self._kept))
        places = self._places[at] * self._step
        for less in (0, 1):  # coefficient 2 is the next cell's 0, where both stand one lower
            here, there = self._coefficients(-less, -less), self._coefficients(-less - k, -less + k)
            for mine, other in list(zip(here, there, strict=True))[: 2 - less]:
                yield places, form(mine), form(other)

    def _coefficients(self, more_u: int, more_v: int) -> tuple[Floats, Floats]:
        """Coefficients 0 and 1 where u and v are `more` than a multiple: (3, cells)."""
        kept, at = self._kept, self._places * self._step
        u, v = (places[kept] for places in np.meshgrid(at + more_u, at + more_v, indexing="ij"))
        first = self._winning(more_u, more_v)
        second = (first if more_u == more_v else self._winning(more_v, more_u)).T
        below, mass = self._below, self._mass
        return _bernstein(
            first[kept],
            second[kept],
            mass[self._most - u],
            mass[self._most - v],
            below[self._most - u],
            below[self._most - v],
        )

    def _winning(self, own: int, other: int) -> Floats:
        """Σ over j >= 1 - u of Pr[Z = j] Pr[Z' + U' < j + U + u - v], by u and v in steps.

        In runs of `step` values of j: with u = i `step` + `own` and v = l `step` + `other` those of run n are
        masses of run n and chances of run n + i - l, so all products of runs are one matrix.
        """
        step, start = self._step, self._start
        parts = []
        for table, runs, less in ((self._mass, self._rows, own), (self._half, self._columns, other)):
            begin = self._most + start * step + 1 - less
            parts.append(table[begin : begin + runs * step].reshape(runs, step))
        sums = parts[0] @ parts[1].T  # all products of runs at once
        for row in range(self._rows - 2, -1, -1):
            sums[row, :-1] += sums[row + 1, 1:]
        at = -self._places - start
        found: Floats = sums[np.ix_(at, at)]
        return found


def _bernstein(
    first: Floats, second: Floats, mass_u: Floats, mass_v: Floats, under_u: Floats, under_v: Floats
) -> tuple[Floats, Floats]:
    """Coefficients 0 and 1 of the chances that a, b, another wins: (3, cells) each.

    From the chances that a wins above the others' best whole total, that b does, Pr[Z = -u], Pr[Z = -v],
    Pr[Z < -u] and Pr[Z < -v].
    """
    both = mass_u * mass_v / 2
    lost_u, lost_v = mass_u * under_v, mass_v * under_u
    neither = under_u * under_v  # strictly below both: at κ = 0 a tie goes to a or b
    start = np.stack((first + lost_u + both, second + lost_v + both, neither))
    middle = np.stack(
        (first + lost_u / 2 + both, second + lost_v / 2 + both, neither + (lost_u + lost_v) / 2)
    )
    return start, middle

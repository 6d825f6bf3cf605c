"""ε of few queries: the worst adversary's own value, on a grid of likelihood ratios.

`pate_fed.privacy.bounds.control` keeps a Gaussian's profile above that value, which few queries have not come
near to. Here it is computed state by state, from the chances of every outcome's lattice: a value is a convex
function of r, kept at r = e^x, x = 0, h, 2h, ..., and joined by chords, which are above it. What an outcome
adds to such a value is linear in its hockey sticks. `docs/proofs/control.md`, "On a grid", has the proof.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import round_up
from pate_fed.privacy.bounds.intervals import Interval, gaussian_delta_within, raised, times_exp_down
from pate_fed.privacy.bounds.lattice import CoarseLattice, Lattice, Region
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, Ints, NoiseLaw, log_ndtr
from pate_fed.privacy.checks import Floats

LEAST, WIDEST, WIDEST_BIT = 0.5, 10_000.0, 5000.0
"""Votes of Gaussian noise for which there are tables of a winner, and of a bit."""
EVERY = 50.0
"""Votes of Gaussian noise up to which a winner's table has every point of the lattice."""
_STEPS = 25  # of more noise, the step from point to point
_MIXED = 2e-9  # of ln of the ratio of an outcome's law to a mixture's, for each vote that moves (Lemma 9)
_CHORDS = 0.003  # of the variance of an outcome's loss, that chords may add
_CUT = 2e-6  # of δ, that a tail outside of the lattice may hold
_ROUNDING = 2e-12  # relative, of a chance: `hockey_stick`'s
_SLACK = 4e-12  # of a value at each outcome: what the chances of two bits are off, for their ratio
_LATER = 1 + Fraction(1, 2**52)
_PART = 512  # laws at once, which a processor's cache holds
_REACH = 7.5  # deviations of a Gaussian loss that the sticks are kept for; beyond, the last one is added


@dataclass(frozen=True, slots=True)
class Grid:
    """Places x = 0, `step`, 2 `step`, ...; at 1/r a value is 1 - 1/r + value(r)/r, by exchange."""

    step: float

    def weights(self, value: Floats, before: int, after: int) -> tuple[Floats, float]:
        """R times the change of slope at the knots from -`before` on, and `after` zeros; none is below 0.

        Besides, the sum of what was: the value is convex but for so much rounding.
        """
        low, rise = math.exp(-self.step), np.diff(value)
        left = np.concatenate(([value[0] - (1 - low + low * value[1])], rise))
        change = np.append(rise / math.expm1(self.step), 0.0) + left / math.expm1(-self.step)
        kept = np.maximum(change, 0.0)
        below = (kept * np.exp(-self.step * np.arange(len(value))))[1 : before + 1][::-1]
        parts = np.zeros(before - len(below)), below, kept, np.zeros(after)
        return np.concatenate(parts), 2 * float((kept - change).sum())

    def closed(self, value: Floats) -> Floats:
        """The value, at 1 at most what the chord from 1/e^`step` to e^`step` is there: it is convex."""
        low = math.exp(-self.step)
        value[0] = min(value[0], ((1 - low + low * value[1]) + low * value[1]) / (1 + low) * (1 + 1e-15))
        return value

    def both_sides(self, value: Floats, before: int) -> Floats:
        """The value from -`before` on."""
        low = np.exp(-self.step * np.arange(before, 0, -1))
        return np.concatenate((1 - low + low * value[before:0:-1], value))

    def moved(self, values: Floats, before: int, shifts: Floats) -> Floats:
        """Values that are given from -`before` on, each at x + its shift for x >= 0, by chords; at most 1.

        Shapes: (n, before + size) or one for all, (n,) to (n, size).
        """
        whole = np.floor(np.clip(shifts, -1e6, 1e6) / self.step)
        part = np.expm1(np.clip(shifts, -1e6, 1e6) - whole * self.step) / math.expm1(self.step)
        most = values.shape[-1] - 1
        place = np.arange(before, most + 1) + whole.astype(np.int64)[:, None]
        at = [np.clip(each, 0, most) for each in (place, place + 1)]
        one, two = (values[each] if values.ndim == 1 else np.take_along_axis(values, each, 1) for each in at)
        part = np.clip(part, 0.0, 1.0)[:, None]
        return np.where(place < 0, 1.0, (1 - part) * one + part * two)


class Outcome(ABC):
    """A kind of outcome on a grid: `slack` is what votes outside of its tables may add, each tail `cut`.

    Its law is within e^(±`mixed`) of the one that is bounded.
    """

    mixed = 0.0

    def __init__(self, grid: Grid, law: NoiseLaw, totals: int, moved: int, cut: float) -> None:
        self.grid, self.law, self.slack = grid, law, 5 * cut
        mu = math.sqrt(totals) * moved / law.scale
        far = mu * mu / 2 + _REACH * mu if law.kind == GAUSSIAN else totals * moved / law.scale
        self.span = math.ceil(far / grid.step) + 1
        self._turned = np.exp(-grid.step * np.arange(-self.span, self.span + 1))

    @abstractmethod
    def most(self, value: Floats) -> Floats:
        """What the outcome makes of a value at most. Shapes: (size,) to the same."""

    def raise_to(self, rows: Floats, at: Ints, here: Floats, there: Floats) -> None:
        """Raise row `at` of each law to its sticks, rounded up. Shapes: (rows, s), (laws,), (outcomes, laws).

        Σ max(0, p - q/t) - max(0, 1 - 1/t), t = e^(s step); where t > 1 it is Σ max(0, q/t - p), as chances
        sum to 1.
        """
        middle, turned = self.span + 1, self._turned
        (p_up, q_up), (p_down, q_down) = (
            [each * (1 + sign * _ROUNDING) for each in (here, there)] for sign in (1, -1)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            most, least = (np.nan_to_num(each, nan=0.0) for each in (p_up / q_down, p_down / q_up))
        for start in range(0, len(at), _PART):
            part = slice(start, start + _PART)
            found = np.zeros((len(at[part]), len(turned)))
            for outcome in range(len(here)):
                # The columns where anything is above 0: p/q at least what is there 1/t, or at most.
                one = slice(int(np.searchsorted(-turned[:middle], -most[outcome, part].max())), middle)
                less = q_down[outcome, part, None] * turned[one]
                np.subtract(p_up[outcome, part, None], less, out=less)
                found[:, one] += np.maximum(less, 0.0, out=less)
                end = np.searchsorted(-turned[middle:], -least[outcome, part].min(), side="right")
                two = slice(middle, middle + int(end))
                more = q_up[outcome, part, None] * turned[two]
                more -= p_down[outcome, part, None]
                found[:, two] += np.maximum(more, 0.0, out=more)
            first = np.flatnonzero(np.diff(at[part], prepend=-1))
            np.maximum.at(rows, at[part][first], np.maximum.reduceat(found, first, axis=0))

    def exchanged(self, rows: Floats) -> Floats:
        """The sticks where both laws of each row change places."""
        found: Floats = rows[..., ::-1] * self._turned
        return found

    def gains(self, rows: Floats, value: Floats, before: int = 0) -> tuple[Floats, float]:
        """What rows add to a value from -`before` on, (rows, places), and by how much it may be more."""
        weights, clipped = self.grid.weights(value, before + self.span, self.span)
        windows = np.ascontiguousarray(sliding_window_view(weights, 2 * self.span + 1).T)
        # Weights are off by 2^-49, that at 1 by 2^-50 of a step's part; the last stick holds for all beyond.
        off = 2.0**-48 * float(rows.sum(axis=-1).max()) + 2.0**-50 / self.grid.step * float(rows.max())
        off += float(rows[..., [0, -1]].max()) * (1 + 1e-9)
        found: Floats = rows @ windows * (1 + 1e-11)
        return found, off + clipped + self.slack


class Rows(Outcome):
    """An outcome whose laws are all given by their hockey sticks."""

    @property
    @abstractmethod
    def rows(self) -> Floats:
        """(laws, s)."""

    def most(self, value: Floats) -> Floats:
        """The largest gain."""
        gain, off = self.gains(self.rows, value)
        return self.grid.closed(np.minimum(value + gain.max(axis=0) + off + 2.0**-50, 1.0))


class Bit(Rows):
    """Whether a total that changes by `moved` reaches a threshold, in cells of thresholds."""

    def __init__(self, grid: Grid, law: NoiseLaw, cut: float, moved: int = 1) -> None:
        super().__init__(grid, law, 1, moved, cut)
        reach = _first_below(law.upper_tails, cut, law) + moved
        at = np.arange(-reach, reach + 1)
        cells = np.arange(len(at)) // max(1, int(law.scale // 40))
        rows = np.zeros((int(cells[-1]) + 1, 2 * self.span + 1))
        self.raise_to(rows, cells, *_bits(law, at, moved))
        self._rows = np.concatenate((rows, self.exchanged(rows)))

    @property
    def rows(self) -> Floats:
        """One of each cell, and exchanged."""
        return self._rows


def narrower(law: NoiseLaw, moved: int, *, lattice: bool = True) -> tuple[NoiseLaw, int] | None:
    """Noise that stands for `law` where so many votes move, and the step of its lattice; None: there is none.

    Less of it (Lemmas 7 and 9), by what moves from several classes, and by a step of more than one vote.
    """
    step = int(law.scale // _STEPS) if lattice and law.scale > EVERY else 1
    squared = (step**2 if step > 1 else 0) + (2 * moved**2 - moved - 2 if moved > 1 else 0)
    root = 1 - 9 * squared / law.scale**2
    if not squared or root < 0 or law.kind != GAUSSIAN:
        return None if squared else (law, step)
    return NoiseLaw(law.kind, law.scale * math.sqrt((1 + math.sqrt(root)) / 2) * (1 - 1e-12)), step


class Winner(Rows):
    """The class that wins, where votes go from a to b.

    By how far a stands above b, in cells, and by the higher of both above the others' best: `inner`. Those of
    which one is out, by the other's height: `bits`; both far above all others, by how far apart: `pairs`.
    What is exchanged is not among them: a one lower, b one higher, and then to and fro. Of `two` classes
    there are pairs alone.
    """

    def __init__(
        self, grid: Grid, law: NoiseLaw, cut: float, moved: int = 1, step: int = 1, *, two: bool = False
    ) -> None:
        super().__init__(grid, law, 2, k := moved, cut)
        self.two = two
        near = self.near = _first_below(law.upper_tails, cut, law) + k
        wide = _first_below(law.difference_tails, cut, law)
        region = Region(low=near + 2, both=near + 2, ahead=near + 2, gap=wide + 4 + 2 * k)
        fine, coarse = max(1, int(law.scale // 12)), max(1, int(law.scale // 2))
        self.gaps = _edges(k, region.widest, 3 * law.scale, fine, coarse)
        self.levels = _edges(-region.low - 1, region.both + region.widest, 3 * law.scale, fine, coarse)
        size = len(self.gaps), len(self.levels), 2 * self.span + 1
        inner = np.zeros((size[0] * size[1], size[2]))
        bits, pairs = np.zeros(size[1:]), np.zeros((size[0], size[2]))
        if not two:
            lattice: Lattice | CoarseLattice = Lattice(law, region, shift=k)
            if step > 1:
                lattice = CoarseLattice(law, region, shift=k, step=step)
            for (u, v), here, there in lattice.placed(lambda chances: chances):
                self._raise(inner, u, v, here, there, both=step > 1)
            w = np.arange(self.levels[0], near + 2 + k)
            self.raise_to(bits, _cell(self.levels, w), *_bits(law, -w, k))
        d = np.arange(k, region.gap + 1)
        self.raise_to(pairs, _cell(self.gaps, d), *_pairs(law, d, k))
        self.parts = inner, bits, pairs

    def _raise(self, inner: Floats, u: Ints, v: Ints, here: Floats, there: Floats, *, both: bool) -> None:
        """Raise the cells of those that a is ahead of, and where `both`, of the others exchanged."""
        k = int(self.gaps[0])
        ahead = u - v >= k
        sides = [(ahead, u, v, here, there)] + [(~ahead, v + k, u - k, there, here)] * both
        for kept, high, low, one, other in sides:
            if kept.any():
                at = _cell(self.gaps, (high - low)[kept]) * len(self.levels) + _cell(self.levels, high[kept])
                order = np.argsort(at, kind="stable")
                self.raise_to(inner, at[order], one[:, kept][:, order], other[:, kept][:, order])

    @cached_property
    def rows(self) -> Floats:
        """All of them, and exchanged."""
        every = np.concatenate(self.parts)
        every = every[every.any(axis=1)]
        return np.concatenate((every, self.exchanged(every)))


@lru_cache(maxsize=4)
def winner_of(
    grid: Grid, law: NoiseLaw, cut: float, moved: int = 1, *, vanish: bool = False, two: bool = False
) -> Rows:
    """The class that wins where so many votes move, or `vanish`; its tables, which take a second, once."""
    stands, step = narrower(law, moved, lattice=not vanish) or (law, 0)
    if not step:
        raise InputError(f"{law.scale:g} votes of noise: too little for tables of {moved} moved votes")
    found = Bit(grid, stands, cut, moved) if vanish else Winner(grid, stands, cut, moved, step, two=two)
    found.mixed = _MIXED * moved if stands != law else 0.0
    return found


class Query(Outcome):
    """Bit and winner on the same votes, by the cases of docs/proofs/same-votes.md; so many `votes` move."""

    def __init__(
        self,
        grid: Grid,
        cut: float,
        *,
        threshold: int,
        sigma1: float,
        sigma2: float,
        teachers: int,
        votes: int = 1,
        two: bool = False,
    ) -> None:
        check, k = NoiseLaw(GAUSSIAN, sigma1), votes
        made = winner_of(grid, NoiseLaw(GAUSSIAN, sigma2), cut, k, two=two and k == 1)
        winner = self._winner = cast(Winner, made)
        super().__init__(grid, check, 1, k, cut)
        self.mixed, self._moved, parts = winner.mixed, k, winner.parts
        some = [np.logical_or.reduce(part, axis=1) for part in parts]  # others have no votes, and add 0
        both = parts, [winner.exchanged(part) for part in parts]
        self._sides = [[(kept, part[kept]) for kept, part in zip(some, side, strict=True)] for side in both]
        most = math.ceil(36 * sigma1)  # what is farther never happens
        tails = check.upper_tails(most)
        missing = np.clip(threshold - np.arange(-k, teachers + k + 1), 1 - most, most)
        # Chances that totals -k..teachers + k pass, and that they do not.
        self._passed, self._not = tails[missing + most], tails[1 - missing + most]
        # How far the largest total is above any other: of the votes, and with what mixtures make of it.
        self._least = self._apart = np.maximum(2 * np.arange(teachers + 1) - teachers, 0)
        self._third = self._winner.law
        self._by_gap: Floats | None = None
        if winner.law.scale < sigma2:
            self._spread(sigma2, narrower(NoiseLaw(GAUSSIAN, sigma2), k) or (self._third, 1))

    def _spread(self, sigma2: float, stands: tuple[NoiseLaw, int]) -> None:
        """Shares of the distances that totals of a mixture have, by the largest total (Lemma 9).

        One vote's two classes are nearly a discrete Gaussian on the lattice apart, and Chernoff bounds the
        higher. Of several votes' classes, and the largest, it bounds what any one moves.
        """
        k, variance = self._moved, sigma2**2 - stands[0].scale ** 2
        reach = 2 * math.ceil(9 * math.sqrt(variance)) + 4
        self._apart = np.arange(-reach, self._least[-1] + reach + 1)
        away, each = self._apart - self._least[:, None], min(k, 2)

        def tail(moved: Floats) -> Floats:
            count = 2 if k == 1 else 2 * (2 * k + 1)
            return np.minimum(1.0, 1.05 * count * np.exp(-(moved**2) / (2 * variance)))

        lost = -away / each
        kept = (away < 0) & (away % each == 0)
        self._by_height = self._by_gap = np.where(kept, tail(lost - 1) - tail(lost), 0.0)
        if k == 1:
            self._third = NoiseLaw(GAUSSIAN, sigma2)
            near = np.exp(-(away**2) / (4 * variance)) * (self._apart % stands[1] == 0)
            self._by_gap = near / near.sum(axis=1, keepdims=True) * (1 + _MIXED)

    def most(self, value: Floats) -> Floats:
        """The largest by any total that may be the largest, whoever has it, and however it moves."""
        before = min(self.span, len(value) - 1)
        given = self.grid.both_sides(value, before)
        above, below, held, off = self._gains(value, before)
        k, count = self._moved, len(self._least)
        # Where b comes near a, which has the largest total, that may stay or rise though a falls.
        near = np.where(self._least[:, None] <= (1 if k == 1 else k - 1), above, 0.0)
        rises = np.maximum(np.maximum(near, below), held)
        moves = (-1, above), (0, np.maximum(near, held)), (1, rises)
        if k > 1:  # some of those that fall may be of a third, and the largest falls by less than k
            falls = np.maximum(above, held)
            moves = (-k, falls), (0, np.maximum(falls, below)), (k, rises)
        best = value
        for step, gain in moves:
            then = slice(k + step, count + k + step)
            found = np.zeros((count, len(value)))
            for chances, after in (
                (self._not, given),
                (self._passed, np.minimum(given + gain + off, 1.0)),
            ):
                with np.errstate(divide="ignore", invalid="ignore"):
                    shift = np.log(chances[then] / chances[k : k + count])
                shift[np.isnan(shift)] = -math.inf
                found += chances[k : k + count, None] * self.grid.moved(after, before, shift)
            best = np.maximum(best, found.max(axis=0))
        return self.grid.closed(np.minimum(best * (1 + 1e-11) + off + _SLACK, 1.0))

    def _gains(self, value: Floats, before: int) -> tuple[Floats, Floats, Floats, float]:
        """What a winner adds where a has the largest total, where b, and where a third, as `gains`.

        By the largest total, which says how far above any other it is at least.
        """
        winner, k, off = self._winner, self._moved, 0.0
        sides = []
        for parts in self._sides:
            added = []
            for kept, rows in parts:
                added.append(np.zeros((len(kept), len(value) + before)))
                if len(rows):
                    added[-1][kept], more = winner.gains(rows, value, before)
                    off = max(off, more)
            sides.append((added[0].reshape(len(winner.gaps), len(winner.levels), -1), *added[1:]))
        out = np.maximum(sides[0][1], sides[1][1])
        plain, turned = (np.maximum(inner.max(axis=1), pairs) for inner, _, pairs in sides)
        some, apart = out.max(axis=0), self._apart
        # A cell's laws exchanged are those of 2k less what a is above b.
        above = np.maximum(_apart_by(winner.gaps, apart, plain, turned, k), some)
        below = np.maximum(_apart_by(winner.gaps, apart + 2 * k, turned, plain, k), some)
        under = np.maximum(out, np.maximum(sides[0][0].max(axis=0), sides[1][0].max(axis=0)))
        top = int(_cell(winner.levels, np.array(winner.near)))
        if not winner.two:
            under[top] = np.maximum(under[top], np.maximum(plain, turned).max(axis=0))
        under = np.maximum.accumulate(under)
        # Pr[-apart - Z, or k more where laws are exchanged, is a height's cell or above]
        tails = self._third.upper_tails(most := self._third.depth() + winner.near)
        chance = tails[np.clip(apart[:, None] + winner.levels - k, -most, most) + most]
        held = chance @ np.diff(under, axis=0, prepend=0.0) * (1 + 1e-11)
        if self._by_gap is None:
            return above, below, held, off
        above, below = (self._by_gap @ each * (1 + 1e-11) for each in (above, below))
        return above, below, self._by_height @ held * (1 + 1e-11), off + 2.0**-50


def _apart_by(edges: Ints, apart: Ints, ahead: Floats, behind: Floats, moved: int) -> Floats:
    """The largest where a is so far above b at least, by cells of distances from `moved` on.

    `behind` are those of 2 `moved` less their distance. Shapes: (cells, places) to (apart, places).
    """
    from_on, up_to = np.maximum.accumulate(ahead[::-1])[::-1], np.maximum.accumulate(behind)
    found = from_on[_cell(edges, np.maximum(apart, moved))]
    less = up_to[_cell(edges, np.maximum(2 * moved - apart, moved))]
    most: Floats = np.where(apart[:, None] < moved, np.maximum(found, less), found)
    return most


def _step_of(variance: float) -> float:
    return math.sqrt(4 * _CHORDS * 0.6 * variance)


def places(variance: float, near: float) -> int:
    """How many places the grid of `Values` has."""
    return math.ceil((1.1 * near + 8 * math.sqrt(variance)) / _step_of(variance)) + 2


class Values:
    """The worst adversary's value of studies of up to so many outcomes of each kind, in any order."""

    def __init__(self, make: Sequence[Any], *, variance: float, near: float, delta: float) -> None:
        """`make` are outcomes but for their grid and cut, `near` an ε that no study is above."""
        self._grid, size = Grid(_step_of(variance)), places(variance, near)
        self._parts: list[Outcome] = [each(self._grid, cut=_CUT * delta) for each in make]
        self._delta = delta
        self._found = {(0,) * len(make): np.zeros(size)}

    def epsilon(self, times: tuple[int, ...]) -> float:
        """ε at δ, rounded up; ∞ where it is beyond the grid."""
        value, far = self._value(times), self.far(times)
        delta = times_exp_down(self._delta, -Fraction(far))
        under = np.flatnonzero(value <= delta)
        if not len(under):
            return math.inf
        at = int(under[0])
        if at == 0:
            return 0.0
        r, (high, low) = np.exp(self._grid.step * np.array([at - 1, at])), value[at - 1 : at + 1]
        rest = (high - delta) / (high - low)
        return round_up(math.log(r[0] + (r[1] - r[0]) * rest) + 2 * far, magnitude=1.0)

    def far(self, times: tuple[int, ...]) -> float:
        """T where the laws of so many outcomes are within e^(±T) of the ones that are bounded."""
        whole = sum(count * part.mixed for count, part in zip(times, self._parts, strict=True))
        return whole * (1 + 2**-50)

    def last(self, times: tuple[int, ...]) -> float:
        """The value at the grid's last place, and beyond."""
        return float(self._value(times)[-1])

    def variance(
        self, times: tuple[int, ...], slack: float, tilted: float = -math.inf, power: float = 0.0
    ) -> float:
        """About the least variance of a Gaussian whose profile, and slack, is above the value; ∞ if none.

        Slack is `slack` and e^`tilted` r^-`power`. Certified at every place; beyond the last, from where the
        value is kept, `slack` alone must be above it (`last`), or it is ∞.
        """
        value, step = self._value(times), self._grid.step
        if value[-1] > slack:
            return math.inf
        x: Floats = step * np.arange(len(value), dtype=np.float64)
        more = slack + np.exp(np.minimum(tilted - power * (x + step), 0.0)) * (1 - 1e-12)

        def stands(variance: float, profile: Callable[..., Floats] = _near_profile) -> bool:
            mode = np.clip(variance / 2, x[:-1], x[1:])
            bend = np.exp(-((mode - variance / 2) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
            # the profile is below its chord by no more
            bend = np.maximum(np.append(bend, 0.0), np.append(0.0, bend)) * (1 + 1e-9)
            gap = bend * math.expm1(step) ** 2 / 8
            return bool((value + gap <= profile(x, variance) + more).all())

        low, high = 0.0, 1e-3 * step
        while not stands(high):
            low, high = high, 2 * high
            if high > 4 * x[-1] + 100:
                return math.inf
        while high - low > 1e-5 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if stands(middle) else (middle, high)
        return raised(high, partial(stands, profile=_profile_down))

    def _value(self, times: tuple[int, ...]) -> Floats:
        if times not in self._found:
            before = [
                (part, (*times[:at], times[at] - 1, *times[at + 1 :]))
                for at, part in enumerate(self._parts)
                if times[at]
            ]
            self._found[times] = np.max([part.most(self._value(each)) for part, each in before], axis=0)
        return self._found[times]


def _profile_down(x: Floats, variance: float) -> Floats:
    """δ at ε = x of a Gaussian with this variance of its loss, certified from below."""
    mu = Fraction(Interval.of(Fraction(variance)).root().down())
    # A place is off by a rounding, and δ falls with it.
    return np.array([gaussian_delta_within(mu, Fraction(each) * _LATER).down() for each in x.tolist()])


def _near_profile(x: Floats, variance: float) -> Floats:
    """About that, and mostly below it, for much less time."""
    mu = math.sqrt(variance)
    first, tail = log_ndtr(mu / 2 - x / mu), log_ndtr(-mu / 2 - x / mu)
    off = 16 * sys.float_info.epsilon * (1 + np.abs(first) + np.abs(tail) + x)
    found: Floats = -np.exp(first - off) * np.expm1(np.minimum(x + tail - first + off, 0.0)) * (1 - 1e-12)
    return found


def _first_below(tails: Any, cut: float, law: NoiseLaw) -> int:
    """The first distance in votes that noise reaches with a chance of at most `cut`."""
    most = 2 * law.depth()
    found = tails(most)[-most - 1 :]
    return int(np.flatnonzero(found <= cut)[0])


def _edges(low: int, high: int, near: float, fine: int, coarse: int) -> Ints:
    """The first place of each cell: finer ones up to `near`, on either side."""
    at = np.arange(low, high + 1)
    kept = (at == low) | np.where(np.abs(at) <= near, at % fine == 0, at % coarse == 0)
    found: Ints = at[kept]
    return found


def _cell(edges: Ints, at: Ints) -> Ints:
    found: Ints = np.maximum(np.searchsorted(edges, at, side="right") - 1, 0)
    return found


def _bits(law: NoiseLaw, at: Ints, moved: int) -> tuple[Floats, Floats]:
    """Chances that noise is `at` or above, and that it is not; and `moved` farther."""
    most = int(np.abs(at).max()) + moved + 1
    tails = law.upper_tails(most)
    here, there = (np.stack((tails[j + most], tails[1 - j + most])) for j in (at, at + moved))
    return here, there


def _pairs(law: NoiseLaw, apart: Ints, moved: int) -> tuple[Floats, Floats]:
    """Chances that a beats b, which is so far below it, and that b does; and twice `moved` less apart."""
    most = int(apart.max()) + 2 * moved + 1
    mass, tails = law.difference_masses(most), law.difference_tails(most + 1)
    above = np.concatenate((1 - tails[:0:-1], tails[1:-1]))  # Pr[Z - Z' >= j] for j = -most..most
    here, there = (
        np.stack([above[1 - e + most] + mass[most - e] / 2 for e in (d, -d)])
        for d in (apart, apart - 2 * moved)
    )
    return here, there

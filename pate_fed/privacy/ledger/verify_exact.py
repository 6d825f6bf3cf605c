"""The second tier of `verify_independent.py`, where NumPy is: ε of votes by the worst adversary's own value.

It lies beside the first, which calls it, and imports nothing of pate_fed. It follows docs/proofs/control.md
("On a grid"), with the lemmas of outcomes.md and same-votes.md there. A value is a function of x = ln r, kept
at x = 0, h, 2h, ... and joined by chords in r, which are above it. What an outcome adds to a value is linear
in its hockey stick, and exact at these places.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SLACK = 3e-14
"""Of a value at each outcome: rounding, and noise that was cut."""
WIDEST = 64.0
"""Votes of noise up to which every place of the lattice is evaluated."""
FAR, NEAR, PARTS, FEWER = 12.0, 5.0, 12, 8
"""In scales: how far below the others' best cells are fine, of each state and of others; a part of one, and
of many whole queries."""
EVERY_STATE = 60
"""Outcomes up to which each state is computed; beyond, a Gaussian's profile stands above the value."""
BEGIN, BLOCK = 10, 2.5  # of one kind whose value is computed before that; of a variance, for one increment
MOST_TEACHERS = 2000  # whose largest total is tried, vote by vote
HIGHEST = 1.25  # of all votes: of a threshold above, that no query meets, the bound here is far too high
KNOWN = ("gnmax", "lnmax", "confident-gnmax", "interactive-gnmax")
LARGEST = 100.0  # ε that a grid is made for
CHORDS = 0.0025  # of the variance of an outcome's loss, that chords may add
_normal = np.vectorize(lambda x: math.erfc(-x / math.sqrt(2)) / 2, otypes=[float])


@dataclass(frozen=True)
class Grid:
    """Places x = 0, step, ..., `size` of them. At 1/r a value is 1 - 1/r + value(r)/r: laws are exchanged."""

    step: float
    size: int
    far: float = FAR

    @cached_property
    def x(self) -> Floats:
        """The places."""
        return np.array([self.step * place for place in range(self.size)])

    def weights(self, value: Floats, before: int, after: int) -> Floats:
        """R times the change of slope at the knots from -`before` to the last, and `after` zeros."""
        low, rise = math.exp(-self.step), np.diff(value)
        left = np.concatenate(([value[0] - (1 - low + low * value[1])], rise))
        change = np.append(rise / math.expm1(self.step), 0.0) + left / math.expm1(-self.step)
        change = np.maximum(change, 0.0)
        below = (change * np.exp(-self.x))[1 : before + 1][::-1]
        return np.concatenate((np.zeros(before - len(below)), below, change, np.zeros(after)))

    def windows(self, value: Floats, span: int, before: int = 0) -> Floats:
        """The weights around each place from -`before` on: (2 `span` + 1, places)."""
        full = self.weights(value, before + span, span)
        return np.ascontiguousarray(sliding_window_view(full, 2 * span + 1).T)

    def both_sides(self, value: Floats, before: int) -> Floats:
        """The value from -`before` on."""
        x = self.x[before:0:-1]
        return np.concatenate((1 - np.exp(-x) + np.exp(-x) * value[before:0:-1], value))

    def moved(self, value: Floats, shift: float) -> Floats:
        """A value that is given on both sides, at x + `shift` for x >= 0, by chords; at most 1."""
        whole = math.floor(max(shift, -1e6) / self.step)
        part = math.expm1(max(shift, -1e6) - whole * self.step) / math.expm1(self.step)
        place = np.arange(self.size) + len(value) - self.size + whole
        one, two = (value[np.clip(each, 0, len(value) - 1)] for each in (place, place + 1))
        return np.where(place < 0, 1.0, (1 - part) * one + part * two)

    def sticks(self, here: Floats, there: Floats, span: int) -> Floats:
        """Σ max(0, p - q/t) - max(0, 1 - 1/t), t = e^(s step): (outcomes, laws) to (laws, s)."""
        turned = np.exp(-self.step * np.arange(-span, span + 1))
        found = np.zeros((here.shape[1], len(turned)))
        for p, q in zip(here, there, strict=True):
            found += np.maximum(p[:, None] - q[:, None] * turned, 0.0)
        sticks: Floats = np.maximum(found - np.maximum(0.0, 1 - turned), 0.0)
        return sticks


def _up(grid: Grid, value: Floats, best: Floats, sticks: Floats) -> Floats:
    ends = max(float(sticks[:, 0].max()), float(sticks[:, -1].max()))
    found: Floats = np.minimum(value + best * (1 + 1e-11) + ends + SLACK, 1.0)
    return found


class Kind(ABC):
    """A kind of outcome: noise of `scale` on totals, of which `totals` change by `moved` votes."""

    def __init__(self, grid: Grid, kind: str, scale: float, moved: int, totals: int) -> None:
        self.grid, self.moved, mu = grid, moved, math.sqrt(totals) * moved / scale
        self.variance = mu * mu
        least, gaussian = 34 + float(grid.x[-1]), kind == "gaussian"
        self.reach = math.ceil(scale * (math.sqrt(2 * least) if gaussian else least)) + 2 * moved
        far = mu * mu / 2 + 7.5 * mu if gaussian else totals * moved / scale
        self.span = min(math.ceil(far / grid.step) + 1, grid.size - 1)
        noise = np.abs(np.arange(-self.reach, self.reach + 1)) / scale
        self.mass = np.exp(-(noise * noise / 2 if gaussian else noise))
        self.mass /= self.mass.sum()
        self.below = np.concatenate(([0.0], np.cumsum(self.mass)))  # Pr[Z < j] for j = -reach..reach + 1

    def most(self, value: Floats) -> Floats:
        """What the outcome makes of a value at most."""
        windows = self.grid.windows(value, self.span)
        best = np.zeros(windows.shape[1])
        for start in range(0, len(self.rows), 512):
            best = np.maximum(best, (self.rows[start : start + 512] @ windows).max(axis=0))
        return _up(self.grid, value, best, self.rows)

    @property
    @abstractmethod
    def rows(self) -> Floats:
        """Hockey sticks, (laws, s)."""


class Bit(Kind):
    """Whether a total reaches a threshold, where it changes by `moved`."""

    def __init__(self, grid: Grid, kind: str, scale: float, moved: int) -> None:
        super().__init__(grid, kind, scale, moved, 1)
        below = self.below
        self.laws = np.stack((below[:0:-1], below[:-1]))  # Pr[Z >= j] = Pr[Z < 1 - j], Pr[Z < j]

    @cached_property
    def rows(self) -> Floats:
        """At every threshold."""
        k, laws = self.moved, self.laws
        both = ((laws[:, k:], laws[:, :-k]), (laws[:, :-k], laws[:, k:]))
        return np.concatenate([self.grid.sticks(*each, self.span) for each in both])


class Winner(Kind):
    """The class that wins, where `moved` votes go from a to b, by how far both stand above the others' best.

    Laws are looked at in cells, and the largest of a cell's taken. By cell: how far a stands above b at most,
    b above a at most, and the higher of both at least.
    """

    def __init__(
        self, grid: Grid, kind: str, scale: float, moved: int, parts: int = PARTS, *, two: bool = False
    ) -> None:
        super().__init__(grid, kind, scale, moved, 2)
        self.two = two  # there is no other class, so a and b are both far above all others
        rows, places = zip(*self._cells(scale, max(1, int(scale // parts))), strict=True)
        self._rows, self.places = np.concatenate(rows), np.concatenate(places, axis=1)

    @property
    def rows(self) -> Floats:
        """One of each cell."""
        return self._rows

    def _cells(self, scale: float, fine: int) -> Iterator[tuple[Floats, Floats]]:
        k, reach = self.moved, self.reach
        edge = reach - k
        at = np.arange(-reach, reach + 1)
        half = self.below[:-1] + self.mass / 2
        # Pr[u + Z >= 0 and it beats v + Z'], by the total y = u + Z: rows u, columns v
        y = np.arange(2 * reach + 1)
        own = np.where(
            np.abs(z := y - at[:, None]) <= reach, self.mass[np.clip(z + reach, 0, 2 * reach)], 0.0
        )
        other = half[np.clip(y[:, None] - at + reach, 0, 2 * reach)]
        other[y[:, None] - at > reach] = 1.0
        won = own @ other
        under, level = self.below[reach - at], self.mass[::-1]  # Pr[Z < -u], Pr[Z = -u]
        far = min(math.ceil(self.grid.far * scale), edge)
        knots = np.unique(
            np.concatenate(([-edge], -np.arange(far, edge, 6 * fine), np.arange(-far, edge + 1, fine)))
        )
        starts = np.searchsorted(at[k:-k], knots)

        def laws(u: Ints, v: Ints) -> Iterator[Floats]:
            a, b = won[np.ix_(u, v)], won[np.ix_(v, u)].T
            below_a, below_b, at_a, at_b = under[u][:, None], under[v], level[u][:, None], level[v]
            yield np.stack((a, b, below_a * below_b))
            tie_a, tie_b = at_a * below_b / 2, at_b * below_a / 2
            yield np.stack((a - tie_a, b - tie_b, below_a * below_b + tie_a + tie_b))

        every = np.arange(k, len(at) - k)
        for first, end in [] if self.two else zip(starts, [*starts[1:], len(every)], strict=True):
            found = np.zeros((len(every), 2 * self.span + 1))
            for u in every[first:end, None]:
                for here, there in zip(laws(u, every), laws(u - k, every + k), strict=True):
                    np.maximum(found, self.grid.sticks(here[:, 0], there[:, 0], self.span), out=found)
            yield np.maximum.reduceat(found, starts, axis=0), self._place(at[every], starts, first, end)
        # both far above all others
        ends = np.arange(2 * k - 2 * reach, 2 * reach + 1)
        apart = np.convolve(self.mass, self.mass)
        beats = np.concatenate(([0.0], np.cumsum(apart)))[:-1] + apart / 2  # Pr[Z' < Z + g], half a tie
        two = np.stack((beats, beats[::-1]))
        yield (
            self.grid.sticks(two[:, 2 * k :], two[:, : -2 * k], self.span),
            np.stack((ends, -ends, np.full(len(ends), math.inf))).astype(float),
        )

    @staticmethod
    def _place(at: Ints, starts: Ints, first: int, end: int) -> Floats:
        """What stands at the lower edge stands for all below it; above the upper one others never win."""
        low = np.where(starts == 0, -math.inf, at[starts])
        high = at[np.append(starts[1:], len(at)) - 1]
        u_low = -math.inf if first == 0 else at[first]
        return np.stack((at[end - 1] - low, high - u_low, np.maximum(at[first], at[starts])))


class Query(Kind):
    """Bit and winner on the same votes, of `teachers`, of which one moves (same-votes.md)."""

    def __init__(
        self, grid: Grid, sigma1: float, sigma2: float, threshold: int, teachers: int, *, two: bool = False
    ) -> None:
        parts = FEWER if grid.far == NEAR else PARTS
        self.winner = Winner(grid, "gaussian", sigma2, 1, parts, two=two)
        self.bit = Bit(grid, "gaussian", sigma1, 1)
        self.grid, self.variance = grid, self.winner.variance + self.bit.variance
        self._threshold, self._teachers = threshold, teachers

    def most(self, value: Floats) -> Floats:
        """What bit and winner make of a value at most, by the largest total and by who has it."""
        grid, before = self.grid, self.bit.span
        given = grid.both_sides(value, before)
        windows = grid.windows(value, self.winner.span, before)
        above, below, held = self._gains(windows)
        best, a, b, other = np.zeros((4, grid.size))
        for largest in range(self._teachers + 1):
            apart = max(0, 2 * largest - self._teachers)
            if apart or not largest:
                a, b, other = (each(apart) for each in (above, below, held))
            near = a if apart <= 1 else other
            moves = (-1, a), (0, np.maximum(near, other)), (1, np.maximum(np.maximum(near, b), other))
            for step, gain in moves:
                (no, yes), (no_then, yes_then) = self._bit(largest), self._bit(largest + step)
                passed = np.minimum(given + gain * (1 + 1e-11) + SLACK, 1.0)
                found = no * grid.moved(given, _log(no_then, no)) + yes * grid.moved(
                    passed, _log(yes_then, yes)
                )
                best = np.maximum(best, found)
        return _up(grid, best, np.zeros(1), self.rows)

    @property
    def rows(self) -> Floats:
        """The winner's."""
        return self.winner.rows

    def _bit(self, total: int) -> tuple[float, float]:
        below = self.bit.below
        place = self._threshold - total + self.bit.reach  # Pr[Z < T - m], and Pr[Z >= T - m]
        no, yes = (below[min(max(at, 0), len(below) - 1)] for at in (place, len(below) - 1 - place))
        return float(no), float(yes)

    def _gains(self, windows: Floats) -> list[Callable[[int], Floats]]:
        """What a winner adds by the votes apart: a stands so far above b, b above a, a third above both."""
        rows, (gap_a, gap_b, high) = self.winner.rows, self.winner.places
        sides = [_Highest(places, windows.shape[1]) for places in (-gap_a, -gap_b, high)]
        for start in range(0, len(rows), 512):
            part = rows[start : start + 512] @ windows
            for side in sides:
                side.add(start, part)
        above, below, held = (side.table() for side in sides)
        z = np.arange(-self.winner.reach, self.winner.reach + 1)  # noise of the third
        # its noise shares the rows out, by the votes apart: all at once
        shares = np.zeros((self._teachers + 1, len(held)))
        for apart, row in enumerate(shares):
            np.add.at(row, sides[2].at(-apart - z), self.winner.mass)
        third = shares @ held
        return [
            lambda apart: above[sides[0].at(np.array(-apart))],
            lambda apart: below[sides[1].at(np.array(-apart))],
            lambda apart: third[apart],
        ]


class _Highest:
    """The largest of rows, by the place of each at most."""

    def __init__(self, places: Floats, width: int) -> None:
        self._known, self._at = np.unique(places, return_inverse=True)
        self._rows = np.zeros((len(self._known) + 1, width))

    def add(self, start: int, part: Floats) -> None:
        at = self._at[start : start + len(part)]
        for into, row in zip(at + 1, part, strict=True):  # many times as fast as reduceat
            np.maximum(self._rows[into], row, out=self._rows[into])

    def at(self, heights: Ints) -> Any:
        """The row of `table` for each height."""
        return np.searchsorted(self._known, heights, side="right")

    def table(self) -> Floats:
        found: Floats = np.maximum.accumulate(self._rows, axis=0)
        return found


def _log(after: float, before: float) -> float:
    return math.log(after / before) if after > 0 and before > 0 else -math.inf


Given = dict[str, Any]
Made = Callable[[Grid], Kind]
"""A kind of outcome on a grid."""


def epsilon(kinds: list[tuple[Made, int]], delta: float, near: float) -> float:
    """ε at δ of so many outcomes of each kind, in any order, each chosen from those before.

    `near` is an upper bound on it; ∞ where none is found below that.
    """
    kinds = [each for each in kinds if each[1]]
    if not kinds:
        return 0.0
    states = math.prod(times + 1 for _, times in kinds) - 1
    return (_every_state if states <= EVERY_STATE else _by_gaussian)(kinds, delta, near)


def votes_epsilon(
    charges: list[tuple[str, Given, int, int]], protection: Given, delta: float, near: float, *, honest: bool
) -> float:
    """ε at δ of queries asked and answered, by mechanism; ∞ of what has no bound here.

    Where totals are `honest` votes bit and winner are on the same ones; it is for the largest number asked.
    """
    if protection["votes_moved"] > 1 or len(charges) != 1 or not 0 < near < LARGEST:
        return math.inf
    [(name, given, asked, answered)] = charges
    if "sigma1" not in given:
        asked = answered = min(asked, answered)
    vanish = protection["unit"] == "hospital" and protection["adjacency"] == "add-or-remove-one"
    return _votes_epsilon(name, json.dumps(given), asked, answered, vanish, honest, delta, near)


@lru_cache(maxsize=64)
def _votes_epsilon(
    name: str, text: str, asked: int, answered: int, vanish: bool, honest: bool, delta: float, near: float
) -> float:
    given: Given = json.loads(text)
    scale: float | None = given.get("sigma2", given.get("sigma", given.get("scale")))
    if name not in KNOWN or scale is None:
        return math.inf
    kind = "laplace" if name == "lnmax" else "gaussian"
    if scale * (1 if kind == "gaussian" else 4 + near / 7) > WIDEST or given.get("sigma1", 0) > 1024:
        return math.inf

    def winner(grid: Grid) -> Kind:
        return Bit(grid, kind, scale, 1) if vanish else Winner(grid, kind, scale, 1)

    if name in ("gnmax", "lnmax"):
        return epsilon([(winner, answered)], delta, near)
    whole = honest and name == "confident-gnmax" and not vanish
    # What is stated may be of both on the same votes, far below the two apart.
    teachers = given.get("num_teachers", math.inf)
    if whole and (teachers > MOST_TEACHERS or given["threshold"] > HIGHEST * teachers):
        return math.inf
    check = partial(Bit, kind=kind, scale=given["sigma1"], moved=1)
    if whole and (together := epsilon([(partial(_query, given), asked)], delta, near)) < near:
        return together
    return epsilon([(winner, answered), (check, asked)], delta, near)


def _query(given: Given, grid: Grid) -> Kind:
    threshold = math.ceil(given["threshold"])
    two = given.get("num_classes") == 2
    return Query(grid, given["sigma1"], given["sigma2"], threshold, given["num_teachers"], two=two)


def _grid(variance: float, last: float, far: float, chords: float = CHORDS) -> Grid:
    step = min(math.sqrt(4 * chords * 0.6 * variance), last / 60)
    return Grid(step, math.ceil(last / step) + 1, far)


def _every_state(kinds: list[tuple[Made, int]], delta: float, near: float) -> float:
    rough = Grid(1.0, 2)
    times = [count for _, count in kinds]
    share = sum(count * made(rough).variance for made, count in kinds) / sum(times)
    grid = _grid(share, 1.2 * near + 0.5, FAR)
    found = {(0,) * len(kinds): np.zeros(grid.size)}
    parts = [made(grid) for made, _ in kinds]
    for state in np.ndindex(*(count + 1 for count in times)):
        before = [(at, (*state[:at], left - 1, *state[at + 1 :])) for at, left in enumerate(state) if left]
        if before:
            found[state] = np.maximum.reduce([parts[at].most(found[other]) for at, other in before])
    return _first(grid, found[tuple(times)], delta)


def _first(grid: Grid, value: Floats, delta: float) -> float:
    """The first place at which the value is not above δ."""
    under = np.flatnonzero(value <= delta)
    if not len(under) or not under[0]:
        return math.inf if not len(under) else 0.0
    one, two = (math.exp(grid.step * (under[0] - back)) for back in (1, 0))
    high, low = value[under[0] - 1], value[under[0]]
    return math.log(one + (two - one) * (high - delta) / (high - low))


def _profile(x: Floats, variance: float) -> Floats:
    """δ at ε = x of Gaussian noise."""
    mu = math.sqrt(variance)
    found: Floats = _normal(mu / 2 - x / mu) - np.exp(x) * _normal(-mu / 2 - x / mu)
    return np.maximum(found, 0.0)


def _above(grid: Grid, made: Floats, between: tuple[float, float], slack: float) -> float:
    """A variance between these whose profile, and `slack`, is above chords of `made`; ∞: none is found."""

    def stands(then: float) -> bool:
        # by how much a chord may be above the profile, in the cells before and after a place
        mode = np.clip(then / 2, grid.x[:-1], grid.x[1:])
        bend = np.exp(-((mode - then / 2) ** 2) / (2 * then)) / math.sqrt(2 * math.pi * then)
        gap = np.maximum(np.append(bend, 0.0), np.append(0.0, bend)) * math.expm1(grid.step) ** 2 / 8
        return bool((made + gap <= _profile(grid.x, then) - 1e-15 + slack).all())

    least, high = low, _ = between
    if made[-1] > slack or not stands(high):
        return math.inf
    while high - low > 1e-3 * (high - least):
        middle = (low + high) / 2
        low, high = (low, middle) if stands(middle) else (middle, high)
    return high


def _increment(kind: Kind, variance: float, slack: float) -> float:
    """A variance by which the profile stands above what the outcome makes of it, but for `slack`."""
    made = kind.most(_profile(kind.grid.x, variance) + 1e-15)
    return _above(kind.grid, made, (variance, variance + 2 * kind.variance), slack) - variance


def _begun(kind: Kind, slack: float) -> float:
    """A variance whose profile, and `slack`, is above the value of `BEGIN` outcomes of one kind."""
    value = np.zeros(kind.grid.size)
    for _ in range(BEGIN):
        value = kind.most(value)
    return _above(kind.grid, value, (0.0, 2 * BEGIN * kind.variance), slack)


def _by_gaussian(kinds: list[tuple[Made, int]], delta: float, near: float) -> float:
    last, slack = 1.3 * near + 0.5, 0.005 * delta / len(kinds)

    def on_grid(made: Made, chords: float) -> Kind:
        return made(_grid(made(Grid(1.0, 2)).variance, last, NEAR, chords))

    parts = [(on_grid(made, 2 * CHORDS), made, times) for made, times in kinds]
    (main, made, times), *others = sorted(parts, key=lambda each: -each[0].variance)
    done, variance = 0, 3 * main.variance
    if not others:
        done, variance = BEGIN, _begun(on_grid(made, 4 * CHORDS), slack)
    start = variance
    for other, _, count in others:
        variance += count * _increment(other, start, slack / count)
    while done < times and variance < math.inf:  # an increment holds for all larger variances
        size = min(times - done, max(1, math.floor(BLOCK * start / main.variance)))
        rise = size * _increment(main, start, slack / times)
        start, variance, done = start + rise, variance + rise, done + size
    return _least(variance, 0.99 * delta) if variance < math.inf else math.inf


def _least(variance: float, delta: float) -> float:
    low, high = 0.0, 700.0
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _profile(np.array([middle]), variance)[0] <= delta else (middle, high)
    return high

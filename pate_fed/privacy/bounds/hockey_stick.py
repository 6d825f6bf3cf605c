"""What one query's outcome costs, the check's bit and the class that wins: RDP, and δ(ε), the hockey stick.

Both divergences' sums over the outcomes are jointly convex and homogeneous, grow with p and fall with q, so
the same lemmas hold for both. `docs/proofs/hockey-stick.md` has the proofs of the second, and what its
pointwise supremum is: the noisy totals' own, within a few parts in a hundred. Both are for one release, and
for those who see labels, not for those who see noisy totals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

import numpy as np

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import gaussian_delta
from pate_fed.privacy.bounds.lattice import CoarseLattice, Lattice, Region
from pate_fed.privacy.bounds.noise_law import (
    GAUSSIAN,
    LAPLACE,
    Ints,
    NoiseLaw,
    Reach,
    tail_sum,
)
from pate_fed.privacy.checks import Floats, check_count, check_delta, check_orders, check_sigma, is_number

# RDP of what a query releases: the class that wins under noise, and the bit of a threshold check.
#
# Neighbours move one vote from class a to class b. Let M be the largest noisy total of all other classes:
# its law is the same on both sides, so it may as well be revealed. What is left is which of a, b and
# "another" wins, where a and b stand u and v votes above M: two numbers, whatever the number of classes.
# The supremum over u and v is taken over a finite lattice, and bounded outside it.
# `docs/proofs/outcomes.md` has the lemmas, the bounds by their numbers, and who is not covered: whoever
# sees noisy totals.


WIDEST = {GAUSSIAN: 10_000.0, LAPLACE: 100.0}  # votes of noise that a lattice is searched for
_BEYOND = {GAUSSIAN: 1.25, LAPLACE: 1.75}  # of that, from where that much noise costs more than the totals
_EVERY = 256.0  # votes of Gaussian noise up to which every point of the lattice is
_EVERY_MOVED = 80.0  # that where several votes move, which no earlier version evaluated
T = TypeVar("T", float, Floats)

_PART = 40  # of the noise, the step from point to point beyond: it costs 0.15 %
_MOST_MOVED = 100_000  # votes of one unit; beyond, the totals are charged
# Of a probability and its logarithm, 6.9e-13 at most (docs/proofs/rounding.md). Earlier versions added 1e-12,
# so whatever a float does here, a figure that they wrote is not below today's.
_OUTCOME_ROUNDING = 8e-13
# Of the larger supremum of two outcomes, at which a bound outside the lattice is low enough; that of three
# outcomes is mostly above the first, and where it is not the next is tried.
_GOALS = {GAUSSIAN: (1.001,), LAPLACE: (1.15, 1.03, 1.002)}
_LOW_ENOUGH = 1.003  # of what the lattice reaches
_MOST_CELLS = 30_000_000  # of the lattice where several votes move, some seconds; single votes have their own
_SHARED = 2.0  # the order whose region higher ones look at as well
_KEPT_CELLS = 1_500_000  # of the last lattice, which stays in memory: 150 MB
_GRID = 8  # orders for each factor e of α - 1, between which chords bound what several votes cost


@lru_cache(maxsize=4096)
def bit_rdp(scale: float, order: float, *, shift: int = 1, kind: str = GAUSSIAN) -> float:
    """Largest RDP at `order` of the bit [n + Z >= T] where n changes by at most `shift` votes; rounded up.

    Z is discrete N(0, `scale`²), or discrete Laplace noise of that scale, and n any whole number, so the
    bound holds for every threshold. It is at most the noise's own: α `shift`²/(2σ²), or min(ε, ε² α/2) with
    ε = `shift`/scale.
    """
    scale, order = check_sigma("sigma", scale), float(check_orders(order)[0])
    k = check_count("shift", shift, least=1)
    law = NoiseLaw(kind, scale)
    own = law.rdp(order, k)
    found = (_bit_rdp(law, order, k, reach.one) for reach in law.reaches(order, k))
    return next((rdp for rdp in found if rdp < own), own)


def _bit_rdp(law: NoiseLaw, order: float, k: int, reach: int) -> float:
    """The bit's supremum up to `reach`, and its bound beyond."""
    most = reach + k + 1
    above = law.upper_tails(most + k)  # Pr[Z >= j] for j = -(most + k)..most + k

    def bit(j: Ints) -> Floats:  # ln Pr[Z >= j], and Pr[Z < j] = Pr[Z >= 1 - j] by symmetry
        return _log(np.stack((above[j + most + k], above[1 - j + most + k])))

    j = np.arange(-reach, reach + 1)
    inside = max(_renyi(bit(j), bit(j + step), order) for step in (-k, k))
    outside = _contested(
        0.0,
        order,
        loses=above[[reach - k + most + k]],
        others=law.tilted_tails(order, k, most)[[reach + most]],
    )
    return rounded_up(max(inside, float(outside[0])), order)


@lru_cache(maxsize=4096)
def argmax_rdp(scale: float, order: float, *, shift: int = 1, kind: str = GAUSSIAN) -> float:
    """Largest RDP at `order` of the winning class where up to `shift` votes move; rounded up.

    The totals have discrete N(0, `scale`²) noise each, or discrete Laplace noise of that scale; ties are
    broken uniformly. The bound holds for any number of classes and any votes, also where the votes go from
    and to several classes (Lemma 8), and is at most the noisy totals' own: αk²/σ² (P18, Proposition 8), or
    min(ε, ε² α/2) with ε = 2k/scale, k = `shift`. For large σ it tends to 2/π of that, for Laplace noise to
    about a third. Noise beyond `WIDEST` is charged as so much, or as the totals.
    """
    scale, order = check_sigma("sigma", scale), float(check_orders(order)[0])
    k = check_count("shift", shift, least=1)
    law = NoiseLaw(kind, scale)
    own = 2 * law.rdp(order, k) if kind == GAUSSIAN else law.rdp(order, 2 * k)
    if scale > _BEYOND[kind] * WIDEST[kind]:
        return own
    law, step = _narrower(law, _EVERY if k == 1 else _EVERY_MOVED)
    found = (_argmax_rdp(law, order, k, reach, step) for reach in law.reaches(order, k))
    return next((rdp for rdp in found if rdp < own), own)


def _narrower(law: NoiseLaw, every: float) -> tuple[NoiseLaw, int]:
    """Less noise that stands for `law`, and the step of the lattice's points that then suffices (Lemma 7)."""
    if law.scale <= (every if law.kind == GAUSSIAN else WIDEST[law.kind]):
        return law, 1
    if law.kind == LAPLACE:
        return NoiseLaw(law.kind, WIDEST[law.kind]), 1
    step = math.floor(min(law.scale, WIDEST[law.kind]) / _PART)
    # (3/2 step)² = s² r²/σ² with r² = σ² - s²: the larger root.
    share = math.sqrt(1 - (3 * step / law.scale) ** 2)
    return NoiseLaw(
        law.kind, min(law.scale * math.sqrt((1 + share) / 2) * (1 - 1e-12), WIDEST[law.kind])
    ), step


def _argmax_rdp(law: NoiseLaw, order: float, k: int, reach: Reach, step: int) -> float:
    """The winner's supremum over the lattice's points, and the bounds outside of it."""
    found = math.inf
    # Every goal gives a valid bound; a lower one takes a larger lattice, and is tried while that may help.
    for goal in _GOALS[law.kind]:
        bounds = _outside_outcomes(law, order, k, reach, goal)
        region, outside = bounds.region, max(bounds.out, bounds.both, bounds.wins)
        if k > 1 and step == 1 and region.cells > _MOST_CELLS:
            return found
        pairs = _lattice_pairs(law, order, k, region, step)
        inside = max((_renyi(here, there, order) for here, there in pairs), default=0.0)
        found = min(found, rounded_up(max(inside, outside), order))
        if outside <= _LOW_ENOUGH * inside:
            break
    return found


def _lattice_pairs(
    law: NoiseLaw, order: float, k: int, region: Region, step: int
) -> Iterable[tuple[Floats, Floats]]:
    """Logarithms of the chances in the region and at each one's neighbour, as `Lattice.pairs`."""
    if step > 1:
        return CoarseLattice(law, region, shift=k, step=step).pairs(_log)
    if order > _SHARED and (reaches := law.reaches(_SHARED, k)):
        # Regions shrink as orders rise, and more points harm no bound: one lattice does for many orders.
        wide = region.with_all_of(_outside_outcomes(law, _SHARED, k, reaches[0], _GOALS[law.kind][0]).region)
        region = wide if wide.cells <= _KEPT_CELLS else region
    if region.cells <= _KEPT_CELLS:
        return _kept_pairs(law, k, region)
    return Lattice(law, region, shift=k).pairs(_log)


@lru_cache(maxsize=1)
def _kept_pairs(law: NoiseLaw, k: int, region: Region) -> list[tuple[Floats, Floats]]:
    return list(Lattice(law, region, shift=k).pairs(_log))


def moved_rdp(one: Callable[[float], float], order: float, votes: int) -> float:
    """RDP at `order` where a unit sways `votes` votes, one after the other; `one` is that of a vote.

    Σ over j < k of kα/(kα - j) `one`(kα - j), by Hölder's inequality along a path of single votes (Bun and
    Steinke 2016, unrolled). (α - 1) times a divergence is convex, so chords from order to order bound it
    between them. ∞ for so many votes that the sum is long.
    """
    if votes == 1:
        return one(order)
    if votes > _MOST_MOVED:
        return math.inf
    high = votes * order  # Hölder: the orders along the path fall from kα to kα - k + 1
    low = high - votes + 1
    between = np.exp(np.arange(math.floor(_GRID * math.log(low - 1)), _GRID * math.log(high - 1)) / _GRID)
    nodes = np.array([low, *(1 + between[(between > low - 1) & (between < high - 1)]), high])
    moments = (nodes - 1) * [one(node) for node in nodes.tolist()]
    orders = high - np.arange(votes)
    # Never above the one chord from end to end, whose bounds at the ends are not off by more than another's.
    chords = np.minimum(
        np.interp(orders, nodes, moments), np.interp(orders, nodes[[0, -1]], moments[[0, -1]])
    )
    found = float((high / orders * chords / (orders - 1)).sum())
    return found * (1 + 1e-12)


class _Outside(NamedTuple):
    """The lattice's region, and what bounds the RDP outside of it, by the cases of Lemma 3.

    `above` is the second case's bound by the RDP of the two that contest, `both` that at their supremum.
    """

    region: Region
    out: float
    above: Callable[[Floats], Floats]
    both: float
    wins: float


def _outside_outcomes(
    law: NoiseLaw, order: float, k: int, reach: Reach, goal: float, *, near_bit: bool = False
) -> _Outside:
    """The distances in votes from which each bound of Lemma 3 holds, and the bounds there.

    `goal` is what they may be of the larger supremum of two outcomes; `near_bit`: of the bit's, where no two
    contest.
    """
    most = reach.one + 4
    # By the distance g: Pr[Z >= g]; the moments of Z >= g where the total falls, and where it rises.
    tail, toward, away = (
        law.upper_tails(most)[most:],
        law.tilted_tails(order, k, most)[most:],
        law.tilted_tails(order, -k, most)[most:],
    )
    whole = float(law.tilted_tails(order, k, most)[0])
    pair, pair_moment = law.difference_tails(most), law.tilted_sum_tails(order, k, most)
    bit, two = bit_rdp(law.scale, order, shift=k, kind=law.kind), _pair_rdp(law, order, k, reach.pair)
    enough = goal * max(bit, two)  # the supremum of three outcomes is at least that of two
    one = goal * bit if near_bit else enough
    at = np.arange(2 * k + 1, reach.one + 1)

    def first(rdp: float, most: float, *, loses: Floats, others: Floats) -> tuple[int, float]:
        bound = _contested(rdp, order, loses=loses, others=others)
        below = np.flatnonzero(bound <= most)
        place = int(below[0]) if len(below) else len(at) - 1
        return int(at[place]), float(bound[place])

    low, out = first(bit, one, loses=tail[at + 1 - k], others=whole + toward[at])
    both, above = first(two, enough, loses=tail[at - k], others=toward[at] + away[at])
    # Each half of what the winner may lose, and of what the rest adds.
    ahead, _ = first(0.0, one, loses=2 * tail[at - k], others=math.log(2) + whole + toward[at])
    gap, _ = first(0.0, one, loses=2 * pair[at - 2 * k], others=math.log(2) + pair_moment[at])
    wins = _contested(
        0.0,
        order,
        loses=tail[[ahead - k]] + pair[[gap - 2 * k]],
        others=np.logaddexp(whole + toward[[ahead]], pair_moment[[gap]]),
    )
    at_both = partial(_contested, order=order, loses=tail[[both - k]], others=toward[[both]] + away[[both]])
    return _Outside(Region(low=low, both=both, ahead=ahead, gap=gap), out, at_both, above, float(wins[0]))


@lru_cache(maxsize=4096)
def _pair_rdp(law: NoiseLaw, order: float, k: int, reach: int) -> float:
    """The supremum where a and b alone contest: [d + Z - Z' > 0], a tie counting half, d changing by 2k."""
    return float(_pair_by_gap(law, order, k, reach)[:, 0].max())


def _pair_by_gap(law: NoiseLaw, order: float, k: int, reach: int) -> Floats:
    """That supremum where a stands D or more above b, and where so far below. Shapes: (2, `reach` + 2).

    D = 0..`reach` + 1; the last of each holds for all further. a loses what b gains.
    """
    most = reach + 2 * k + 2
    mass = law.difference_masses(most)
    tails = law.difference_tails(most + 1)
    above = np.concatenate((1 - tails[:0:-1], tails[1:-1]))  # Pr[Z - Z' >= j] for j = -most..most

    def wins(d: Ints) -> Floats:  # ln of both outcomes' chances
        return _log(np.stack([above[1 - e + most] + mass[most - e] / 2 for e in (d, -d)]))

    d = np.arange(reach + 1)
    here = wins(d)
    # Below is above with the two exchanged: the difference then grows.
    moments = np.stack([_moments(here, wins(d + step), order) for step in (-2 * k, 2 * k)])
    outside = _contested(
        0.0, order, loses=tails[[reach - 2 * k]], others=law.tilted_sum_tails(order, k, most)[[reach]]
    )
    inside = np.concatenate((np.log(moments) / (order - 1), np.full((2, 1), outside)), axis=1)
    return _from_each_on(inside)


def _from_each_on(values: Floats) -> Floats:
    """The largest from each place to the last, along the last axis."""
    found: Floats = np.maximum.accumulate(values[..., ::-1], axis=-1)[..., ::-1]
    return found


class WinnerBounds(NamedTuple):
    """Moments Σ p^α q^(1-α) of the winner where votes move from a class a to a class b, at most.

    `above` is by n_a - n_b, that or more, from 0 on; `below` by n_b - n_a; `under` by how far both stand
    above the best noisy total of the others at most, from `low` on. The last of each holds for all that
    follows, the first of `under` for all below. Where one class alone changes, all of them hold.
    """

    above: Floats
    below: Floats
    low: int
    under: Floats


@lru_cache(maxsize=256)
def winner_bounds(scale: float, order: float, *, shift: int = 1, two: bool = False) -> WinnerBounds | None:
    """What `argmax_rdp` bounds of Gaussian noise, by where a and b stand; None where no table reaches.

    Where there are but `two` classes nobody else contests. It goes as far as every point of the lattice is
    looked at: to 256 votes of noise, 80 where several move.
    """
    law, k = NoiseLaw(GAUSSIAN, check_sigma("sigma", scale)), shift
    reaches = law.reaches(order, k)
    if not reaches or scale > (_EVERY if k == 1 else _EVERY_MOVED):
        return None
    if two:
        above, below = _moment_up(_pair_by_gap(law, order, k, reaches[0].pair), order)
        return WinnerBounds(above, below, 0, np.ones(1))
    outside = _outside_outcomes(law, order, k, reaches[0], _GOALS[GAUSSIAN][0], near_bit=True)
    region = outside.region
    if region.cells > _MOST_CELLS:
        return None
    far = max(outside.out, outside.wins)
    apart = outside.above(_pair_by_gap(law, order, k, reaches[0].pair))
    under = np.full(region.both + region.widest + region.low + 1, far)
    for (u, v), here, there in Lattice(law, region, shift=k).placed(_log):
        found = np.log(_moments(here, there, order)) / (order - 1)
        for side, gap in zip(apart, (u - v, v - u), strict=True):
            np.maximum.at(side, np.minimum(gap[gap >= 0], len(side) - 1), found[gap >= 0])
        np.maximum.at(under, np.clip(np.maximum(u, v) + region.low, 0, len(under) - 1), found)
    np.maximum(under[region.both + region.low :], outside.both, out=under[region.both + region.low :])
    above, below = _moment_up(np.maximum(_from_each_on(apart), far), order)
    return WinnerBounds(above, below, -region.low, _moment_up(np.maximum.accumulate(under), order))


def _moment_up(rdp: Floats, order: float) -> Floats:
    found: Floats = np.exp((order - 1) * rounded_up(rdp, order)) * (1 + 1e-12)
    return found


def _log(chances: Floats) -> Floats:
    """Ln of chances, -∞ where a float cannot tell it. Shapes: any to the same."""
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(chances)
    return logs


def _renyi(here: Floats, there: Floats, order: float) -> float:
    """Largest Rényi divergence of logarithms, outcomes on the first axis; ∞ where a float cannot tell it."""
    largest = float(_moments(here, there, order).max())
    return math.log(largest) / (order - 1) if largest < math.inf else math.inf


def _moments(here: Floats, there: Floats, order: float) -> Floats:
    """Σ p^α q^(1-α) of logarithms, outcomes on the first axis; ∞ where a float cannot tell it."""
    with np.errstate(invalid="ignore", over="ignore"):
        found: Floats = np.exp(order * here + (1 - order) * there).sum(axis=0)
    found[np.isnan(found)] = math.inf
    return found


def _contested(rdp: Floats | float, order: float, *, loses: Floats, others: Floats) -> Floats:
    """RDP where outcomes of divergence `rdp` contest, each losing at most a share `loses` to a further one.

    `others` is ln of what the further one adds to the moment. Shapes: any, both the same.
    """
    with np.errstate(divide="ignore"):
        kept = (order - 1) * (rdp - np.log1p(-np.minimum(loses, 1.0)))
    found: Floats = np.logaddexp(kept, others) / (order - 1)
    return found


def rounded_up(rdp: T, order: float) -> T:
    """The figure and its own rounding error: α ln p - (α-1) ln q has that of 2α - 1 probabilities."""
    return rdp * (1 + 1e-12) + _OUTCOME_ROUNDING * (2 * order - 1) / (order - 1)


_WIDEST = 20_000.0  # votes of noise beyond which a table takes long
_REACH = {GAUSSIAN: 9.0, LAPLACE: 40.0}  # scales that hold all but 1e-17 of the noise
_ROUNDING = 2e-12  # relative, of a chance: sums of at most 10^6 positive terms
_CUT = 1e-15  # of a chance, beyond the tables
_NEAR = 1.004  # of a supremum that is known, at which no lattice is searched
_OUTSIDE = 0.001  # of it, that the bounds outside the lattice may add

_ROUGH = 4  # points of a coarse lattice in a scale of the noise, for a supremum from below
_LARGEST = 700.0  # ε whose exponential is a float
_PRECISION = 1e-6  # of an ε that is searched


@lru_cache(maxsize=4096)
def bit_delta(scale: float, epsilon: float, *, shift: int = 1, kind: str = GAUSSIAN) -> float:
    """δ at ε of the bit [n + Z >= T] where n changes by at most `shift` votes; exact but for rounding up.

    Z is discrete N(0, `scale`²), or discrete Laplace noise of that scale. It is the noisy total's own δ, Σ
    max(0, Pr[Z = x] - e^ε Pr[Z = x + shift]): the loss is monotone in x, so one threshold reaches it. Beyond
    20,000 votes of Gaussian noise that of continuous noise is stated, within 1e-8 of it; of Laplace noise
    that at ε = 0.
    """
    scale, epsilon, k = _check(scale, epsilon, shift)
    if k > 4 * _REACH[kind] * scale + 10:  # the two laws hardly meet
        return 1.0
    if scale > _WIDEST:  # Pr[Z = 0] is below either, by Poisson summation and by tanh
        largest = 1 / (scale * math.sqrt(2 * math.pi)) if kind == GAUSSIAN else 1 / (2 * scale)
        return min(_continuous_delta(scale, epsilon, k, kind), k * largest * (1 + _ROUNDING))
    # by x: Pr[Z = x] and Pr[Z = x + k]
    mass = NoiseLaw(kind, scale).masses(math.ceil(_REACH[kind] * scale) + k + 2)
    return _summed(mass[:-k], mass[k:], epsilon)


@lru_cache(maxsize=4096)
def argmax_delta(scale: float, epsilon: float, *, shift: int = 1, kind: str = GAUSSIAN) -> float:
    """δ at ε of the winning class where `shift` votes move from one class to another; rounded up.

    For any number of classes and any votes, ties broken uniformly. At most the noisy totals' own δ, which is
    in closed form. Above the true supremum by less than 1 % for Gaussian noise, and for Laplace noise of up
    to `outcomes.WIDEST` votes where δ is at least 1e-9. Wider Laplace noise is charged as that of so many.
    """
    scale, epsilon, k = _check(scale, epsilon, shift)
    if k > 4 * _REACH[kind] * scale + 10:
        return 1.0
    own = _totals_delta(scale, epsilon, k, kind)
    if own < 1e-14 or (kind == GAUSSIAN and scale > WIDEST[kind]):
        return own
    if scale > WIDEST[kind]:  # more Laplace noise is less, and further noise of its own
        return min(own, argmax_delta(WIDEST[kind], epsilon, shift=k, kind=kind))
    law = NoiseLaw(kind, scale)
    two = _pair_delta(law, epsilon, k)
    if own <= _NEAR * two:
        return own
    region, outside = _outside(law, epsilon, k, two)
    if region is None or region.cells > _MOST_CELLS:
        return own
    pairs = Lattice(law, region, shift=k).pairs(lambda chances: chances)
    inside = max((float(_positive(*pair, epsilon).max()) for pair in pairs), default=0.0)
    return min(own, max(inside + _CUT, outside))


def bit_epsilon(scale: float, delta: float, *, shift: int = 1, kind: str = GAUSSIAN) -> float:
    """ε at δ of the bit that `bit_delta` bounds; rounded up, ∞ where none is found."""
    return _inverse(lambda epsilon: bit_delta(scale, epsilon, shift=shift, kind=kind) > delta, delta)


def argmax_epsilon(scale: float, delta: float, *, shift: int = 1, kind: str = GAUSSIAN) -> float:
    """ε at δ of the winning class that `argmax_delta` bounds; rounded up, ∞ where none is found."""
    scale, _, k = _check(scale, 0.0, shift)
    law = NoiseLaw(kind, min(scale, WIDEST[kind]))  # less noise: never a smaller ε

    def above(epsilon: float) -> bool:
        # The totals, and some points of the lattice, decide most for much less time.
        if kind == LAPLACE and k <= scale:
            own = _totals_delta(scale, min(epsilon, _LARGEST), k, kind)
            if own <= delta or min(own, _reached(law, min(epsilon, _LARGEST), k)) > delta:
                return own > delta
        return argmax_delta(scale, epsilon, shift=k, kind=kind) > delta

    return _inverse(above, delta)


def _inverse(above: Callable[[float], bool], delta: float) -> float:
    """An ε at which δ is not passed, by bisection: whatever the rounding, it is not at this one."""
    check_delta(delta)
    low, high = 0.0, 0.0
    while above(high):
        low, high = high, 2 * high or 2.0**-20
        if high > _LARGEST:
            return math.inf
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return high


def _check(scale: float, epsilon: float, shift: int) -> tuple[float, float, int]:
    if not is_number(epsilon) or not epsilon >= 0:
        raise InputError(f"epsilon={epsilon!r}: must be a number of at least 0")
    # δ falls with ε, so a smaller ε errs upward.
    return (
        check_sigma("sigma", scale),
        min(float(epsilon), _LARGEST),
        check_count("shift", shift, least=1),
    )


def _positive(here: Floats, there: Floats, epsilon: float) -> Floats:
    """Σ max(0, p - e^ε q) over the outcomes, rounded up. Shapes: (outcomes, cells) both to (cells,)."""
    more = here * (1 + _ROUNDING) - there * (math.exp(epsilon) * (1 - _ROUNDING))
    found: Floats = np.maximum(more, 0.0).sum(axis=0)
    return found


def _summed(here: Floats, there: Floats, epsilon: float) -> float:
    return min(1.0, float(_positive(here, there, epsilon)) * (1 + _ROUNDING) + _CUT)


def _totals_delta(scale: float, epsilon: float, k: int, kind: str) -> float:
    """δ at ε of two noisy totals of which one loses what the other gains, `k` votes; rounded up."""
    if scale > _WIDEST:
        most = 2 * bit_delta(scale, 0.0, shift=k, kind=kind)
        return min(_continuous_delta(scale, epsilon, math.sqrt(2) * k, kind), most)
    if kind == GAUSSIAN:  # the loss is a function of the two noises' difference
        most = math.ceil(1.5 * _REACH[kind] * scale) + 2 * k + 2
        mass = NoiseLaw(kind, scale).difference_masses(most)
        return _summed(mass[: -2 * k], mass[2 * k :], epsilon)
    # One total's loss is (2x + k)/scale for noise x from -k to 0; beyond, as at these ends.
    law = NoiseLaw(kind, scale)
    most = k + law.depth()
    masses = law.masses(most)
    one = np.concatenate(([masses[: most - k + 1].sum()], masses[most - k + 1 : most], [masses[most:].sum()]))
    both = np.convolve(one, one)  # two independent totals: losses add
    loss, off = (2.0 * np.arange(len(both)) - 2 * k) / scale, len(one) * 2.0**-52
    return _summed(both * (1 + off), both * np.exp(-loss) * (1 - off), epsilon)


def _continuous_delta(scale: float, epsilon: float, moved: float, kind: str) -> float:
    """δ at ε of totals that move by a length of `moved`, from continuous Gaussian noise; rounded up.

    For one total or two. The integer noise is within e^(±6e-17) of rounded continuous noise of variance
    `scale`² - 2 (docs/proofs/class-sums.md, Theorem 2). 1 for other noise.
    """
    if kind != GAUSSIAN:
        return 1.0
    mu = moved / math.sqrt(scale * scale - 2) * (1 + _ROUNDING)
    # δ falls by at most h where ε rises by h.
    return min(1.0, gaussian_delta(mu, epsilon) * (1 + _ROUNDING) + _CUT)


def _pair_delta(law: NoiseLaw, epsilon: float, k: int) -> float:
    """The supremum where a and b alone contest: [d + Z - Z' > 0], a tie counting half, d falling by 2k."""
    most = math.ceil(1.5 * _REACH[law.kind] * law.scale) + 2 * k + 2
    mass = law.difference_masses(most)
    above = tail_sum(mass)
    wins = (above[1:] + mass[:-1] / 2)[::-1]  # by d, rising
    return float(_positive(wins[2 * k :][None], wins[: -2 * k][None], epsilon).max()) + _CUT


def _reached(law: NoiseLaw, epsilon: float, k: int) -> float:
    """What some points of the lattice reach, a little less: below the supremum, and near it."""
    near, far = (math.ceil(number * law.scale) + 2 * k for number in (4, 24))
    region = Region(low=near, both=near, ahead=far, gap=far)
    lattice = CoarseLattice(law, region, shift=k, step=max(1, math.floor(law.scale / _ROUGH)))
    points = next(lattice.pairs(lambda chances: chances))  # at κ = 0, where they are chances
    return float(_positive(*points, epsilon).max()) * (1 - 1e-9) - _CUT


def _outside(law: NoiseLaw, epsilon: float, k: int, two: float) -> tuple[Region | None, float]:
    """The distances in votes from which each bound holds, and the largest of these; none where out of reach.

    `two` is the supremum of two outcomes. The lattice's is at least that, and at least what its points reach.
    """
    most = math.ceil(_REACH[law.kind] * law.scale) + 2 * k + 4
    tail, pair = law.upper_tails(most)[most:], law.difference_tails(most)
    bit, at = bit_delta(law.scale, epsilon, shift=k, kind=law.kind), np.arange(2 * k + 2, most)
    reached = _reached(law, epsilon, k)
    goal = max((1 + _OUTSIDE) * two, reached)
    least = max(two, reached)

    def out(tails: Floats) -> Floats:  # p of who is out, and what the others lose of q
        found: Floats = tails + tails / (1 - np.minimum(tails, 0.5))
        return found

    low = np.flatnonzero(bit + out(tail[at + 1 - k]) <= goal)
    both = np.flatnonzero(two + out(tail[at - k]) <= goal)
    ahead = np.flatnonzero(4 * tail[at - k] <= least)
    gap = np.flatnonzero(4 * pair[at - 2 * k] <= least)
    if not (len(low) and len(both) and len(ahead) and len(gap)):
        return None, math.inf
    first = [int(at[places[0]]) for places in (low, both, ahead, gap)]
    region = Region(low=first[0], both=first[1], ahead=first[2], gap=first[3])
    loses = float(tail[region.ahead - k] + pair[region.gap - 2 * k])
    wins = max(0.0, 1 - math.exp(epsilon) * (1 - loses)) + loses
    ends = out(np.array([tail[region.low + 1 - k], tail[region.both - k]]))
    outside = max(bit + float(ends[0]), two + float(ends[1]), wins)
    return region, outside * (1 + _ROUNDING) + _CUT

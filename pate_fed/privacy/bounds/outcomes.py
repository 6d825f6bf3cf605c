"""RDP of what a query releases: the class that wins under noise, and the bit of a threshold check.

Neighbours move one vote from class a to class b. Let M be the largest noisy total of all other classes: its
law is the same on both sides, so it may as well be revealed. What is left is which of a, b and "another"
wins, where a and b stand u and v votes above M: two numbers, whatever the number of classes. The supremum
over u and v is taken over a finite lattice, and bounded outside it. `docs/proofs/outcomes.md` has the lemmas,
the bounds by their numbers, and who is not covered: whoever sees noisy totals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from pate_fed.privacy.bounds.lattice import Lattice, Region
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, LAPLACE, Ints, NoiseLaw
from pate_fed.privacy.bounds.orders import Floats, check_orders, check_sigma
from pate_fed.privacy.checks import check_count

__all__ = ["WIDEST", "argmax_rdp", "bit_rdp", "moved_rdp"]

WIDEST = {GAUSSIAN: 256.0, LAPLACE: 48.0}  # votes of noise beyond which the lattice takes many seconds
_MOST_MOVED = 100_000  # votes of one unit; beyond, the totals are charged
_ROUNDING = 1e-12  # of a probability: cumulative sums of at most 10^4 positive terms
_GOAL = {GAUSSIAN: 1.001, LAPLACE: 1.15}  # of the larger supremum of two outcomes; that of three is above


@lru_cache(maxsize=4096)
def bit_rdp(scale: float, order: float, *, shift: int = 1, kind: str = GAUSSIAN) -> float:
    """Largest RDP at `order` of the bit [n + Z >= T] where n changes by at most `shift` votes; rounded up.

    Z is discrete N(0, `scale`²), or discrete Laplace noise of that scale, and n any whole number, so the
    bound holds for every threshold. It is at most the noise's own: α `shift`²/(2σ²), or min(ε, ε² α/2) with
    ε = `shift`/scale.

    Raises:
        InputError: scale, order or shift out of range.
    """
    scale, order = check_sigma("sigma", scale), float(check_orders(order)[0])
    k = check_count("shift", shift, least=1)
    law = NoiseLaw(kind, scale)
    own = law.rdp(order, k)
    reach = law.farthest(order, k)
    if reach is None:
        return own
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
    return min(own, _rounded_up(max(inside, float(outside[0])), order))


@lru_cache(maxsize=4096)
def argmax_rdp(scale: float, order: float, *, kind: str = GAUSSIAN) -> float:
    """Largest RDP at `order` of the winning class where one vote moves; rounded up.

    The totals have discrete N(0, `scale`²) noise each, or discrete Laplace noise of that scale; ties are
    broken uniformly. The bound holds for any number of classes and any votes, and is at most the noisy
    totals' own: α/σ² (P18, Proposition 8), or min(ε, ε² α/2) with ε = 2/scale. For large σ it tends to 2/π of
    that, for Laplace noise to about a third. Noise beyond `WIDEST` is charged as the totals.

    Raises:
        InputError: scale or order out of range.
    """
    scale, order = check_sigma("sigma", scale), float(check_orders(order)[0])
    law = NoiseLaw(kind, scale)
    own = 2 * law.rdp(order, 1) if kind == GAUSSIAN else law.rdp(order, 2)
    reach = law.farthest(order, 1)
    if reach is None or scale > WIDEST[kind]:
        return own
    region, outside = _outside(law, order, reach)
    pairs = Lattice(law, region).pairs(_log)
    inside = max((_renyi(here, there, order) for here, there in pairs), default=0.0)
    return min(own, _rounded_up(max(inside, outside), order))


def moved_rdp(one: Callable[[float], float], order: float, votes: int) -> float:
    """RDP at `order` where a unit sways `votes` votes, each from and to any class; `one` is that of a vote.

    Σ over j < k of kα/(kα - j) `one`(kα - j), by Hölder's inequality along a path of single votes (Bun and
    Steinke 2016, unrolled). (α - 1) times a divergence is convex, so two orders bound those between. ∞ for so
    many votes that the sum is long.
    """
    if votes == 1:
        return one(order)
    if votes > _MOST_MOVED:
        return math.inf
    high = votes * order
    low = high - votes + 1
    first, last = (low - 1) * one(low), (high - 1) * one(high)
    orders = high - np.arange(votes)
    chord = first + (last - first) * (orders - low) / (high - low)
    found = float((high / orders * chord / (orders - 1)).sum())
    return found * (1 + 1e-12)


def _outside(law: NoiseLaw, order: float, reach: int) -> tuple[Region, float]:
    """The distances in votes from which each bound of Lemma 3 holds, and the largest of these bounds."""
    most = reach + 4
    # By the distance g: Pr[Z >= g]; the moments of Z >= g where the total falls, and where it rises.
    tail, toward, away = (
        law.upper_tails(most)[most:],
        law.tilted_tails(order, 1, most)[most:],
        law.tilted_tails(order, -1, most)[most:],
    )
    whole = float(law.tilted_tails(order, 1, most)[0])
    pair, pair_moment = law.difference_tails(most), law.tilted_sum_tails(order, most)
    bit, two = bit_rdp(law.scale, order, kind=law.kind), _pair_rdp(law.scale, order, law.kind)
    goal = _GOAL[law.kind] * max(bit, two)
    at = np.arange(3, reach + 1)

    def first(rdp: float, *, loses: Floats, others: Floats) -> tuple[int, float]:
        bound = _contested(rdp, order, loses=loses, others=others)
        below = np.flatnonzero(bound <= goal)
        place = int(below[0]) if len(below) else len(at) - 1
        return int(at[place]), float(bound[place])

    low, out = first(bit, loses=tail[at], others=whole + toward[at])
    both, above = first(two, loses=tail[at - 1], others=toward[at] + away[at])
    # Each half of what the winner may lose, and of what the rest adds.
    ahead, _ = first(0.0, loses=2 * tail[at - 1], others=math.log(2) + whole + toward[at])
    gap, _ = first(0.0, loses=2 * pair[at - 2], others=math.log(2) + pair_moment[at])
    wins = _contested(
        0.0,
        order,
        loses=tail[[ahead - 1]] + pair[[gap - 2]],
        others=np.logaddexp(whole + toward[[ahead]], pair_moment[[gap]]),
    )
    return Region(low=low, both=both, ahead=ahead, gap=gap), max(out, above, float(wins[0]))


@lru_cache(maxsize=4096)
def _pair_rdp(scale: float, order: float, kind: str) -> float:
    """The supremum where a and b alone contest: [d + Z - Z' > 0], a tie counting half, d changing by 2."""
    law = NoiseLaw(kind, scale)
    reach = 2 * (law.farthest(order, 1) or 0)
    most = reach + 4
    mass = law.difference_masses(most)
    above = np.cumsum(mass[::-1])[::-1]  # Pr[Z - Z' >= j], but for what lies beyond `most`
    tails = law.difference_tails(most)

    def wins(d: Ints) -> Floats:  # ln of both outcomes' chances
        return _log(np.stack([above[1 - e + most] + mass[most - e] / 2 for e in (d, -d)]))

    d = np.arange(-reach, reach + 1)
    here = wins(d)
    inside = max(_renyi(here, wins(d + step), order) for step in (-2, 2))
    outside = _contested(
        0.0, order, loses=tails[[reach - 2]], others=law.tilted_sum_tails(order, most)[[reach]]
    )
    return max(inside, float(outside[0]))


def _log(chances: Floats) -> Floats:
    """Ln of chances, -∞ where a float cannot tell it. Shapes: any to the same."""
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(chances)
    return logs


def _renyi(here: Floats, there: Floats, order: float) -> float:
    """Largest Rényi divergence ln Σ p^α q^(1-α) / (α-1) of logarithms, outcomes on the first axis.

    Infinite where a float cannot tell it.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        moments = np.exp(order * here + (1 - order) * there).sum(axis=0)
        largest = float(moments.max())
    return math.log(largest) / (order - 1) if largest < math.inf else math.inf


def _contested(rdp: float, order: float, *, loses: Floats, others: Floats) -> Floats:
    """RDP where outcomes of divergence `rdp` contest, each losing at most a share `loses` to a further one.

    `others` is ln of what the further one adds to the moment. Shapes: any, both the same.
    """
    with np.errstate(divide="ignore"):
        kept = (order - 1) * (rdp - np.log1p(-np.minimum(loses, 1.0)))
    found: Floats = np.logaddexp(kept, others) / (order - 1)
    return found


def _rounded_up(rdp: float, order: float) -> float:
    """The figure and its own rounding error: α ln p - (α-1) ln q has that of 2α - 1 probabilities."""
    return rdp * (1 + 1e-12) + _ROUNDING * (2 * order - 1) / (order - 1)

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

from pate_fed.privacy.bounds.lattice import CoarseLattice, Lattice, Region
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, LAPLACE, Ints, NoiseLaw, Reach
from pate_fed.privacy.checks import Floats, check_count, check_orders, check_sigma

WIDEST = {GAUSSIAN: 10_000.0, LAPLACE: 100.0}  # votes of noise that a lattice is searched for
_BEYOND = {GAUSSIAN: 1.25, LAPLACE: 1.75}  # of that, from where that much noise costs more than the totals
_EVERY = 256.0  # votes of Gaussian noise up to which every point of the lattice is
_EVERY_MOVED = 80.0  # that where several votes move, which no earlier version evaluated
_PART = 40  # of the noise, the step from point to point beyond: it costs 0.15 %
_MOST_MOVED = 100_000  # votes of one unit; beyond, the totals are charged
# Of a probability: masses, and two sums of at most 10^6 positive terms, are off by 6e-13 at most. Earlier
# versions added 1e-12, so whatever a float does here, a figure that they wrote is not below today's.
_ROUNDING = 8e-13
# Of the larger supremum of two outcomes, at which a bound outside the lattice is low enough; that of three
# outcomes is mostly above the first, and where it is not the next is tried.
_GOALS = {GAUSSIAN: (1.001,), LAPLACE: (1.15, 1.03, 1.002)}
_LOW_ENOUGH = 1.003  # of what the lattice reaches
_MOST_CELLS = 30_000_000  # of the lattice where several votes move, some seconds; single votes have their own
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
    return _rounded_up(max(inside, float(outside[0])), order)


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
        region, outside = _outside(law, order, k, reach, goal)
        if k > 1 and step == 1 and region.cells > _MOST_CELLS:
            return found
        lattice = (
            Lattice(law, region, shift=k) if step == 1 else CoarseLattice(law, region, shift=k, step=step)
        )
        pairs = lattice.pairs(_log)
        inside = max((_renyi(here, there, order) for here, there in pairs), default=0.0)
        found = min(found, _rounded_up(max(inside, outside), order))
        if outside <= _LOW_ENOUGH * inside:
            break
    return found


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


def _outside(law: NoiseLaw, order: float, k: int, reach: Reach, goal: float) -> tuple[Region, float]:
    """The distances in votes from which each bound of Lemma 3 holds, and the largest of these bounds.

    `goal` is what they may be, of the larger supremum of two outcomes.
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
    at = np.arange(2 * k + 1, reach.one + 1)

    def first(rdp: float, *, loses: Floats, others: Floats) -> tuple[int, float]:
        bound = _contested(rdp, order, loses=loses, others=others)
        below = np.flatnonzero(bound <= enough)
        place = int(below[0]) if len(below) else len(at) - 1
        return int(at[place]), float(bound[place])

    low, out = first(bit, loses=tail[at + 1 - k], others=whole + toward[at])
    both, above = first(two, loses=tail[at - k], others=toward[at] + away[at])
    # Each half of what the winner may lose, and of what the rest adds.
    ahead, _ = first(0.0, loses=2 * tail[at - k], others=math.log(2) + whole + toward[at])
    gap, _ = first(0.0, loses=2 * pair[at - 2 * k], others=math.log(2) + pair_moment[at])
    wins = _contested(
        0.0,
        order,
        loses=tail[[ahead - k]] + pair[[gap - 2 * k]],
        others=np.logaddexp(whole + toward[[ahead]], pair_moment[[gap]]),
    )
    return Region(low=low, both=both, ahead=ahead, gap=gap), max(out, above, float(wins[0]))


@lru_cache(maxsize=4096)
def _pair_rdp(law: NoiseLaw, order: float, k: int, reach: int) -> float:
    """The supremum where a and b alone contest: [d + Z - Z' > 0], a tie counting half, d changing by 2k."""
    most = reach + 2 * k + 2
    mass = law.difference_masses(most)
    tails = law.difference_tails(most + 1)
    above = np.concatenate((1 - tails[:0:-1], tails[1:-1]))  # Pr[Z - Z' >= j] for j = -most..most

    def wins(d: Ints) -> Floats:  # ln of both outcomes' chances
        return _log(np.stack([above[1 - e + most] + mass[most - e] / 2 for e in (d, -d)]))

    d = np.arange(-reach, reach + 1)
    here = wins(d)
    inside = max(_renyi(here, wins(d + step), order) for step in (-2 * k, 2 * k))
    outside = _contested(
        0.0, order, loses=tails[[reach - 2 * k]], others=law.tilted_sum_tails(order, k, most)[[reach]]
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

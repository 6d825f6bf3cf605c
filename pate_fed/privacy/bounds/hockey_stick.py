"""δ(ε) of what one query releases, the hockey-stick divergence: the check's bit, and the class that wins.

Σ max(0, p - e^ε q) over the outcomes is jointly convex and homogeneous, grows with p and falls with q, as the
moments of `pate_fed.privacy.bounds.outcomes` do, so the same lemmas hold. `docs/proofs/hockey-stick.md` has
the proofs, and what the pointwise supremum is: the noisy totals' own, within a few parts in a hundred. It is
for one release, and for those who see labels, not for those who see noisy totals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import gaussian_delta
from pate_fed.privacy.bounds.lattice import CoarseLattice, Lattice, Region
from pate_fed.privacy.bounds.noise_law import (
    GAUSSIAN,
    LAPLACE,
    NoiseLaw,
    log_mass_gaussian_difference,
    tail_sum,
)
from pate_fed.privacy.bounds.outcomes import WIDEST
from pate_fed.privacy.checks import Floats, check_count, check_delta, check_sigma, is_number

_WIDEST = 20_000.0  # votes of noise beyond which a table takes long
_REACH = {GAUSSIAN: 9.0, LAPLACE: 40.0}  # scales that hold all but 1e-17 of the noise
_ROUNDING = 2e-12  # relative, of a chance: sums of at most 10^6 positive terms
_CUT = 1e-15  # of a chance, beyond the tables
_NEAR = 1.004  # of a supremum that is known, at which no lattice is searched
_OUTSIDE = 0.001  # of it, that the bounds outside the lattice may add
_MOST_CELLS = 30_000_000  # of the lattice, some seconds
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
        mass = np.exp(log_mass_gaussian_difference(np.arange(-most, most + 1), scale))
        return _summed(mass[: -2 * k], mass[2 * k :], epsilon)
    # One total's loss is (2x + k)/scale for noise x from -k to 0; beyond, as at these ends.
    law = NoiseLaw(kind, scale)
    most = k + law.depth()
    masses = law.masses(most)
    one = np.concatenate(([masses[: most - k + 1].sum()], masses[most - k + 1 : most], [masses[most:].sum()]))
    both = np.convolve(one, one)  # two independent totals: losses add
    loss = (2.0 * np.arange(len(both)) - 2 * k) / scale
    return _summed(both, both * np.exp(-loss), epsilon)


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

"""RDP of what a query releases: the class that wins under Gaussian noise, and the bit of a threshold check.

Neighbours move one vote from class a to class b. Let M be the largest noisy total of all other classes: its
law is the same on both sides, so it may as well be revealed. What is left is which of a, b and "another"
wins, where a and b stand u and v votes above M: two numbers, whatever the number of classes. The supremum
over u and v is taken over a finite lattice, and bounded outside it. `docs/proofs/outcomes.md` has the lemma,
the bounds and who is not covered: whoever sees noisy totals.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pate_fed.privacy.bounds.orders import Floats, check_orders, check_sigma
from pate_fed.privacy.checks import check_count

__all__ = ["argmax_rdp", "bit_rdp"]

Ints = NDArray[np.int64]

_REACH = 6.0  # standard deviations between the lattice's parts: what lies outside adds below 1e-7
_FARTHEST = 36.0  # standard deviations beyond which a probability leaves the range of floats
_WIDEST = 250.0  # σ above which the lattice takes minutes
_ROUNDING = 1e-12  # of a probability: cumulative sums of at most 10^4 positive terms


@lru_cache(maxsize=4096)
def bit_rdp(sigma: float, order: float, *, shift: int = 1) -> float:
    """Largest RDP at `order` of the bit [n + Z >= T] where n changes by at most `shift` votes; rounded up.

    Z is discrete N(0, `sigma`²) and n any whole number, so the bound holds for every threshold. It is at most
    the Gaussian's α `shift`²/(2σ²).

    Raises:
        InputError: σ, the order or the shift out of range.
    """
    sigma, order = check_sigma("sigma", sigma), float(check_orders(order)[0])
    k = check_count("shift", shift, least=1)
    gaussian = order * k * k / (2 * sigma * sigma)
    reach = math.ceil(2 * k * order + 2 * _REACH * sigma) + 2
    if reach > _FARTHEST * sigma or sigma > 1e5:
        return gaussian
    most = reach + k + 1
    above = _upper_tails(sigma, most)  # Pr[Z >= j] for j = -most..most

    def bit(j: Ints) -> Floats:  # Pr[Z >= j], and Pr[Z < j] = Pr[Z >= 1 - j] by symmetry
        return np.stack([above[j + most], above[1 - j + most]])

    j = np.arange(-reach, reach + 1)
    inside = max(_renyi(bit(j), bit(j + step), order) for step in (-k, k))
    outside = _dominated(
        order,
        loses=_tail(reach - k, sigma),
        others=_log_tail(reach - k * order, sigma) + order * (order - 1) * k * k / (2 * sigma * sigma),
    )
    return min(gaussian, _rounded_up(max(inside, outside), order))


@lru_cache(maxsize=4096)
def argmax_rdp(sigma: float, order: float) -> float:
    """Largest RDP at `order` of the winning class where one vote moves; rounded up.

    The totals have discrete N(0, `sigma`²) noise each, ties are broken uniformly. The bound holds for any
    number of classes and any votes, and is at most the noisy totals' own α/σ² (P18, Proposition 8). For large
    σ it tends to 2/π of that.

    Raises:
        InputError: σ or the order out of range.
    """
    sigma, order = check_sigma("sigma", sigma), float(check_orders(order)[0])
    vector = order / (sigma * sigma)
    near = math.ceil(order + _REACH * sigma) + 2
    far = near + math.ceil(2 * order + math.sqrt(2) * _REACH * sigma) + 2
    if far > _FARTHEST * sigma or sigma > _WIDEST:
        return vector
    grown = order * (order - 1) / (sigma * sigma)  # ln of the two totals' own Rényi moment
    # One of the two is far below: only the other one and the rest contest.
    one_left = _contested(
        bit_rdp(sigma, order),
        order,
        loses=_tail(far, sigma),
        others=grown + _log_tail(far - order + 1, sigma),
    )
    # Both are far above: only they contest.
    two_left = _contested(
        _pair_rdp(sigma, order),
        order,
        loses=_tail(near - 1, sigma),
        others=grown + _log_tail(near - order + 1, sigma),
    )
    # One is far above all others.
    gap = math.sqrt(2) * sigma
    one_wins = _dominated(
        order,
        loses=_tail(far - 1, sigma) + _tail(far - near - 2, gap),
        others=grown
        + float(np.logaddexp(_log_tail(far - order, sigma), _log_tail(far - near - 2 * order, gap))),
    )
    inside = _lattice(sigma, order, far)
    return min(vector, _rounded_up(max(inside, one_left, two_left, one_wins), order))


def _lattice(sigma: float, order: float, reach: int) -> float:
    """The supremum over |u|, |v| <= `reach` and every tie key κ of the best other class.

    On a cell the probabilities are quadratic in κ. Σ p^α q^(1-α) is jointly convex, so its largest value is
    at most the largest at the Bernstein coefficients: those at κ = 0 are probabilities, those at κ = 1 are
    the next cell's, those between are not and bound what lies between.
    """
    most = 3 * reach + 4
    mass = np.exp(-((np.arange(-most, most + 1) / sigma) ** 2) / 2)
    mass /= mass.sum()
    below = np.concatenate(([0.0], np.cumsum(mass)))

    def at(j: Ints) -> Floats:  # Pr[Z = j]
        found: Floats = mass[np.clip(j + most, 0, 2 * most)]
        return found

    def under(j: Ints) -> Floats:  # Pr[Z <= j]
        found: Floats = below[np.clip(j + most + 1, 0, 2 * most + 1)]
        return found

    every = np.arange(-most, most + 1)

    def beats(gap: int) -> Floats:
        """Σ over j >= j0 of Pr[Z = j] Pr[Z' + U' < j + U + gap], by j0 + `most`; U, U' uniform tie keys."""
        terms = mass * (under(every + gap - 1) + at(every + gap) / 2)
        return np.concatenate((np.cumsum(terms[::-1])[::-1], [0.0]))

    def coefficients(u: Ints, gap: int) -> tuple[Floats, Floats]:
        """Bernstein coefficients 0 and 1 in κ of the probabilities that a, b, another wins: (3, len(u))."""
        v = u - gap
        first = beats(gap)[np.clip(1 - u + most, 0, 2 * most + 1)]
        second = beats(-gap)[np.clip(1 - v + most, 0, 2 * most + 1)]
        mass_u, mass_v, under_u, under_v = at(-u), at(-v), under(-u - 1), under(-v - 1)
        start = (
            first + mass_u * (under_v + mass_v / 2),
            second + mass_v * (under_u + mass_u / 2),
            under_u * under_v,
        )
        middle = (
            start[0] - mass_u * under_v / 2,
            start[1] - mass_v * under_u / 2,
            start[2] + (under_u * mass_v + mass_u * under_v) / 2,
        )
        return np.stack(start), np.stack(middle)

    largest = 0.0
    for gap in range(-2 * reach, 2 * reach + 1):
        u = np.arange(max(-reach, gap - reach), min(reach, gap + reach) + 1)
        # The neighbour has one vote less for a and one more for b.
        for here, there in zip(coefficients(u, gap), coefficients(u - 1, gap - 2), strict=True):
            largest = max(largest, _renyi(here, there, order))
    return largest


@lru_cache(maxsize=4096)
def _pair_rdp(sigma: float, order: float) -> float:
    """The supremum where a and b alone contest: [d + Z - Z' > 0], a tie counting half, d changing by 2."""
    reach = math.ceil(4 * order + 2 * math.sqrt(2) * _REACH * sigma) + 2
    most = reach + 4
    mass = np.exp(-((np.arange(-most, most + 1) / sigma) ** 2) / 2)
    mass /= mass.sum()
    # The difference's own law, by correlating the masses.
    law = np.convolve(mass, mass)[most : 3 * most + 1]  # Z - Z' = -most..most
    above = np.cumsum(law[::-1])[::-1]  # Pr[Z - Z' >= j]
    d = np.arange(-reach, reach + 1)

    def wins(d: Ints) -> Floats:
        found: Floats = above[1 - d + most] + law[-d + most] / 2
        return found

    here = np.stack([wins(d), wins(-d)])
    inside = max(_renyi(here, np.stack([wins(d + step), wins(-d - step)]), order) for step in (-2, 2))
    gap = math.sqrt(2) * sigma
    outside = _dominated(
        order,
        loses=_tail(reach - 3, gap),
        others=order * (order - 1) / (sigma * sigma) + _log_tail(reach - 2 * order - 1, gap),
    )
    return max(inside, outside)


def _upper_tails(sigma: float, most: int) -> Floats:
    """Pr[Z >= j] of the discrete Gaussian for j = -most..most; sums of positive terms only."""
    wide = 2 * most + math.ceil(_FARTHEST * sigma)
    mass = np.exp(-((np.arange(-wide, wide + 1) / sigma) ** 2) / 2)
    tails = np.cumsum(mass[::-1])[::-1] / mass.sum()
    found: Floats = tails[wide - most : wide + most + 1]
    return found


def _renyi(here: Floats, there: Floats, order: float) -> float:
    """Largest Rényi divergence ln Σ p^α q^(1-α) / (α-1), outcomes on the first axis; ∞ where a q is 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        terms = order * np.log(here) + (1 - order) * np.log(there)
        terms[here == 0] = -np.inf  # what never happens adds nothing
        top = terms.max(axis=0)
        moments = top + np.log(np.exp(terms - top).sum(axis=0))
        found = np.where(top == np.inf, np.inf, moments).max()
    if np.isnan(found):  # a maximum in Python would lose it
        raise ArithmeticError(f"no divergence at order {order:g}")
    return float(found) / (order - 1)


def _log_tail(distance: float, deviation: float) -> float:
    """Chernoff bound, ln, on a lattice Gaussian's mass beyond a distance; also centred off the lattice."""
    return -(max(distance, 0.0) ** 2) / (2 * deviation * deviation)


def _tail(distance: float, deviation: float) -> float:
    return math.exp(_log_tail(distance, deviation))


def _contested(rdp: float, order: float, *, loses: float, others: float) -> float:
    """RDP where outcomes of divergence `rdp` contest, each losing at most a share `loses` to a third one.

    `others` is ln of what the third outcome adds to the moment.
    """
    kept = (order - 1) * rdp - (order - 1) * math.log1p(-min(loses, 0.5))
    return float(np.logaddexp(kept, others)) / (order - 1)


def _dominated(order: float, *, loses: float, others: float) -> float:
    """RDP where one outcome has all but `loses`; `others` is ln of what the rest adds to the moment."""
    return _contested(0.0, order, loses=loses, others=others)


def _rounded_up(rdp: float, order: float) -> float:
    """The figure and its own rounding error: α ln p - (α-1) ln q has that of 2α - 1 probabilities."""
    return rdp * (1 + 1e-12) + _ROUNDING * (2 * order - 1) / (order - 1)

"""Conversion of an RDP curve to (ε, δ)-DP: the papers' classic one, and the tighter default.

On a one-sided data-dependent curve the statement is one-sided too. Every ε is rounded up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pate_fed.errors import InputError
from pate_fed.privacy.checks import Floats, check_curve, check_delta

CONVERSIONS = ("improved", "classic")

# Far above the rounding of any curve computed here, far below what a reader can see.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedEpsilon:
    """ε at δ, rounded up, and the order it was reached at.

    `at_edge` says that the best order is an end of the grid, so that a wider grid may give a smaller ε.
    """

    epsilon: float
    delta: float
    order: float
    conversion: str
    at_edge: bool


def round_up(epsilon: float, *, magnitude: float | None = None) -> float:
    """Upper bound on ε in spite of its rounding error: a float above it; 0 and infinity stay.

    `magnitude` is the largest summand that ε came from, where it is larger than ε.
    """
    if epsilon <= 0 or math.isinf(epsilon):
        return max(epsilon, 0.0)
    return math.nextafter(epsilon + _ROUNDING * max(abs(magnitude or 0.0), epsilon), math.inf)


def overhead(orders: Floats, delta: float, conversion: str = "improved") -> Floats:
    """ε less RDP at each order: what the conversion adds.

    Classic: ln(1/δ)/(α-1) (Mironov 2017, Proposition 3). Improved: ln(1-1/α) - ln(δ α)/(α-1) (Canonne, Kamath
    and Steinke 2020, Proposition 12).

    Raises:
        InputError: an unknown conversion.
    """
    if conversion == "classic":
        return -math.log(delta) / (orders - 1)
    if conversion == "improved":
        return np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    raise InputError(f"conversion={conversion!r}: must be one of {', '.join(CONVERSIONS)}")


def to_epsilon(
    orders: ArrayLike, rdp: ArrayLike, delta: float, *, conversion: str = "improved"
) -> ConvertedEpsilon:
    """ε at δ of an RDP curve: the least over its orders, at least 0, rounded up.

    Shapes: `orders` and `rdp` (orders,).
    """
    grid, curve = check_curve(orders, rdp)
    extra = overhead(grid, check_delta(delta), conversion)
    candidates = curve + extra
    best = int(np.argmin(candidates))
    size = max(float(curve[best]), abs(float(extra[best])))
    return ConvertedEpsilon(
        epsilon=round_up(float(candidates[best]), magnitude=size),
        delta=float(delta),
        order=float(grid[best]),
        conversion=conversion,
        at_edge=grid.size > 1 and candidates[best] > 0 and best in (0, grid.size - 1),
    )

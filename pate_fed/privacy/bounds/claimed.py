"""What a mechanism of the user's own claims: its code, its parameters, and a table of RDP at fixed orders.

Between two orders the chord of (α - 1) RDP(α) is taken. That function is convex in α for every pair of laws
(van Erven and Harremoës 2014, Corollary 2), so where the table bounds it at both ends the chord bounds it in
between. Below the first order its value is taken, as RDP grows with the order; beyond the last nothing is
known. All of it holds if the table does, which is the mechanism's own word.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pate_fed.errors import InputError
from pate_fed.privacy.checks import Floats
from pate_fed.privacy.protection import MECHANISM, Assumption
from pate_fed.structure import check, setting
from pate_fed.structure.parts import PartIdentity

Plain = bool | int | float | str
Parameters = tuple[tuple[str, Plain], ...]

LEAST_ORDERS = 30  # to an order of 1.3: fewer would be worth nothing
_NEAR = 1e-9
_STEPS = 10.24  # orders for each factor e of α - 1: every second one at which a total is evaluated

CLAIMED_ORDERS: tuple[float, ...] = tuple(1.0 + math.exp(step / _STEPS) for step in range(-40, 94))
"""Orders from 1.02 to 8,800 at which a mechanism says its RDP."""

_EXACT = tuple(map(Fraction, CLAIMED_ORDERS))


@dataclass(frozen=True, slots=True, order=True, repr=False)
class ClaimedCurve:
    """RDP of one query in nats at the first so many of `CLAIMED_ORDERS`, finite and above 0."""

    values: tuple[float, ...]

    def __repr__(self) -> str:
        """How far it reaches: the numbers are many."""
        return f"ClaimedCurve({len(self.values)} orders, {self.values[-1]:.4g} nats at the last)"

    @property
    def most_order(self) -> Fraction:
        """The last order at which it is known."""
        return _EXACT[len(self.values) - 1]

    def rdp(self, order: Fraction) -> Fraction:
        """RDP at `order` > 1, up to `most_order`, in nats; exact."""
        right = bisect_left(_EXACT, order)
        if right == 0 or _EXACT[right] == order:
            return Fraction(self.values[right])
        low, high = _EXACT[right - 1], _EXACT[right]
        first, second = ((_EXACT[at] - 1) * Fraction(self.values[at]) for at in (right - 1, right))
        return (first + (second - first) * (order - low) / (high - low)) / (order - 1)

    def about(self, orders: Floats) -> Floats:
        """About the curve, at once. Shapes: (orders,) to the same."""
        found: Floats = np.interp(orders, CLAIMED_ORDERS[: len(self.values)], self.values)
        return found


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Claim:
    """A mechanism of the user's own, as terms and ledgers state it: its code, parameters and curve.

    `rdp` is RDP of one query in nats at the first of `CLAIMED_ORDERS`, for neighbours of which one `unit`
    sways `votes_moved` votes (`Protection`).

    Raises:
        InputError: a curve with numbers that are not finite, not above 0, or that fall.
    """

    part: PartIdentity
    parameters: Parameters = setting((), most=200)  # noqa: RUF009
    unit: str = setting(most=20)
    adjacency: str = setting(most=30)
    votes_moved: int = setting(low=1, high=10**9)
    rdp: tuple[float, ...]

    def __post_init__(self) -> None:
        check(self)
        check_curve(self.rdp, f"aggregator {self.part.name!r}")

    def __repr__(self) -> str:
        """Name and parameters: the curve is long."""
        own = "".join(f", {name}={value!r}" for name, value in self.parameters)
        return f"Claim({self.part.name}{own}, RDP at {len(self.rdp)} orders)"

    @property
    def assumption(self) -> Assumption:
        """On whose word every ε rests then."""
        return Assumption(kind=MECHANISM, part=self.part)


def check_curve(rdp: tuple[float, ...], what: str) -> None:
    """Refuse what can be no curve of a mechanism that answers; `what` names it in errors.

    Raises:
        InputError: too few orders, numbers that are not finite and above 0, or that fall.
    """
    if not LEAST_ORDERS <= len(rdp) <= len(CLAIMED_ORDERS):
        raise InputError(
            f"{what}: claims an RDP at {len(rdp)} orders; {LEAST_ORDERS} to {len(CLAIMED_ORDERS)} from 1.02 "
            "on are meant, as nothing else bounds ε"
        )
    for order, value in zip(CLAIMED_ORDERS, rdp, strict=False):
        if not 0 < value < math.inf:
            raise InputError(
                f"{what}: claims an RDP of {value!r} at order {order:.4g}; what answers by votes costs "
                "something: nats above 0 are meant"
            )
    for before, after, order in zip(rdp, rdp[1:], CLAIMED_ORDERS[1:], strict=False):
        if after < before * (1 - _NEAR):
            raise InputError(f"{what}: its RDP falls at order {order:.4g}; Rényi divergence never does")

"""An RDP curve that somebody else's mechanism claims for one query: a table at fixed orders.

Between two orders the chord of (α - 1) RDP(α) is taken. That function is convex in α for every pair of laws
(van Erven and Harremoës 2014, Corollary 2), so where the table bounds it at both ends the chord bounds it in
between. Below the first order its value is taken, as RDP grows with the order; beyond the last nothing is
known. All of it holds if the table does, which is the mechanism's own word.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pate_fed.config.claim import CLAIMED_ORDERS
from pate_fed.privacy.bounds.orders import Floats

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

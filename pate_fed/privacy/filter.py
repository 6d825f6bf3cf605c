"""The budget: fixed before the first query, asked before a batch, never passed; an odometer for display.

Costs add up as exact fractions and every logarithm is rounded against the user, so no rounding can hide a
spend. The filter works at one Rényi order that follows from ε and δ alone (Rényi filter: Feldman and Zrnic
2021, Theorem 4.3; Lécuyer 2021): queries may be chosen from past outputs, and the stop is a function of the
public answered bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from pate_fed.errors import BudgetError, InputError
from pate_fed.privacy.bounds.conversion import overhead
from pate_fed.privacy.checks import check_count, check_delta, check_epsilon
from pate_fed.privacy.mechanisms.events import NOTHING, RECORD, Cost, Mechanism, PrivacyEvent, Protection

__all__ = ["BudgetFilter", "Odometer", "epsilon_of", "total_cost"]

# α - 1 of the orders that are searched. Any order gives a valid ε; the best lies near 1 + sqrt(ln(1/δ)/ρ).
_ORDERS = 1.0 + np.geomspace(1e-3, 1e7, 801)


def total_cost(events: Iterable[PrivacyEvent]) -> Cost:
    """What the student, and so the public, learns from all events; their order does not matter."""
    return sum((event.cost() for event in events), Cost())


def epsilon_of(cost: Cost, delta: float, *, orders: Iterable[float] = ()) -> float:
    """ε of the (ε, δ)-DP that follows from the cost, rounded up: improved conversion at the best order.

    ε = rdp(α) + ln(1 - 1/α) - ln(δ α)/(α - 1), at least 0 (arXiv 2004.00010, Proposition 12). `orders` are
    tried besides the ones that the search finds. Parts that are known as (ε, δ)-DP only take their δ first.

    Raises:
        InputError: δ outside (0, 1), but for 0 where all parts are known as (ε, δ)-DP.
    """
    if cost.epsilon:
        rest, left = replace(cost, epsilon=Fraction(0), delta=Fraction(0)), Fraction(delta) - cost.delta
        if left < 0:
            return math.inf
        beside = 0.0 if rest == Cost() else epsilon_of(rest, math.nextafter(float(left), 0))
        return _round_up(cost.epsilon + Fraction(beside))
    delta = check_delta(delta)
    if cost == Cost():
        return 0.0
    limit = math.inf if cost.most_order is None else cost.most_order
    candidates = {_best_order(cost, delta), *(order for order in orders if order <= limit)}
    return max(0.0, min(_epsilon_at(cost, delta, order) for order in candidates))


@dataclass(frozen=True, slots=True)
class BudgetFilter:
    """Says how many more queries fit, in the worst case, before ε at δ would pass the budget.

    It knows parameters and public counts only, never votes, so that a stop reveals nothing. `reserved` is
    paid before the first query, for what a study releases besides its labels.

    Raises:
        InputError: ε or δ out of range, or a reserved cost that is not known at the budget's order.
    """

    epsilon: float
    delta: float
    protection: Protection = RECORD
    reserved: Cost = NOTHING

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        self.reserved.rdp(Fraction(self.order))

    @property
    def order(self) -> float:
        """The one Rényi order that the budget is kept at: the one where a Gaussian spend goes furthest."""
        room = (self.epsilon - overhead(_ORDERS, self.delta)) / _ORDERS
        return float(_ORDERS[int(np.argmax(room))])

    @property
    def room(self) -> Fraction:
        """RDP at `order` that the whole budget allows, in nats; 0 where it allows nothing."""
        return max(Fraction(0), Fraction(self.epsilon) - _overhead_up(self.order, self.delta))

    def affordable(
        self,
        mechanism: Mechanism,
        *,
        events: Iterable[PrivacyEvent] = (),
        queries: int,
        max_answers: int | None = None,
    ) -> int:
        """How many of the next `queries` may be put to the mechanism: in the worst case, all are answered.

        `events` are all releases so far, `max_answers` the cap that the mechanism will be given.

        Raises:
            InputError: negative counts, or an event with another protection than the budget's.
        """
        most = check_count("queries", queries)
        cap = most if max_answers is None else min(most, check_count("max_answers", max_answers))
        if mechanism.answers_all:
            most = cap
        if cap == 0:
            return 0
        order = Fraction(self.order)
        left = self.room - self._spent(events, order)
        asked = mechanism.cost_asked(self.protection).rdp(order)
        both = asked + mechanism.cost_answered(self.protection).rdp(order)
        if asked < 0 or both <= 0:
            raise InputError(
                f"mechanism={mechanism.name!r} states a cost of {float(both)} a query: above 0 is meant"
            )
        if left < cap * both:
            return max(0, left // both)
        # Beyond the cap only the check is paid; where there is none the mechanism stops with its last answer.
        further = (left - cap * both) // asked if asked else most - cap
        return min(most, cap + further)

    def share_spent(self, events: Iterable[PrivacyEvent]) -> float:
        """The part of the budget for labels that is spent, 0 to 1; 1 where it allows nothing.

        Raises:
            InputError: an event with another protection than the budget's.
        """
        order = Fraction(self.order)
        room = self.room - self.reserved.rdp(order)
        spent = self._spent(events, order) - self.reserved.rdp(order)
        return 1.0 if room <= 0 else min(1.0, float(spent / room))

    def holds(self, cost: Cost) -> bool:
        """Whether a total cost, `reserved` in it, is within the budget; exact, so any spend counts."""
        return cost.rdp(Fraction(self.order)) <= self.room

    def require(self, cost: Cost) -> None:
        """Refuse a total cost that passes the budget.

        Raises:
            BudgetError: it does, by however little.
        """
        if not self.holds(cost):
            raise BudgetError(
                f"the privacy budget ε={self.epsilon:g} at δ={self.delta:g} would be passed; "
                "nothing was released"
            )

    def _spent(self, events: Iterable[PrivacyEvent], order: Fraction) -> Fraction:
        known = list(events)
        if any(event.protection != self.protection for event in known):
            raise InputError("an event protects another unit, adjacency or number of votes than the budget")
        return (self.reserved + total_cost(known)).rdp(order)


@dataclass(frozen=True, slots=True)
class Odometer:
    """ε so far, event by event, for display; it stops nothing and never decreases.

    `reserved` is what was paid before the first event.

    Raises:
        InputError: δ outside (0, 1).
    """

    delta: float
    reserved: Cost = NOTHING

    def __post_init__(self) -> None:
        check_delta(self.delta)

    def readings(self, events: Iterable[PrivacyEvent]) -> list[float]:
        """ε at δ after each event."""
        cost, shown = self.reserved, [0.0]
        for event in events:
            cost += event.cost()
            # Each search may end a hair beside the best order, which must not look like a refund.
            shown.append(max(shown[-1], epsilon_of(cost, self.delta)))
        return shown[1:]


def _overhead_up(order: float, delta: float) -> Fraction:
    """The overhead at one order, and a little more: an upper bound in spite of rounding."""
    # The one of two equal forms that loses no digits.
    first = math.log((order - 1) / order) if order < 2 else math.log1p(-1 / order)
    parts = first, -math.log(delta) / (order - 1), -math.log(order) / (order - 1)
    # Each part is right to a few units in its last place (2^-53 of it).
    return sum(map(Fraction, parts), Fraction(0)) + Fraction(math.fsum(map(abs, parts))) / 2**48


def _epsilon_at(cost: Cost, delta: float, order: float) -> float:
    return _round_up(cost.rdp(Fraction(order)) + _overhead_up(order, delta))


def _round_up(exact: Fraction) -> float:
    nearest = _float(exact)
    return math.nextafter(nearest, math.inf) if nearest < exact else nearest


def _float(exact: Fraction) -> float:
    """The nearest float, infinity where it is too large for one."""
    try:
        return float(exact)
    except OverflowError:
        return math.inf


def _best_order(cost: Cost, delta: float) -> float:
    """The order with the least ε: a coarse look over all, then two closer ones around the best."""
    orders = _ORDERS
    for _ in range(3):
        curve = orders * _float(cost.rho) + _float(cost.flat) + overhead(orders, delta)
        if cost.most_order is not None:
            curve = np.where(orders > float(cost.most_order), math.inf, curve)
        for pure, count in cost.pure:
            curve += count * np.minimum(_float(pure), _float(pure) * (_float(pure) * orders / 2))
        best = int(np.argmin(curve))
        low, high = orders[max(best - 1, 0)], orders[min(best + 1, len(orders) - 1)]
        found = float(orders[best])
        orders = 1.0 + np.geomspace(low - 1, high - 1, 201)
    return found

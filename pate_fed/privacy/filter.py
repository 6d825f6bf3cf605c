"""The privacy filter: a budget fixed before the first query, asked before each batch, never passed.

It works at one Rényi order that follows from ε and δ alone (Rényi filter: Feldman and Zrnic 2021, Theorem
4.3; Lécuyer 2021): queries may be chosen from past outputs, and the stop is a function of the public answered
bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pate_fed.errors import BudgetError, InputError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.privacy.bounds.conversion import overhead
from pate_fed.privacy.bounds.cost import NOTHING, SEARCHED_ORDERS, Cost, overhead_up
from pate_fed.privacy.checks import check_count, check_delta, check_epsilon
from pate_fed.privacy.mechanisms.events import Mechanism, PrivacyEvent, total_cost
from pate_fed.privacy.protection import RECORD, Protection


@dataclass(frozen=True, slots=True)
class BudgetFilter:
    """Rényi filter of a budget (ε, δ): how many more queries fit, whatever the votes.

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
        """Rényi order that the budget is kept at: the one where a Gaussian spend goes furthest."""
        # ε = α ρ + overhead(α): the order at which the budget affords the largest ρ.
        # ρ that a Gaussian may spend at each order
        room = (self.epsilon - overhead(SEARCHED_ORDERS, self.delta)) / SEARCHED_ORDERS
        return float(SEARCHED_ORDERS[int(np.argmax(room))])

    @property
    def room(self) -> Fraction:
        """RDP at `order` that the whole budget allows, in nats, rounded down; 0 where it allows nothing."""
        # exact, so that nothing is lost between many small charges
        return max(Fraction(0), Fraction(self.epsilon) - overhead_up(self.order, self.delta))

    def affordable(
        self,
        mechanism: Mechanism,
        *,
        events: Iterable[PrivacyEvent] = (),
        charged: Cost | None = None,
        queries: int,
        max_answers: int | None = None,
    ) -> int:
        """Number of the next `queries` that the mechanism may look at, if all of them are answered.

        `events` are all releases so far, `max_answers` the cap that the mechanism will be given. `charged`,
        in place of events, is what they add up to with `reserved` in it, as a ledger keeps it.

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
        left = self.room - self._spent(events, order, charged)
        asked = mechanism.cost_asked(self.protection).rdp(order)
        both = asked + mechanism.cost_answered(self.protection).rdp(order)
        if asked < 0 or both <= 0:
            raise InputError(
                f"mechanism={mechanism.name!r} states a cost of {float(both)} a query: above 0 is meant"
            )
        # In the worst case queries are answered until the cap is reached, so both steps are reserved first.
        if left < cap * both:
            return max(0, left // both)
        # Beyond the cap only the check is paid; where there is none the mechanism stops with its last answer.
        further = (left - cap * both) // asked if asked else most - cap
        return min(most, cap + further)

    def share_spent(self, events: Iterable[PrivacyEvent] = (), *, charged: Cost | None = None) -> float:
        """Part of the budget for labels that is spent, 0 to 1; 1 where it allows nothing.

        `events` or `charged` as for `affordable`.

        Raises:
            InputError: an event with another protection than the budget's.
        """
        order = Fraction(self.order)
        room = self.room - self.reserved.rdp(order)
        spent = self._spent(events, order, charged) - self.reserved.rdp(order)
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
                f"the privacy budget ε={epsilon_text(self.epsilon)} at δ={delta_text(self.delta)} would be "
                "passed; nothing was released"
            )

    def _spent(self, events: Iterable[PrivacyEvent], order: Fraction, charged: Cost | None) -> Fraction:
        known = list(events)
        if charged is not None:
            if known:
                raise InputError("events and their sum were both given: one of them is meant")
            return charged.rdp(order)
        if any(event.protection != self.protection for event in known):
            raise InputError("an event protects another unit, adjacency or number of votes than the budget")
        return (self.reserved + total_cost(known)).rdp(order)

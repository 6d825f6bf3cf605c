"""Accountant: the total cost of events, and ε along a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pate_fed.privacy.bounds.cost import NOTHING, Cost, epsilon_of
from pate_fed.privacy.checks import check_delta
from pate_fed.privacy.mechanisms.events import PrivacyEvent

__all__ = ["Odometer", "total_cost"]


def total_cost(events: Iterable[PrivacyEvent]) -> Cost:
    """Total cost of the events against the student and the public, in any order."""
    return sum((event.cost() for event in events), Cost())


@dataclass(frozen=True, slots=True)
class Odometer:
    """Privacy odometer: ε after each event, for display; it stops nothing and never decreases.

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

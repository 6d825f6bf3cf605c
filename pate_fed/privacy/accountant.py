"""Accountant: the total cost of events, and ε along a run."""

from __future__ import annotations

from collections.abc import Iterable

from pate_fed.privacy.bounds.cost import NOTHING, Cost, epsilon_of
from pate_fed.privacy.checks import check_delta
from pate_fed.privacy.mechanisms.events import PrivacyEvent

__all__ = ["odometer", "total_cost"]


def total_cost(events: Iterable[PrivacyEvent]) -> Cost:
    """Total cost of the events against the student and the public, in any order."""
    return sum((event.cost() for event in events), Cost())


def odometer(events: Iterable[PrivacyEvent], delta: float, *, reserved: Cost = NOTHING) -> list[float]:
    """Privacy odometer: ε at δ after each event, for display; it stops nothing and never decreases.

    `reserved` is what was paid before the first event.

    Raises:
        InputError: δ outside (0, 1).
    """
    check_delta(delta)
    cost, shown = reserved, [0.0]
    for event in events:
        cost += event.cost()
        # Each search may end a hair beside the best order, which must not look like a refund.
        shown.append(max(shown[-1], epsilon_of(cost, delta)))
    return shown[1:]

"""Accountant: the total cost of events, ε along a run, and ε that caps guarantee beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache

from pate_fed.privacy.bounds.control import CappedOutcome, capped_epsilon
from pate_fed.privacy.bounds.conversion import round_up
from pate_fed.privacy.bounds.cost import NOTHING, Cost, OutcomeCost, epsilon_of
from pate_fed.privacy.checks import check_delta
from pate_fed.privacy.mechanisms.events import PrivacyEvent


def total_cost(events: Iterable[PrivacyEvent]) -> Cost:
    """Total cost of the events against the student and the public, in any order."""
    return sum((event.cost() for event in events), Cost())


@lru_cache(maxsize=256)
def capped_cost_epsilon(cost: Cost, delta: float) -> float:
    """ε at δ of at most `cost`, each outcome as often as it says at most and in any order; rounded up.

    The least of RDP and of optimal control over the privacy loss (`pate_fed.privacy.bounds.control`), which
    holds where a cap is set on every kind of outcome and nothing else is released. It takes a second or so.

    Raises:
        InputError: δ outside (0, 1).
    """
    found = epsilon_of(cost, delta)
    if not cost.outcomes or cost != Cost(outcomes=cost.outcomes):
        return found
    parts = [
        CappedOutcome(rdp=_curve(outcome), variance=outcome.variance, times=times)
        for outcome, times in cost.outcomes
    ]
    return min(found, capped_epsilon(parts, delta))


@lru_cache(maxsize=256)
def _curve(outcome: OutcomeCost) -> Callable[[float], float]:
    """RDP of one outcome by the order; one function for equal outcomes, as its table is kept by it."""
    return lambda order: round_up(float(outcome.rdp(Fraction(order))))


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

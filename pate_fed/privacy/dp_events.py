"""Events of Google's dp-accounting, in both directions; the library is imported when it is needed.

A DpEvent knows no outcome of a noisy max, so an event becomes that of its noisy totals: an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.cost import NOTHING, Cost
from pate_fed.privacy.mechanisms.events import PrivacyEvent

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


def is_dp_event(value: object) -> bool:
    """Whether the value is a DpEvent; without the library nothing is."""
    return any(kind.__module__ == "dp_accounting.dp_event" for kind in type(value).__mro__)


def to_dp_event(events: Iterable[PrivacyEvent | Any]) -> DpEvent:
    """The events as one composed DpEvent of their noisy totals.

    Discrete Gaussian noise becomes a GaussianDpEvent, whose RDP is the same bound; a DpEvent stays as it is.

    Raises:
        InputError: no dp-accounting, or a release that is known by its outcome's own law or as (ε, δ)-DP.
    """
    library = _library()
    made = []
    for event in events:
        if is_dp_event(event):
            made.append(event)
            continue
        cost = event.cost()
        if cost != Cost(outcomes=cost.outcomes):
            raise InputError(f"{event.mechanism}: has no DpEvent, as its cost is not that of noisy totals")
        for outcome, times in cost.outcomes:
            one = outcome.as_totals(1)
            if one.pure:
                # Rounded down, as every multiplier here: less noise is never too little of a charge.
                single = library.LaplaceDpEvent(_down(1 / one.pure[0][0]))
            else:
                single = library.GaussianDpEvent(_root_down(1 / (2 * one.rho)))
            made.append(library.SelfComposedDpEvent(single, times))
    composed: DpEvent = library.ComposedDpEvent(made)
    return composed


def cost_of_dp_event(event: Any) -> Cost:
    """Cost of a DpEvent: Gaussian, Laplace, zero-concentrated, nothing, and compositions of these.

    Its neighbouring relation is taken to be the accountant's.

    Raises:
        InputError: another event, or one without privacy.
    """
    kind = type(event).__name__
    if kind == "NoOpDpEvent":
        return NOTHING
    if kind == "ComposedDpEvent":
        return sum((cost_of_dp_event(part) for part in event.events), NOTHING)
    if kind == "SelfComposedDpEvent":
        return cost_of_dp_event(event.event) * int(event.count)
    if kind == "GaussianDpEvent" and event.noise_multiplier > 0:
        return Cost(rho=1 / (2 * Fraction(event.noise_multiplier) ** 2))
    if kind == "LaplaceDpEvent" and event.noise_multiplier > 0:
        return Cost(pure=((1 / Fraction(event.noise_multiplier), 1),))
    if kind == "ZCDpEvent" and event.rho >= 0 and event.xi >= 0:
        return Cost(rho=Fraction(event.rho), flat=Fraction(event.xi))
    raise InputError(f"{event!r}: only Gaussian, Laplace and ZC events and their compositions are known here")


def _down(exact: Fraction) -> float:
    found = float(exact)
    return found if Fraction(found) <= exact else math.nextafter(found, 0)


def _root_down(exact: Fraction) -> float:
    found = math.sqrt(float(exact))
    while Fraction(found) ** 2 > exact:
        found = math.nextafter(found, 0)
    return found


def _library() -> Any:
    try:
        from dp_accounting import dp_event
    except ImportError as error:
        raise InputError("DpEvents need the package dp-accounting (pip install dp-accounting)") from error
    return dp_event

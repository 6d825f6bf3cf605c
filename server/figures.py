"""Figures of a run after the fact: ε along it, and the two data-dependent ones.

One of these is for the analyst alone, one may be published. None decides anything: the budget stop runs on
the ledger, which is independent of the votes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np

from pate_fed.errors import InputError
from pate_fed.privacy import (
    ConfidentGNMax,
    DistributedGNMax,
    GNMax,
    Ledger,
    NoiseSource,
    Odometer,
    PrivacyEvent,
    Protection,
    SanitiseSettings,
    data_dependent_epsilon_do_not_publish,
    sanitised_epsilon,
)
from pate_fed.privacy.mechanisms.sanitise import SanitisedEpsilon
from pate_fed.protocol.cost import Mechanism
from pate_fed.report import Spending
from server.coordinator import RunState

__all__ = ["analysts_epsilon", "publishable_epsilon", "spending"]

_POINTS = 40


def analysts_epsilon(
    mechanism: Mechanism, found: RunState, protection: Protection, *, delta: float
) -> float | None:
    """The data-dependent ε; it reveals something about the votes, so it is not for publication.

    None where nothing was asked, or where no exact total is known: the hospitals added the noise, or a batch
    under masks was cut off by its coordinator's death.
    """
    if not len(found.index) or found.earlier or isinstance(mechanism, DistributedGNMax):
        return None
    return data_dependent_epsilon_do_not_publish(
        mechanism,
        found.asked_totals,
        found.label >= 0,
        delta=delta,
        checked=np.concatenate(found.checked) if found.checked else None,
        protection=protection,
    ).epsilon


def publishable_epsilon(
    mechanism: Mechanism,
    found: RunState,
    settings: SanitiseSettings,
    noise: NoiseSource,
    protection: Protection,
    *,
    delta: float,
) -> SanitisedEpsilon | None:
    """The sanitised ε, drawn once, at the end of a study: a noisy reading of labels and itself, no bound."""
    if not len(found.index):
        return None
    if found.earlier:
        raise InputError(
            "--sanitise: the exact totals of what was asked before the coordinator was started again are not "
            "all there (folder totals of the run directory), so no sanitised ε can be drawn; the "
            "data-independent ε holds"
        )
    if not isinstance(mechanism, (ConfidentGNMax, GNMax)):
        raise InputError(f"{mechanism.name}: no data-dependent ε can be sanitised")
    return sanitised_epsilon(
        mechanism,
        found.asked_totals,
        found.label >= 0,
        settings=settings,
        delta=delta,
        noise=noise,
        protection=protection,
    )


def spending(ledger: Ledger) -> Spending:
    """ε along the run, from the ledger's public counts: within a batch queries are released in order."""
    _, answered, _ = ledger.released()
    pieces: list[PrivacyEvent] = []
    step, start = max(1, len(answered) // _POINTS), 0
    for event in ledger.events():
        for first in range(start, start + event.asked, step):
            part = answered[first : min(first + step, start + event.asked)]
            pieces.append(replace(event, asked=len(part), answered=int(part.sum())))
        start += event.asked
    epsilons = Odometer(ledger.terms.delta, ledger.terms.reserved).readings(pieces)
    return Spending(
        asked=tuple(accumulate(piece.asked for piece in pieces)),
        answered=tuple(accumulate(piece.answered for piece in pieces)),
        epsilon=tuple(epsilons),
    )

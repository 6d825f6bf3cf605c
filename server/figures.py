"""The two data-dependent figures of a run: one for the analyst alone, one that may be published.

Neither decides anything: the budget stop runs on the ledger, which is independent of the votes.
"""

from __future__ import annotations

from pate_fed.privacy import (
    ConfidentGNMax,
    DistributedGNMax,
    NoiseSource,
    Protection,
    SanitisedEpsilon,
    SanitiseSettings,
    mechanism_epsilon_do_not_publish,
    sanitised_epsilon,
)
from server.coordinator import Findings
from server.release import Mechanism

__all__ = ["analysts_epsilon", "publishable_epsilon"]


def analysts_epsilon(
    mechanism: Mechanism, found: Findings, protection: Protection, *, delta: float
) -> float | None:
    """The data-dependent ε; it reveals something about the votes, so it is not for publication.

    None where nothing was asked, or where the hospitals added the noise: no exact total is known then.
    """
    if not len(found.index) or isinstance(mechanism, DistributedGNMax):
        return None
    return mechanism_epsilon_do_not_publish(
        mechanism, found.asked_totals, found.label >= 0, delta=delta, protection=protection
    ).epsilon


def publishable_epsilon(
    mechanism: Mechanism,
    found: Findings,
    settings: SanitiseSettings,
    noise: NoiseSource,
    protection: Protection,
    *,
    delta: float,
) -> SanitisedEpsilon | None:
    """The sanitised ε, drawn once, at the end of a study; it bounds the labels and itself together."""
    if not len(found.index):
        return None
    confident = isinstance(mechanism, ConfidentGNMax)
    parameters = mechanism.parameters()
    return sanitised_epsilon(
        found.asked_totals,
        found.label >= 0,
        settings=settings,
        threshold=parameters["threshold"] if confident else None,
        sigma1=parameters["sigma1"] if confident else None,
        sigma2=parameters["sigma2" if confident else "sigma"],
        num_teachers=mechanism.num_teachers,
        delta=delta,
        noise=noise,
        protection=protection,
    )

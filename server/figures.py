"""The two data-dependent figures of a run: one for the analyst alone, one that may be published.

Neither decides anything: the budget stop runs on the ledger, which is independent of the votes.
"""

from __future__ import annotations

from pate_fed.errors import InputError
from pate_fed.privacy import (
    ConfidentGNMax,
    NoiseSource,
    Protection,
    SanitiseSettings,
    check_sanitisable,
    mechanism_epsilon_do_not_publish,
    sanitised_epsilon,
)
from pate_fed.protocol import Terms
from server.coordinator import Findings
from server.release import Mechanism

__all__ = ["analysts_epsilon", "fix_sanitising", "publishable_epsilon"]


def fix_sanitising(terms: Terms, protection: Protection) -> SanitiseSettings:
    """The parameters of the sanitised release, from the terms alone, before the first vote.

    Raises:
        InputError: the terms allow no sanitised ε; the message says why.
    """
    if terms.aggregator == "lnmax":
        raise InputError(
            "--sanitise with --aggregator lnmax: smooth sensitivity is derived for Gaussian noise"
        )
    try:
        settings = SanitiseSettings.for_study(
            asked=terms.max_queries,
            answered=min(terms.labels, terms.max_queries),
            sigma1=terms.sigma1 if terms.aggregator == "confident-gnmax" else None,
            sigma2=terms.sigma2,
            num_classes=terms.num_classes,
            delta=terms.delta,
        )
        check_sanitisable(settings, sigma2=terms.sigma2, num_classes=terms.num_classes, protection=protection)
    except InputError as error:
        raise InputError(f"--sanitise: {error}") from error
    return settings


def analysts_epsilon(
    mechanism: Mechanism, found: Findings, protection: Protection, *, delta: float
) -> float | None:
    """The data-dependent ε; it reveals something about the votes, so it is not for publication."""
    if not len(found.index):
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
) -> float | None:
    """The sanitised ε, drawn once; it bounds the labels and itself together."""
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
    ).epsilon

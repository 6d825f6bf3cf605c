"""What the report says in words of class sums: what was released, who sees it, and the study's terms."""

from __future__ import annotations

import math

from pate_fed.format import counted
from pate_fed.kinds.sums import SumTerms
from pate_fed.kinds.terms import Terms

_AT_HOME = "Records and every hospital's own sums"


def seen_of_sums(noise: str) -> tuple[str, str, str]:
    """What the public sees of class sums, what is kept from it, and by what."""
    sees = "Noisy sums of features by class, labels and a student made of them"
    return (
        sees,
        f"Exact sums. {_AT_HOME}",
        f"noise on the one release: {noise}; fixed before the first message",
    )


def by_coordinator(terms: Terms, *, masks: str) -> tuple[str, str]:
    """What of class sums is kept from the coordinator, and by what; `masks` says how long these hold."""
    if not terms.adds_noise:
        return _AT_HOME, f"masks hide each hospital's own sums, {masks}; the exact sum is shown"
    colluders = counted(terms.colluders, "hospital")
    return f"Exact sums. {_AT_HOME}", (
        f"noise and masks added at home; the masks hold {masks}; up to {colluders} may tell it their own "
        "noise"
    )


def method_of_sums(terms: Terms) -> list[tuple[str, str]]:
    """The study's terms as names and values."""
    sums = SumTerms.of(terms)
    if sums is None:
        return []
    of = "a table's columns" if sums.settings.columns else "images"
    length = math.sqrt(sums.squared_norm)
    sigma = sums.sigma
    if sigma is None:
        honest = terms.least_clients - terms.colluders
        sigma = (terms.sigma_party or 0.0) * math.sqrt(honest)
    return [
        ("Hospitals", f"{terms.num_clients:,}, at least {terms.least_clients:,} in the sum"),
        ("Mechanism", f"{terms.asks.mechanism}: one release"),
        ("Features", f"{sums.dimension:,}, {sums.settings.name} of {of}, SHA-256 {sums.features[:12]}…"),
        ("Noise σ", f"{sigma / length:,.4g} records on every sum ({sigma:,.6g} of the features' steps)"),
    ]


def ways_of_sums(terms: Terms) -> str:
    """How sums reach the coordinator."""
    if not isinstance(terms.asks, SumTerms) or terms.sigma_party is None:
        return "masked: only the sum over hospitals can be read"
    share = terms.sigma_party / math.sqrt(SumTerms.of(terms).squared_norm)
    honest = counted(terms.least_clients - terms.colluders, "hospital")
    return (
        f"masked, with noise of σ = {share:.4g} records of every hospital; counted on are {honest} that are "
        "surely there and tell nobody"
    )

"""ε of a ledger's caps by each accountant, side by side, each with what it holds for.

All of it follows from the terms' row alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pate_fed.errors import InputError
from pate_fed.format import epsilon_text
from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.privacy.bounds.cost import Cost, epsilon_of
from pate_fed.privacy.bounds.gaussian import gaussian_dp_epsilon
from pate_fed.privacy.bounds.profiles import pld_epsilon, totals_pld_epsilon
from pate_fed.privacy.ledger.terms import LedgerTerms, guaranteed_cost

_CONTINUOUS = "were the noise continuous, which it is not: stands beside and guarantees nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapsEpsilon:
    """ε that one accountant gives for a study's caps, rounded up, and what it holds for, as text."""

    name: str
    epsilon: float
    holds_for: str

    def line(self) -> str:
        """The figure in one line."""
        return f"{epsilon_text(self.epsilon):>8}  {self.name}: {self.holds_for}"


def accountants(terms: LedgerTerms) -> list[CapsEpsilon]:
    """ε of the caps by each accountant of this package that has one, the least first; empty without caps."""
    capped, delta = _cost_by_outcome(terms), terms.delta
    if capped is None:
        return []
    if capped.claimed:
        claimed = "all who see labels, if the mechanism keeps what it claims"
        return [CapsEpsilon(name="RDP as claimed", epsilon=epsilon_of(capped, delta), holds_for=claimed)]
    totals = capped.as_totals
    found = _of_sums(terms, capped) if terms.sums else _of_votes(terms, capped)
    if totals == Cost(rho=totals.rho):
        mu = math.sqrt(2 * float(totals.rho))
        found.append(
            CapsEpsilon(
                name="Gaussian DP of continuous totals",
                epsilon=gaussian_dp_epsilon(mu, delta),
                holds_for=_CONTINUOUS,
            )
        )
    return sorted(found, key=lambda each: each.epsilon)


def _of_votes(terms: LedgerTerms, capped: Cost) -> list[CapsEpsilon]:
    delta = terms.delta
    found = [
        CapsEpsilon(
            name="RDP of noisy totals",
            epsilon=epsilon_of(capped.as_totals, delta),
            holds_for="the integer noise that runs, also against those who see noisy totals",
        )
    ]
    if terms.by_outcome:
        found += [
            CapsEpsilon(
                name="RDP of outcomes",
                epsilon=epsilon_of(capped, delta),
                holds_for="all who see labels; a budget's filter adds up the same curves",
            ),
            CapsEpsilon(
                name="optimal control",
                epsilon=capped_cost_epsilon(capped, delta),
                holds_for="all who see labels, any votes, order and stops; it or RDP is what is stated",
            ),
        ]
    return found


def _of_sums(terms: LedgerTerms, capped: Cost) -> list[CapsEpsilon]:
    """Of class sums, which are one release: nothing is voted on, and nothing composes."""
    seen = "all who see the noisy sums, or what is made of them"
    found = [
        CapsEpsilon(
            name="RDP of the noise",
            epsilon=epsilon_of(capped.as_totals, terms.delta),
            holds_for=f"{seen}; a looser bound on the same noise",
        )
    ]
    if terms.by_outcome:
        found.append(
            CapsEpsilon(
                name="exact law of the noise",
                epsilon=epsilon_of(capped, terms.delta),
                holds_for=f"{seen}; this is what is stated",
            )
        )
    return found


def second_opinions(terms: LedgerTerms) -> list[CapsEpsilon]:
    """ε of the caps by the library dp-accounting, where it is installed and knows the mechanism."""
    capped = _cost_by_outcome(terms)
    if capped is None or capped.claimed:
        return []
    rows: list[tuple[str, Callable[[Cost, float], float], str]] = [
        (
            "PLD of the integer noise",
            pld_epsilon,
            "all who see labels, within the caps; by dp-accounting, each outcome as its noise",
        ),
        ("PLD of continuous totals", totals_pld_epsilon, _CONTINUOUS),
    ]
    found = []
    for name, accountant, holds_for in rows:
        try:
            epsilon = accountant(capped, terms.delta)
        except InputError:  # no such distribution, or no library: the others stand
            continue
        found.append(CapsEpsilon(name=name, epsilon=epsilon, holds_for=holds_for))
    return found


def _cost_by_outcome(terms: LedgerTerms) -> Cost | None:
    """The most that the caps allow, by outcome also where the ledger charges totals; None without caps."""
    capped = guaranteed_cost(replace(terms, charged="outcome"))
    return None if capped is None or capped.epsilon or capped.delta else capped

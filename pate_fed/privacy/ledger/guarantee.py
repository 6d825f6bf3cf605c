"""What a study promises before its first query: the ε that no course of it can pass.

How many queries are asked and answered depends on the votes, so what a run happened to spend is a reading,
and no bound that was fixed beforehand. The budget is one, held by the filter at one order (Feldman and Zrnic
2021); so is the cost of as many queries and labels as the terms allow, which is an ordinary composition.
"""

from __future__ import annotations

from pate_fed.privacy.filter import epsilon_of
from pate_fed.privacy.ledger.rows import LedgerTerms
from pate_fed.privacy.mechanisms.events import NOTHING, Cost, Mechanism

__all__ = ["guarantee_text", "guaranteed_coordinator_epsilon", "guaranteed_epsilon"]


def guaranteed_epsilon(terms: LedgerTerms) -> float | None:
    """ε against the student and the public at the terms' δ, rounded up; None where nothing bounds it."""
    bounds = [] if terms.epsilon is None else [terms.epsilon]
    if terms.most_asked is not None and terms.most_answered is not None:
        most = {
            _most(mechanism, terms, terms.most_asked, terms.most_answered) for mechanism in terms.mechanisms
        }
        bounds.append(epsilon_of(sum(most, terms.reserved), terms.delta))
    return min(bounds, default=None)


def _most(mechanism: Mechanism, terms: LedgerTerms, asked: int, answered: int) -> Cost:
    """What one mechanism costs that gets all queries and labels.

    The caps hold for all mechanisms together, so those of equal cost count once, however they share.
    """
    if mechanism.answers_all:
        asked = min(asked, answered)
    return mechanism.cost(asked, min(asked, answered), terms.protection)


def guaranteed_coordinator_epsilon(terms: LedgerTerms) -> float | None:
    """ε against the coordinator, with the fewest hospitals in every sum; None where nothing bounds it."""
    if terms.coordinator.sees_release:
        return guaranteed_epsilon(terms)
    if terms.most_asked is None:
        return None
    classes = terms.mechanisms[0].num_classes
    cost = terms.coordinator.cost(terms.most_asked, terms.protection, num_classes=classes)
    return None if cost is None else epsilon_of(NOTHING + cost, terms.delta)


def guarantee_text(terms: LedgerTerms) -> str:
    """What fixes the promise."""
    if terms.each_once:
        return "the mechanism, by which each record's label is answered about once"
    caps = f"at most {terms.most_asked} queries and {terms.most_answered} labels"
    known = terms.most_asked is not None and terms.most_answered is not None
    if terms.epsilon is None:
        return caps if known else "nothing: neither a budget nor a number of queries was set"
    budget = f"the budget ε={terms.epsilon:g}"
    return f"{budget}, and {caps}" if known else budget

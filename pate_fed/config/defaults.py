"""Noise, threshold and counts of a study that says nothing of them, for its number of teachers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from pate_fed.config.sections import Aggregation, Data, Parties, Privacy, Queries

if TYPE_CHECKING:
    from pate_fed.privacy.planning.search import Offer

__all__ = ["MOST_BY_DEFAULT", "USEFUL_LABELS", "affordable_offer", "with_defaults"]

MOST_BY_DEFAULT = 4.0
"""ε above which noise in proportion to the teachers is no default any more: the planner spends this instead.

250 teachers stay below it with the default of the PATE papers; at 8 the chance of an outcome may change by a
factor of 3,000 already, and below 2 fewer than a hundred teachers get no labels to learn from.
"""

USEFUL_LABELS = 100
"""Labels below which a student learns too little for a study to be worth its ε."""

_ENOUGH_TEACHERS, _USUAL_DELTA = 250, 1e-5
_CLASSES = 10  # of a known data set; ε does not depend on it, and the best noise little
_AGREEMENT = 0.85  # of teachers with the right class, as `pate-fed plan` assumes
_MOST_QUERIES = 2000


def with_defaults(
    *, parties: Parties, data: Data, aggregation: Aggregation, queries: Queries, privacy: Privacy
) -> tuple[Aggregation, Queries]:
    """The aggregation and the queries with T, σ1, σ2, labels and queries from the planner, or as they are.

    As they are where one of these is given, where noise in proportion to the teachers costs little enough (or
    fits the budget), where the mechanism is none that is planned, and where no noise buys enough labels.
    """
    given = (
        aggregation.threshold,
        aggregation.sigma1,
        aggregation.sigma2,
        queries.labels,
        queries.max_queries,
    )
    if given != (None,) * len(given) or aggregation.aggregator == "lnmax":
        return aggregation, queries
    moved = privacy.votes_moved(parties.teachers_per_client)
    if parties.num_teachers >= _ENOUGH_TEACHERS * moved and privacy.delta >= _USUAL_DELTA:
        return aggregation, queries
    usual = max(MOST_BY_DEFAULT, privacy.epsilon or 0.0)
    if _cost_in_proportion(parties.num_teachers, aggregation.has_threshold, privacy, moved) <= usual:
        return aggregation, queries
    offer = affordable_offer(
        num_teachers=parties.num_teachers,
        num_classes=data.num_classes or _CLASSES,
        threshold=aggregation.has_threshold,
        privacy=privacy,
        moved=moved,
    )
    if offer is None or offer.answered < USEFUL_LABELS:
        return aggregation, queries
    planned = replace(aggregation, threshold=offer.threshold, sigma1=offer.sigma1, sigma2=offer.sigma2)
    return planned, replace(queries, labels=offer.answered, max_queries=offer.asked)


@lru_cache(maxsize=64)
def _cost_in_proportion(num_teachers: int, threshold: bool, privacy: Privacy, moved: int) -> float:
    """About ε of the usual noise: that of so many times fewer teachers, of which one moves one vote."""
    from pate_fed.privacy import ConfidentGNMax, GNMax, Protection, epsilon_of

    num_teachers = max(1, num_teachers // moved)
    settings, counts = Aggregation().resolve(num_teachers), Queries().resolve(interactive=False)
    high, sigma1, sigma2 = settings.fixed()
    size = {"num_teachers": num_teachers, "num_classes": 2}
    labels = counts.labels or 0
    protection = Protection(unit=privacy.unit, adjacency=privacy.adjacency)
    if not threshold:
        return epsilon_of(GNMax(**size, sigma=sigma2).cost(labels, labels, protection), privacy.delta)
    mechanism = ConfidentGNMax(**size, threshold=high, sigma1=sigma1, sigma2=sigma2)
    return epsilon_of(mechanism.cost(_MOST_QUERIES, labels, protection), privacy.delta)


@lru_cache(maxsize=64)
def affordable_offer(
    *, num_teachers: int, num_classes: int, threshold: bool, privacy: Privacy, moved: int
) -> Offer | None:
    """About the most effective labels that the budget, or ε 4, buys so many teachers; None where none.

    Its price is an estimate, at once; what the study guarantees is computed when it begins.
    """
    from pate_fed.privacy import Protection
    from pate_fed.privacy.planning.search import OfferSearch
    from pate_fed.privacy.planning.vote_model import assumed_votes

    if moved > num_teachers:
        return None
    protection = Protection(unit=privacy.unit, adjacency=privacy.adjacency, votes_moved=moved)
    votes = assumed_votes(_AGREEMENT, num_classes, num_teachers)
    search = OfferSearch(votes, num_teachers, _MOST_QUERIES, protection, privacy.delta)
    budget = MOST_BY_DEFAULT if privacy.epsilon is None else privacy.epsilon
    checked, plain = search.offers(budget, exact=False)
    return checked if threshold else plain

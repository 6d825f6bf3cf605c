"""Noise, threshold and counts of a study that says nothing of them, for its number of teachers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pate_fed.config.backend import AUTO
from pate_fed.config.registry import find_part
from pate_fed.config.sections import INTERACTIVE, VOTES, Aggregation, Data, Parties, Privacy, Queries
from pate_fed.privacy.protection import Shares

if TYPE_CHECKING:
    from pate_fed.privacy import Protection
    from pate_fed.privacy.planning.search import Offer, OfferSearch

MOST_BY_DEFAULT = 4.0
"""ε above which noise in proportion to the teachers is no default any more: the planner spends this instead.

250 teachers stay below it with the default of the PATE papers; at 8 the chance of an outcome may change by a
factor of 3,000 already, and below 2 fewer than a hundred teachers get no labels to learn from.
"""

USEFUL_LABELS = 100
"""Labels below which a student learns too little for a study to be worth its ε."""

_CLASSES = 10  # of a known data set; ε does not depend on it, and the best noise little
_AGREEMENT = 0.85  # of teachers with the right class, as `pate-fed plan` assumes
_MOST_QUERIES = 2000
_NEARLY = 0.8  # of the useful labels, by an estimate that errs by less
_WITHIN = 0.97  # of the budget, by the same estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Who votes, on what and how: what noise, threshold and counts are chosen for.

    `shares` says who is counted on where the hospitals add the noise; None where the coordinator does.
    """

    num_teachers: int
    num_classes: int
    aggregator: str
    privacy: Privacy
    votes_moved: int
    shares: Shares | None = None

    @classmethod
    def of(
        cls,
        *,
        parties: Parties,
        data: Data,
        aggregation: Aggregation,
        privacy: Privacy,
        shares: Shares | None = None,
    ) -> Ensemble:
        """From the sections of a study."""
        return cls(
            num_teachers=parties.num_teachers,
            num_classes=data.num_classes or _CLASSES,
            aggregator=aggregation.aggregator,
            privacy=privacy,
            votes_moved=privacy.votes_moved(parties.teachers_per_client),
            shares=shares,
        )

    @property
    def budget(self) -> float:
        """ε that is planned for."""
        return MOST_BY_DEFAULT if self.privacy.epsilon is None else self.privacy.epsilon

    @property
    def protection(self) -> Protection:
        """What is protected, and how many votes it moves."""
        from pate_fed.privacy import Protection

        privacy = self.privacy
        return Protection(
            unit=privacy.planned_unit, adjacency=privacy.adjacency, votes_moved=self.votes_moved
        )

    @property
    def planned_as(self) -> str:
        """The aggregator that is planned: a student's part in the votes is not known beforehand."""
        return VOTES if self.aggregator in (AUTO, INTERACTIVE) else self.aggregator


def with_defaults(
    ensemble: Ensemble, aggregation: Aggregation, queries: Queries
) -> tuple[Aggregation, Queries]:
    """The aggregation and the queries with T, σ1, σ2, labels and queries from the planner, or as they are.

    As they are where one of these is given, where the mechanism is the user's own, where noise in proportion
    to the teachers keeps to the budget (ε 4 where none is given), and where no noise buys enough labels.
    Where the hospitals add the noise the budget is held against the coordinator, which sees noisy totals.
    """
    given = (
        aggregation.threshold,
        aggregation.sigma1,
        aggregation.sigma2,
        queries.labels,
        queries.max_queries,
    )
    if given != (None,) * len(given) or aggregation.own:
        return aggregation, queries
    offer = None if keeps_in_proportion(ensemble) else useful_offer(ensemble)
    if offer is None:
        return aggregation, queries
    planned = replace(aggregation, threshold=offer.threshold, sigma1=offer.sigma1, sigma2=offer.sigma2)
    return planned, replace(queries, labels=offer.answered, max_queries=offer.asked)


@lru_cache(maxsize=64)
def keeps_in_proportion(ensemble: Ensemble) -> bool:
    """Whether the usual noise and counts keep to the budget, nearly: by an estimate, on the safe side."""
    from pate_fed.privacy import epsilon_of
    from pate_fed.privacy.bounds.cost import Cost
    from pate_fed.privacy.mechanisms.events import Mechanism
    from pate_fed.privacy.planning.search import about_rho, gaussian_room

    teachers, shares = ensemble.num_teachers, ensemble.shares
    usual = Aggregation(aggregator=ensemble.planned_as).resolve(teachers, shares)
    labels = Queries().resolve(interactive=False).labels or 0
    asked = min(
        _MOST_QUERIES, math.ceil(labels * usual.queries_a_label(teachers, noise_at_hospitals=bool(shares)))
    )
    sigma2 = usual.fixed()[2]
    budget, delta, protection = ensemble.budget, ensemble.privacy.delta, ensemble.protection
    if shares is not None:
        totals = Cost(rho=Fraction(protection.l2_squared * asked) / (2 * Fraction(sigma2) ** 2))
        return epsilon_of(totals, delta) <= _WITHIN * budget
    size: dict[str, Any] = {"num_teachers": teachers, "num_classes": 2}
    mechanism: Mechanism = find_part(usual.aggregator, "aggregator")(size, usual)
    asked = labels if mechanism.answers_all else asked
    return about_rho(mechanism.cost(asked, labels, protection)) <= gaussian_room(_WITHIN * budget, delta)


def useful_offer(ensemble: Ensemble) -> Offer | None:
    """What the budget buys, where that is enough labels to learn from; else None."""
    if _is_too_small(ensemble):
        return None
    offer = affordable_offer(ensemble)
    return None if offer is None or offer.answered < USEFUL_LABELS else offer


def _is_too_small(ensemble: Ensemble) -> bool:
    """Whether the budget buys so few teachers far less than the useful labels, by the estimate."""
    if ensemble.votes_moved > ensemble.num_teachers:
        return True
    # The hospitals' own noise buys fewer labels than the coordinator's.
    guess = _search(ensemble).guess(ensemble.planned_as, ensemble.budget)
    return guess is None or guess.labels < _NEARLY * USEFUL_LABELS


@lru_cache(maxsize=64)
def affordable_offer(ensemble: Ensemble) -> Offer | None:
    """The most effective labels that the budget, or ε 4, buys so many teachers; None where none.

    ε is what a study with these caps guarantees; where the hospitals add the noise, against the coordinator.
    None too where nothing bounds it: a hospital that joins or leaves takes its noise along.
    """
    from pate_fed.privacy.planning.hospital_noise import SharesSearch, refused_shares

    if ensemble.votes_moved > ensemble.num_teachers:
        return None
    search, shares = _search(ensemble), ensemble.shares
    if shares is None:
        return search.offer(ensemble.planned_as, ensemble.budget)
    if refused_shares(search, shares.num_clients, ensemble.aggregator) is not None:
        return None
    found = SharesSearch(search, shares).offer(ensemble.planned_as, ensemble.budget)
    return None if found is None else found.offer


@lru_cache(maxsize=64)
def _search(ensemble: Ensemble) -> OfferSearch:
    from pate_fed.privacy.planning.search import OfferSearch
    from pate_fed.privacy.planning.vote_model import assumed_votes

    size = ensemble.num_classes, ensemble.num_teachers
    return OfferSearch(
        assumed_votes(_AGREEMENT, *size),
        ensemble.num_teachers,
        _MOST_QUERIES,
        ensemble.protection,
        ensemble.privacy.delta,
    )

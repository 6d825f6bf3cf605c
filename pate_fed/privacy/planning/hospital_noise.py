"""A plan where the hospitals add the noise: the coordinator sees noisy totals, and is charged for these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pate_fed.format import counted, epsilon_text
from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.privacy.bounds.cost import Cost, epsilon_of
from pate_fed.privacy.checks import Floats
from pate_fed.privacy.filter import BudgetFilter
from pate_fed.privacy.mechanisms.distributed import DistributedGNMax, party_sigma
from pate_fed.privacy.mechanisms.events import hospital_noise
from pate_fed.privacy.planning.search import (
    CONSENSUS,
    Offer,
    OfferSearch,
    OpenStudy,
    Spent,
    effective_labels,
    is_useful,
    queries_for,
    spend,
)
from pate_fed.privacy.planning.vote_model import VoteModel
from pate_fed.privacy.protection import LEAST_PARTIES, Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesOffer:
    """What the budget buys where the hospitals add the noise. All noise in votes.

    `offer.epsilon` holds against all who see labels, `epsilon_coordinator_most` against the coordinator,
    which sees the noisy totals, with the fewest hospitals in every sum: the budget bounds it.
    `epsilon_coordinator` is that where every hospital votes. Every query asked is paid in full. `honest` of
    `hospitals` are counted on.
    """

    offer: Offer
    hospitals: int
    honest: int
    colluders: int
    sigma_party: float
    epsilon_coordinator: float
    epsilon_coordinator_most: float

    def lines(self) -> list[str]:
        """The offer as text, three lines."""
        offer, most, own = self.offer, self.epsilon_coordinator_most, self.epsilon_coordinator
        return [
            f"{offer.mechanism}, {offer.noise()}: {counted(offer.answered, 'label')} of at most "
            f"{counted(offer.asked, 'query')}, {100 * offer.right_share:.0f} % right, worth "
            f"{offer.effective_labels:,.0f}",
            f"ε={epsilon_text(most)} against the coordinator, which sees noisy totals (ε={epsilon_text(own)} "
            f"where all {self.hospitals} vote), ε={epsilon_text(offer.epsilon)} against all who see labels",
            f"each hospital adds sigma={self.sigma_party:.3g}; {self.honest} are counted on, "
            f"{self.colluders} may tell theirs",
        ]


def refused_shares(search: OfferSearch, num_hospitals: int, aggregator: str | None) -> str | None:
    """Why noise at the hospitals cannot be planned, as text; None where it can."""
    if aggregator == "lnmax":
        return "hospitals add shares of Gaussian noise, and lnmax takes Laplace noise"
    if num_hospitals < LEAST_PARTIES:
        return f"votes are summed under masks from {LEAST_PARTIES} hospitals on, here are {num_hospitals}"
    if search.protection.votes_vanish:
        return (
            "a hospital that joins or leaves takes its noise along, so there is no bound for adjacency "
            "add-or-remove-one of a hospital; replace-one has one"
        )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chances:
    """What votes give under noise at the hospitals; a threshold of None is no check.

    Shapes: `sigma2` (noises,), all other arrays (thresholds, noises).
    """

    sigma2: Floats
    thresholds: list[float | None]
    share: Floats
    low_share: Floats
    right: Floats
    coverage: Floats


@lru_cache(maxsize=16)
def _chances(model: VoteModel, num_teachers: int) -> _Chances:
    sigma2 = num_teachers * np.geomspace(0.02, 1.0, 14)
    thresholds: list[float | None] = [None]
    thresholds += [float(math.ceil(round(num_teachers * level, 6))) for level in np.arange(3, 11, 2) / 10]
    figures = np.array([_under(model, num_teachers, thresholds, sigma) for sigma in sigma2])
    share, low, right, coverage = np.moveaxis(figures, (-1, 0), (0, -1))
    return _Chances(
        sigma2=sigma2, thresholds=thresholds, share=share, low_share=low, right=right, coverage=coverage
    )


def _under(
    model: VoteModel, num_teachers: int, thresholds: Sequence[float | None], sigma: float
) -> list[tuple[float, float, float, float]]:
    """By threshold: share answered, the same with less consensus, share right of the answered, coverage."""
    checked = [each for each in thresholds if each is not None]
    found = []
    if len(checked) < len(thresholds):  # the one without a check stands first
        found.append((1.0, 1.0, float(model.right_chance(sigma, num_teachers).mean()), 1.0))
    for threshold, (passed, right) in zip(checked, model.reached(checked, sigma, num_teachers), strict=True):
        low = model.passing(threshold, sigma, num_teachers, consensus=CONSENSUS)
        share = float(passed.mean())
        coverage = share**2 / max(float((passed**2).mean()), 1e-300)
        share_right = float(right.sum() / max(passed.sum(), 1e-300))
        found.append((share, max(float(low.mean()), 1e-9), share_right, coverage))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """A threshold or none; about the part of queries that reaches it, and that with less consensus."""

    threshold: float | None
    share: float
    low_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """Noise and counts that spend the budget, and what the votes give under them."""

    at: _At
    spent: Spent
    share: float
    right: float
    coverage: float
    worth: float


class SharesSearch:
    """Candidates for one study whose hospitals add the noise; `shares` says how many are counted on.

    They are priced by what the coordinator is charged, which sees the noisy totals of every query asked.
    """

    def __init__(self, search: OfferSearch, shares: Shares) -> None:
        self._search, self._shares = search, shares
        self._chances = _chances(search.model, search.n)

    def best(self, epsilon: float, aggregators: Sequence[str]) -> SharesOffer | None:
        """The best offer of some aggregators; None where not one label is worth anything."""
        found = [each for name in aggregators if (each := self._candidate(name, epsilon))]
        best = max(found, key=lambda each: each.worth, default=None)
        return None if best is None else self._offer(best)

    def offer(self, aggregator: str, epsilon: float) -> SharesOffer | None:
        """The best offer of confident-gnmax or gnmax; None where not one label is worth anything."""
        return self.best(epsilon, (aggregator,))

    def _candidate(self, aggregator: str, epsilon: float) -> _Candidate | None:
        search, chances = self._search, self._chances
        rows = [row for row, at in enumerate(chances.thresholds) if (at is None) == (aggregator == "gnmax")]
        price = np.array([self._about(float(sigma), 1) for sigma in chances.sigma2])
        asked = np.minimum(self._room(epsilon) / price + 1e-9, search.pool)
        answered = np.floor(asked * chances.low_share[rows])
        worth = effective_labels(answered, chances.right[rows], chances.coverage[rows], search.num_classes)
        worth[:, chances.sigma2 < self._shares.least_sigma] = 0.0
        row, column = np.unravel_index(int(np.argmax(worth)), worth.shape)
        if not is_useful(answered[row, column], worth[row, column]):
            return None
        place = rows[row]
        at = _At(
            threshold=chances.thresholds[place],
            share=float(chances.share[place, column]),
            low_share=float(chances.low_share[place, column]),
        )
        return self._spent(at, int(answered[row, column]), epsilon)

    def _spent(self, at: _At, labels: int, epsilon: float) -> _Candidate | None:
        """The candidate with the noise and the counts that spend the budget."""
        search = self._search
        found = spend(
            OpenStudy(
                price=lambda sigma, count: self._stated(self._mechanism(at, sigma), self._asked(at, count)),
                about=lambda sigma, count: self._about(sigma, self._asked(at, count)),
                room=self._room,
                most_labels=max(1, math.floor(search.pool * at.low_share)),
                least_sigma=self._shares.least_sigma,
            ),
            epsilon=epsilon,
            labels=labels,
        )
        if found is None:
            return None
        [(share, _, right, coverage)] = _under(search.model, search.n, [at.threshold], found.sigma)
        count = np.array(float(found.labels))
        worth = float(effective_labels(count, np.array(right), coverage, search.num_classes))
        if not is_useful(found.labels, worth):
            return None
        return _Candidate(at=at, spent=found, share=share, right=right, coverage=coverage, worth=worth)

    def _offer(self, best: _Candidate) -> SharesOffer:
        """The candidate with its ε against both."""
        search, at, found = self._search, best.at, best.spent
        mechanism, asked = self._mechanism(at, found.sigma), self._asked(at, found.labels)
        public = mechanism.cost(asked, found.labels, search.protection)
        return SharesOffer(
            offer=Offer(
                mechanism="gnmax" if at.threshold is None else "confident-gnmax",
                threshold=at.threshold,
                sigma1=None,
                sigma2=found.sigma,
                asked=asked,
                answered=found.labels,
                answered_share=best.share,
                right_share=best.right,
                coverage=best.coverage,
                effective_labels=best.worth,
                epsilon=capped_cost_epsilon(public, search.delta),
                bytes_per_hospital=4 * asked * search.num_classes,
            ),
            hospitals=self._shares.num_clients,
            honest=self._shares.honest,
            colluders=self._shares.colluders,
            sigma_party=mechanism.sigma_party,
            epsilon_coordinator=self._stated(mechanism, asked, voters=self._shares.num_clients),
            epsilon_coordinator_most=found.epsilon,
        )

    def _asked(self, at: _At, labels: int) -> int:
        """The cap on queries that so many labels take."""
        if at.threshold is None:
            return labels
        return min(self._search.pool, queries_for(labels, share=at.share, low_share=at.low_share))

    def _mechanism(self, at: _At, sigma: float) -> DistributedGNMax:
        shares = self._shares
        return DistributedGNMax(
            num_teachers=self._search.n,
            num_classes=self._search.num_classes,
            threshold=at.threshold,
            sigma_party=party_sigma(sigma, parties=shares.least_voters, colluders=shares.colluders),
            least_honest=shares.honest,
        )

    def _seen(self, sigma_party: float, asked: int, voters: int) -> Cost:
        """What the coordinator is charged for the noisy totals of every query asked."""
        search, colluders = self._search, self._shares.colluders
        view = hospital_noise(sigma_party=sigma_party, survivors=voters, colluders=colluders)
        cost = view.cost(asked, search.protection, num_classes=search.num_classes)
        assert cost is not None
        return cost

    def _stated(self, mechanism: DistributedGNMax, asked: int, *, voters: int | None = None) -> float:
        cost = self._seen(mechanism.sigma_party, asked, voters or self._shares.least_voters)
        return epsilon_of(cost, self._search.delta)

    def _about(self, sigma: float, asked: int) -> float:
        return self._search.protection.l2_squared * asked / (2 * sigma * sigma)

    def _room(self, epsilon: float) -> float:
        """The ρ that a budget buys of noisy totals."""
        budget = BudgetFilter(epsilon, self._search.delta)
        return float(budget.room) / budget.order

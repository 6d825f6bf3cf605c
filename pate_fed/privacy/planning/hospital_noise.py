"""A plan where the hospitals add the noise: the coordinator sees noisy totals, and is charged for these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from pate_fed.format import counted, epsilon_text
from pate_fed.privacy.accounting import BudgetFilter
from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.checks import Floats
from pate_fed.privacy.mechanisms.distributed import DistributedGNMax, party_sigma
from pate_fed.privacy.mechanisms.events import hospital_noise
from pate_fed.privacy.planning.search import CONSENSUS, Chances, Offer, OfferSearch, Way
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


@lru_cache(maxsize=16)
def _chances(model: VoteModel, num_teachers: int, aggregator: str) -> Chances:
    sigma2 = num_teachers * np.geomspace(0.02, 1.0, 14)
    thresholds: list[float | None] = [None]
    if aggregator != "gnmax":
        thresholds = [float(math.ceil(round(num_teachers * level, 6))) for level in np.arange(3, 11, 2) / 10]
    figures = np.array([_under(model, num_teachers, thresholds, sigma) for sigma in sigma2])
    share, low, right, coverage = np.moveaxis(figures, (-1, 0), (0, -1))
    ways = [Way(aggregator=aggregator, threshold=each) for each in thresholds]
    return Chances(ways=ways, sigma2=sigma2, share=share, low_share=low, right=right, coverage=coverage)


def _under(
    model: VoteModel, num_teachers: int, thresholds: Sequence[float | None], sigma: float
) -> list[tuple[float, float, float, float]]:
    """By threshold: share answered, the same with less consensus, share right of the answered, coverage."""
    checked = [each for each in thresholds if each is not None]
    if not checked:
        return [(1.0, 1.0, float(model.right_chance(sigma, num_teachers).mean()), 1.0)]
    found = []
    for threshold, (passed, right) in zip(checked, model.reached(checked, sigma, num_teachers), strict=True):
        low = model.passing(threshold, sigma, num_teachers, consensus=CONSENSUS)
        share = float(passed.mean())
        coverage = share**2 / max(float((passed**2).mean()), 1e-300)
        share_right = float(right.sum() / max(passed.sum(), 1e-300))
        found.append((share, max(float(low.mean()), 1e-9), share_right, coverage))
    return found


class SharesSearch(OfferSearch):
    """Candidates for one study whose hospitals add the noise; `shares` says how many are counted on.

    They are priced by what the coordinator is charged, which sees the noisy totals of every query asked.
    """

    def __init__(self, search: OfferSearch, shares: Shares) -> None:
        super().__init__(search.model, search.n, search.pool, search.protection, search.delta)
        self._shares, self.least_sigma = shares, shares.least_sigma

    def best(self, epsilon: float, aggregators: Sequence[str]) -> SharesOffer | None:
        """The best offer of confident-gnmax, gnmax or both; None where not one label is worth anything."""
        found = [each for name in aggregators if (each := self.offer(name, epsilon))]
        best = max(found, key=lambda each: each.effective_labels, default=None)
        if best is None or best.sigma2 is None:
            return None
        mechanism, shares = self._shared(best.threshold, best.sigma2), self._shares
        public = mechanism.cost(best.asked, best.answered, self.protection)
        return SharesOffer(
            offer=replace(best, epsilon=capped_cost_epsilon(public, self.delta)),
            hospitals=shares.num_clients,
            honest=shares.honest,
            colluders=shares.colluders,
            sigma_party=mechanism.sigma_party,
            epsilon_coordinator=self._seen(mechanism, best.asked, shares.num_clients),
            epsilon_coordinator_most=best.epsilon,
        )

    def room(self, epsilon: float) -> float:
        """The ρ that a budget buys of noisy totals."""
        budget = BudgetFilter(epsilon, self.delta)
        return float(budget.room) / budget.order

    def _chances(self, aggregator: str) -> Chances:
        return _chances(self.model, self.n, aggregator)

    def _answered(self, aggregator: str, epsilon: float) -> Floats:
        chances = self._chances(aggregator)
        price = np.array([self._about(chances.ways[0], float(sigma), 1, 1) for sigma in chances.sigma2])
        asked = np.minimum(self.room(epsilon) / price + 1e-9, self.pool)
        return np.asarray(np.floor(asked * chances.low_share))

    def _stated(self, way: Way, sigma: float, asked: int, answered: int) -> float:
        return self._seen(self._shared(way.threshold, sigma), asked, self._shares.least_voters)

    def _about(self, way: Way, sigma: float, asked: int, answered: int) -> float:
        return self.protection.l2_squared * asked / (2 * sigma * sigma)

    def _given(self, way: Way, sigma: float) -> tuple[float, float, float]:
        [(share, _, right, coverage)] = _under(self.model, self.n, [way.threshold], sigma)
        return share, right, coverage

    def _shared(self, threshold: float | None, sigma: float) -> DistributedGNMax:
        shares = self._shares
        return DistributedGNMax(
            num_teachers=self.n,
            num_classes=self.num_classes,
            threshold=threshold,
            sigma_party=party_sigma(sigma, parties=shares.least_voters, colluders=shares.colluders),
            least_honest=shares.honest,
        )

    def _seen(self, mechanism: DistributedGNMax, asked: int, voters: int) -> float:
        """ε against the coordinator for the noisy totals of every query asked, with so many in each sum."""
        view = hospital_noise(
            sigma_party=mechanism.sigma_party, survivors=voters, colluders=self._shares.colluders
        )
        cost = view.cost(asked, self.protection, num_classes=self.num_classes)
        assert cost is not None
        return epsilon_of(cost, self.delta)

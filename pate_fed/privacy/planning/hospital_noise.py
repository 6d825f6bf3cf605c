"""Price of a plan where the hospitals add the noise instead of the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from pate_fed.config.trust import LEAST_PARTIES, TrustModel
from pate_fed.format import epsilon_text
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.filter import BudgetFilter
from pate_fed.privacy.mechanisms.distributed import DistributedGNMax, party_sigma
from pate_fed.privacy.mechanisms.events import hospital_noise
from pate_fed.privacy.planning.search import Offer, OfferSearch

__all__ = ["SharesOffer", "offer_with_shares"]

_QUORUM = 0.8  # a study's default


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesOffer:
    """The same questions with the hospitals' own noise. All noise in votes.

    `epsilon` holds against all who see labels, `epsilon_coordinator` against the coordinator, which sees the
    noisy totals, where every hospital votes, and `epsilon_coordinator_most` where the fewest do; `affordable`
    is how many queries the budget buys. `honest` of `hospitals` are counted on.
    """

    hospitals: int
    honest: int
    colluders: int
    sigma2: float
    sigma_party: float
    asked: int
    epsilon: float
    epsilon_coordinator: float
    epsilon_coordinator_most: float
    affordable: int

    def lines(self) -> list[str]:
        """The offer as text, two lines."""
        bounds = self.epsilon, self.epsilon_coordinator_most, self.epsilon_coordinator
        public, most, own = (epsilon_text(bound) for bound in bounds)
        return [
            "noise at the hospitals instead (--secure-sum --noise-at hospitals): every query asked is paid "
            f"in full, so {self.asked} queries at sigma2={self.sigma2:g} cost ε={public}, and ε={most} "
            "against the coordinator, which is unbounded otherwise; "
            f"ε={own} against it where all {self.hospitals} vote",
            f"the budget affords {self.affordable} such queries; each of {self.hospitals} hospitals adds "
            f"sigma={self.sigma_party:.3g}, {self.honest} are counted on, {self.colluders} may tell theirs",
        ]


def offer_with_shares(
    best: Offer | None, search: OfferSearch, *, num_hospitals: int, epsilon: float
) -> SharesOffer | None:
    """Price of the best offer's queries with the hospitals' noise; None where too few could sum under masks.

    None too where a whole hospital may join or leave, whose noise would come and go with its votes.

    Dropouts and colluders are a study's defaults; `sigma2` is raised where shares of it would be too small.
    """
    if best is None or num_hospitals < LEAST_PARTIES or search.protection.votes_vanish:
        return None
    budget = BudgetFilter(epsilon, search.delta, search.protection)
    trust = TrustModel(secure_sum=True, noise_at="hospitals")
    shares = trust.shares(num_hospitals, trust.least_voters(num_hospitals, _QUORUM))
    sigma = max(best.sigma2, shares.least_sigma)
    share = party_sigma(sigma, parties=shares.least_voters, colluders=shares.colluders)
    mechanism = DistributedGNMax(
        num_teachers=search.n,
        num_classes=search.num_classes,
        threshold=best.threshold,
        sigma_party=share,
        least_honest=shares.honest,
    )
    view = hospital_noise(sigma_party=share, survivors=num_hospitals, colluders=shares.colluders)
    seen = view.cost(best.asked, budget.protection, num_classes=search.num_classes)
    assert seen is not None
    paid = mechanism.cost_asked(budget.protection) * best.asked
    return SharesOffer(
        hospitals=num_hospitals,
        honest=shares.honest,
        colluders=shares.colluders,
        sigma2=sigma,
        sigma_party=share,
        asked=best.asked,
        epsilon=epsilon_of(paid, budget.delta),
        epsilon_coordinator_most=epsilon_of(paid.as_totals, budget.delta),
        epsilon_coordinator=epsilon_of(seen, budget.delta),
        affordable=budget.affordable(mechanism, queries=search.pool),
    )

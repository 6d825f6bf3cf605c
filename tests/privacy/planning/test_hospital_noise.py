"""A plan's price where the hospitals add the noise."""

from __future__ import annotations

import json
import math

import pytest

from pate_fed.privacy import (
    BudgetFilter,
    ConfidentGNMax,
    DistributedGNMax,
    GNMax,
    Plan,
    Protection,
    epsilon_of,
    plan,
)
from pate_fed.privacy.planning.search import Offer

TERMS = {"num_teachers": 250, "num_classes": 10, "epsilon": 2.0, "delta": 1e-5}


def mechanism(offer: Offer, num_teachers: int = 250, num_classes: int = 10) -> ConfidentGNMax | GNMax:
    size = {"num_teachers": num_teachers, "num_classes": num_classes}
    if offer.threshold is None or offer.sigma1 is None:
        return GNMax(**size, sigma=offer.sigma2)
    return ConfidentGNMax(**size, threshold=offer.threshold, sigma1=offer.sigma1, sigma2=offer.sigma2)


def test_noise_at_the_hospitals_is_priced_beside_the_best_offer(usual: Plan) -> None:
    best, shares = usual.best, usual.hospital_noise
    assert best and shares
    assert (shares.hospitals, shares.colluders, shares.honest) == (250, 25, 175)
    assert shares.asked == best.asked
    # Whoever is counted on adds up to the noise of the offer, and every asked query is paid in full.
    assert shares.sigma_party**2 * shares.honest == pytest.approx(shares.sigma2**2)
    paid = (
        GNMax(num_teachers=250, num_classes=10, sigma=shares.sigma2).cost_asked(Protection()) * shares.asked
    )
    assert shares.epsilon == pytest.approx(epsilon_of(paid, 1e-5), rel=1e-6)
    # All 250 voting, the coordinator still cannot take away 225 shares.
    seen = GNMax(num_teachers=250, num_classes=10, sigma=math.sqrt(225) * shares.sigma_party)
    paid = seen.cost_asked(Protection()) * shares.asked
    # The coordinator sees the noisy totals, everyone else what wins.
    assert shares.epsilon_coordinator == pytest.approx(epsilon_of(paid.as_totals, 1e-5), rel=1e-6)
    assert shares.epsilon_coordinator < shares.epsilon_coordinator_most
    assert shares.epsilon < shares.epsilon_coordinator_most
    text = "\n".join(usual.lines())
    assert "--noise-at hospitals" in text and f"affords {shares.affordable} such queries" in text
    assert "against it where all 250 vote" in text  # fewer may, so it is no promise


def test_what_the_budget_affords_with_shares_fits_it(usual: Plan) -> None:
    shares = usual.hospital_noise
    assert shares
    for queries, fits in ((shares.affordable, True), (shares.affordable + 1, False)):
        mechanism = DistributedGNMax(
            num_teachers=250,
            num_classes=10,
            threshold=None,
            sigma_party=shares.sigma_party,
            least_honest=shares.honest,
        )
        assert BudgetFilter(2.0, 1e-5).holds(mechanism.cost_asked(Protection()) * queries) is fits


def test_a_hospital_that_may_leave_is_planned_without_noise_of_its_own() -> None:
    leaving = Protection(unit="hospital", adjacency="add-or-remove-one", votes_moved=5)
    made = plan(**TERMS, num_hospitals=50, protection=leaving)
    assert made.best is not None and made.hospital_noise is None


def test_shares_too_small_are_raised_and_too_few_hospitals_get_none(usual: Plan) -> None:
    assert plan(**{**TERMS, "num_teachers": 30}, num_hospitals=3).hospital_noise is None
    made = plan(**{**TERMS, "epsilon": 50.0}).hospital_noise
    assert made and made.sigma_party**2 >= 2
    assert json.loads(json.dumps(usual.to_dict()))["hospital_noise"]["hospitals"] == 250

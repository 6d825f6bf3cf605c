"""A plan's price where the hospitals add the noise."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pate_fed.privacy import (
    DistributedGNMax,
    LedgerTerms,
    Plan,
    Pool,
    Protection,
    SeededNoise,
    plan,
)
from pate_fed.privacy.ledger.terms import guaranteed_coordinator_epsilon, guaranteed_epsilon
from pate_fed.privacy.mechanisms.events import hospital_noise
from pate_fed.privacy.planning.hospital_noise import SharesOffer, SharesSearch
from pate_fed.privacy.planning.search import OfferSearch
from pate_fed.privacy.planning.vote_model import assumed_votes
from pate_fed.privacy.protection import Shares

TERMS = {"num_teachers": 250, "num_classes": 10, "epsilon": 2.0, "delta": 1e-5}


def ledger_terms(made: SharesOffer, num_teachers: int = 250) -> LedgerTerms:
    """Of a study with the offer's noise and caps."""
    distributed = DistributedGNMax(
        num_teachers=num_teachers,
        num_classes=10,
        threshold=made.offer.threshold,
        sigma_party=made.sigma_party,
        least_honest=made.honest,
    )
    least = made.honest + made.colluders
    seen = hospital_noise(sigma_party=made.sigma_party, survivors=least, colluders=made.colluders)
    return LedgerTerms(
        study_digest="ab" * 32,
        delta=1e-5,
        mechanisms=(distributed,),
        protection=Protection(),
        noise="n",
        private=True,
        coordinator=seen,
        most_asked=made.offer.asked,
        most_answered=made.offer.answered,
    )


@pytest.mark.parametrize("aggregator", ["confident-gnmax", "gnmax"])
@pytest.mark.parametrize(("teachers", "epsilon"), [(12, 2.0), (30, 6.0)])
def test_the_budget_is_spent_against_who_sees_the_totals(
    aggregator: str, teachers: int, epsilon: float
) -> None:
    search = OfferSearch(assumed_votes(0.85, 10, teachers), teachers, 9000, Protection(), 1e-5)
    made = SharesSearch(search, Shares.usual(teachers)).best(epsilon, (aggregator,))
    assert made is not None
    terms = ledger_terms(made, teachers)
    assert made.epsilon_coordinator_most == guaranteed_coordinator_epsilon(terms)
    assert 0.99 * epsilon < made.epsilon_coordinator_most <= epsilon
    assert made.offer.epsilon == guaranteed_epsilon(terms)
    assert made.offer.epsilon < made.epsilon_coordinator_most
    assert (made.offer.threshold is None) == (aggregator == "gnmax")
    # Whoever is counted on adds up to the noise of the offer.
    assert made.sigma_party**2 * made.honest == pytest.approx(made.offer.sigma2**2)
    assert made.epsilon_coordinator <= made.epsilon_coordinator_most


def test_the_text_names_both_adversaries_and_the_command(usual: Plan) -> None:
    shares = usual.hospital_noise
    assert shares and (shares.hospitals, shares.colluders, shares.honest) == (250, 25, 175)
    text = "\n".join(usual.lines())
    assert "against the coordinator, which sees noisy totals" in text and "against all who see labels" in text
    assert "where all 250 vote" in text  # fewer may, so it is no promise
    command = usual.hospital_noise_command or ""
    assert "--secure-sum --noise-at hospitals" in command and f"--labels {shares.offer.answered} " in command
    assert json.loads(json.dumps(usual.to_dict()))["hospital_noise"]["offer"]["asked"] == shares.offer.asked


def test_labels_come_out_as_predicted_under_the_hospitals_noise(usual: Plan) -> None:
    made = usual.hospital_noise
    assert made is not None and made.offer.threshold is not None
    votes, noise = assumed_votes(0.85, 10, 250), SeededNoise(3)
    totals = np.round(votes.shares * 250).astype(int)
    noisy = totals + noise.discrete_gaussian(totals.shape, sigma=made.offer.sigma2)
    passed = noisy.max(axis=1) >= made.offer.threshold
    assert passed.mean() == pytest.approx(made.offer.answered_share, abs=0.03)
    assert (noisy.argmax(axis=1) == votes.right)[passed].mean() == pytest.approx(
        made.offer.right_share, abs=0.03
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_teachers": 20, "num_hospitals": 3}, "from 4 hospitals on, here are 3"),
        ({"num_teachers": 20, "aggregator": "lnmax"}, "lnmax takes Laplace noise"),
        (
            {
                "num_hospitals": 50,
                "protection": Protection(unit="hospital", adjacency="add-or-remove-one", votes_moved=5),
            },
            "takes its noise along",
        ),
    ],
)
def test_what_cannot_be_planned_is_said(changes: dict[str, object], words: str) -> None:
    made = plan(**{**TERMS, **changes})  # type: ignore[arg-type]
    assert made.hospital_noise is None and made.hospital_noise_command is None
    assert words in (made.no_hospital_noise or "")
    assert any("not planned, as" in line and words in line for line in made.lines())


def test_shares_are_never_too_small_to_have_a_bound() -> None:
    made = plan(**{**TERMS, "num_teachers": 30, "epsilon": 400.0}, pool=Pool(max_queries=50)).hospital_noise
    assert made and made.sigma_party**2 >= 2 and made.epsilon_coordinator_most <= 400.0

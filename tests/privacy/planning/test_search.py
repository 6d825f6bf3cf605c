"""The search: what is offered fits the budget, and nothing else serves better."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.privacy import BudgetFilter, ConfidentGNMax, GNMax, Plan, Protection, SeededNoise, plan
from pate_fed.privacy.planning.search import Offer, effective_labels
from pate_fed.privacy.planning.vote_model import assumed_votes, past_votes

TERMS = {"num_teachers": 250, "num_classes": 10, "epsilon": 2.0, "delta": 1e-5}


PROTECTIONS = (Protection(), Protection(votes_moved=2), Protection(unit="hospital", votes_moved=5))


@pytest.fixture(scope="module")
def mnist(shared: Path) -> np.ndarray:
    return np.load(shared / "data" / "pate_votes" / "mnist_250_teachers.npy").astype(int)


def _check(offer: Offer) -> tuple[float, float]:
    assert offer.threshold is not None and offer.sigma1 is not None
    return offer.threshold, offer.sigma1


def mechanism(offer: Offer, num_teachers: int = 250, num_classes: int = 10) -> ConfidentGNMax | GNMax:
    size = {"num_teachers": num_teachers, "num_classes": num_classes}
    if offer.threshold is None or offer.sigma1 is None:
        return GNMax(**size, sigma=offer.sigma2)
    return ConfidentGNMax(**size, threshold=offer.threshold, sigma1=offer.sigma1, sigma2=offer.sigma2)


@pytest.mark.parametrize("protection", PROTECTIONS, ids=lambda p: f"{p.unit}-{p.votes_moved}")
@pytest.mark.parametrize("epsilon", [pytest.param(0.5, marks=pytest.mark.slow), 2.0, 8.0])
def test_the_filter_allows_what_is_offered(protection: Protection, epsilon: float) -> None:
    made = plan(**{**TERMS, "num_teachers": 100, "epsilon": epsilon}, protection=protection)
    budget = BudgetFilter(epsilon, 1e-5, protection)
    offers = [offer for offer in (made.with_threshold, made.without_threshold) if offer]
    assert offers or (protection.votes_moved > 1 and epsilon < 1)
    for offer in offers:
        assert (
            budget.affordable(mechanism(offer, 100), queries=offer.asked, max_answers=offer.answered)
            == offer.asked
        )
        assert offer.epsilon <= epsilon
        if offer.answered >= 20:
            assert offer.epsilon > 0.9 * epsilon  # of RDP, by which the filter stops, nothing is left
        assert 1 <= offer.answered <= offer.asked <= made.max_queries
        assert 0.1 < offer.right_share < 1 and 0 < offer.coverage <= 1 + 1e-12


def test_the_best_offer_is_the_one_worth_most(usual: Plan) -> None:
    assert usual.best and usual.with_threshold and usual.without_threshold
    worths = [usual.with_threshold.effective_labels, usual.without_threshold.effective_labels]
    assert usual.best.effective_labels == max(worths)
    assert usual.without_threshold.coverage == pytest.approx(1.0)
    for offer in (usual.with_threshold, usual.without_threshold):
        above = offer.right_share - (1 - offer.right_share) / 9
        assert offer.effective_labels == pytest.approx(offer.answered * above**4 * offer.coverage)
    passed = assumed_votes(0.85, 10, 250).answered(*_check(usual.with_threshold), 250)
    assert usual.with_threshold.coverage == pytest.approx(passed.mean() ** 2 / (passed**2).mean())


def test_a_larger_budget_is_worth_more(usual: Plan) -> None:
    worth = [point.effective_labels for point in usual.curve]
    assert worth == sorted(worth) and worth[0] < worth[-1]
    same = next(point for point in usual.curve if point.epsilon == 2.0)
    assert usual.best and same.labels == usual.best.answered


def test_no_other_noise_serves_better_within_the_budget(usual: Plan) -> None:
    offer, votes = usual.without_threshold, assumed_votes(0.85, 10, 250)
    assert offer
    budget = BudgetFilter(2.0, 1e-5)
    for sigma in np.geomspace(20, 130, 8):
        count = budget.affordable(GNMax(num_teachers=250, num_classes=10, sigma=float(sigma)), queries=10_000)
        right = np.array(votes.right_chance(float(sigma), 250).mean())
        assert effective_labels(np.array(float(count)), right, 1.0, 10) <= 1.02 * offer.effective_labels


def test_no_other_check_serves_better_within_the_budget(usual: Plan) -> None:
    offer, votes = usual.with_threshold, assumed_votes(0.85, 10, 250)
    assert offer
    budget, rng = BudgetFilter(2.0, 1e-5), np.random.default_rng(4)
    rho = float(budget.room) / budget.order
    for _ in range(300):
        threshold, sigma1, sigma2 = rng.uniform(50, 320), rng.uniform(25, 500), rng.uniform(20, 200)
        passed = votes.answered(threshold, sigma1, 250)
        price = 0.645 * (1 / (2 * sigma1**2) + passed.mean() / sigma2**2)
        asked = min(10_000, rho / price)
        right = (passed * votes.right_chance(sigma2, 250)).sum() / passed.sum()
        coverage = passed.mean() ** 2 / (passed**2).mean()
        worth = effective_labels(np.array(asked * passed.mean()), right, coverage, 10)
        assert worth <= 1.03 * offer.effective_labels, (threshold, sigma1, sigma2)


def test_the_objective_ranks_students_as_they_were_measured() -> None:
    """Fashion-MNIST, a student on shallow public features: labels, share right, coverage, accuracy."""
    measured = [
        (300, 0.88, 0.9, 78.2),
        (500, 0.92, 0.9, 80.7),
        (800, 0.91, 0.9, 81.3),
        (1500, 0.82, 1.0, 81.8),
    ]
    worth = [
        float(effective_labels(np.array(float(labels)), np.array(right), coverage, 10))
        for labels, right, coverage, _ in measured
    ]
    assert worth == sorted(worth)
    # And right labels beat many that are no better than a guess.
    assert effective_labels(np.array(1e6), np.array(0.1), 1.0, 10) == 0.0


def test_labels_come_out_as_predicted(mnist: np.ndarray) -> None:
    made = plan(**TERMS, votes=past_votes(mnist))
    right = mnist.argmax(axis=1)
    for offer in (made.with_threshold, made.without_threshold):
        assert offer
        release = mechanism(offer).release(mnist, SeededNoise(11))
        share = release.answered.mean()
        assert share == pytest.approx(offer.answered_share, abs=0.02)
        correct = np.mean(release.label[release.answered] == right[release.answered])
        assert correct == pytest.approx(offer.right_share, abs=0.02)

"""The search: what is offered fits the budget, and nothing else serves better."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.privacy import (
    RECORD,
    ConfidentGNMax,
    GNMax,
    LedgerTerms,
    LNMax,
    Plan,
    Protection,
    SeededNoise,
    plan,
)
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.privacy.planning.search import (
    Offer,
    OfferSearch,
    OpenStudy,
    about_rho,
    effective_labels,
    gaussian_room,
    queries_for,
    round_up,
    spend,
)
from pate_fed.privacy.planning.vote_model import Pool, assumed_votes, past_votes

PROTECTIONS = (Protection(), Protection(votes_moved=2), Protection(unit="hospital", votes_moved=3))


@pytest.fixture(scope="module")
def mnist(shared: Path) -> np.ndarray:
    return np.load(shared / "data" / "pate_votes" / "mnist_250_teachers.npy").astype(int)


def _check(offer: Offer) -> tuple[float, float]:
    assert offer.threshold is not None and offer.sigma1 is not None
    return offer.threshold, offer.sigma1


def mechanism(offer: Offer, num_teachers: int = 250, num_classes: int = 10) -> ConfidentGNMax | GNMax | LNMax:
    size = {"num_teachers": num_teachers, "num_classes": num_classes}
    if offer.mechanism == "lnmax":
        return LNMax(**size, scale=offer.sigma2)
    if offer.threshold is None or offer.sigma1 is None:
        return GNMax(**size, sigma=offer.sigma2)
    return ConfidentGNMax(**size, threshold=offer.threshold, sigma1=offer.sigma1, sigma2=offer.sigma2)


def guarantee(offer: Offer, protection: Protection, delta: float, num_teachers: int = 250) -> float | None:
    """What the ledger of a study with the offer's mechanism and caps guarantees."""
    terms = LedgerTerms(
        study_digest="ab" * 32,
        delta=delta,
        epsilon=None,
        mechanisms=(mechanism(offer, num_teachers),),
        protection=protection,
        noise="n",
        private=True,
        most_asked=offer.asked,
        most_answered=offer.answered,
    )
    return guaranteed_epsilon(terms)


@pytest.mark.parametrize("protection", PROTECTIONS, ids=lambda p: f"{p.unit}-{p.votes_moved}")
@pytest.mark.parametrize(
    "epsilon", [*(pytest.param(each, marks=pytest.mark.slow) for each in (0.5, 8.0)), 2.0]
)
def test_an_offer_spends_the_budget_and_its_ledger_guarantees_that(
    protection: Protection, epsilon: float, offers: Callable[..., list[Offer]]
) -> None:
    made = offers(30, 10, epsilon, protection=protection)
    assert made or (protection.votes_moved > 1 and epsilon <= 2)
    for offer in made:
        # Bit and winner on the same votes may cost less than the two apart, by which is searched.
        assert guarantee(offer, protection, 1e-5, 30) <= offer.epsilon <= epsilon
        assert 1 <= offer.answered <= offer.asked <= 10_000
        assert offer.asked == 10_000 or offer.epsilon > 0.99 * epsilon
        assert 0.1 < offer.right_share < 1 and 0 < offer.coverage <= 1 + 1e-12


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    teachers=st.integers(1, 60),
    classes=st.sampled_from([2, 3, 10, 100]),
    epsilon=st.floats(0.2, 20.0),
    delta=st.sampled_from([1e-8, 1e-5, 1e-3]),
    unit=st.sampled_from(["record", "hospital"]),
    adjacency=st.sampled_from(["replace-one", "add-or-remove-one"]),
    moved=st.integers(1, 3),
    aggregator=st.sampled_from([None, "gnmax", "lnmax"]),
)
def test_no_plan_passes_its_budget(
    teachers: int,
    classes: int,
    epsilon: float,
    delta: float,
    unit: str,
    adjacency: str,
    moved: int,
    aggregator: str | None,
) -> None:
    protection = Protection(unit=unit, adjacency=adjacency, votes_moved=min(moved, teachers))
    made = plan(
        num_teachers=teachers,
        num_classes=classes,
        epsilon=epsilon,
        delta=delta,
        pool=Pool(votes=0.9, max_queries=3000),
        protection=protection,
        aggregator=aggregator,
    )
    for offer in made.offers:
        assert guarantee(offer, protection, delta, teachers) == offer.epsilon <= epsilon
        if offer.answered >= 3 and offer.asked < 3000:
            assert offer.epsilon > 0.98 * epsilon
    shares = made.hospital_noise
    if shares is not None:
        assert shares.offer.epsilon <= shares.epsilon_coordinator_most <= epsilon


@pytest.mark.parametrize(
    ("teachers", "epsilon", "delta", "unit", "adjacency", "moved"),
    [
        (1, 5.0, 1e-5, "record", "replace-one", 1),
        (7, 20.0, 1e-3, "record", "add-or-remove-one", 2),
        (20, 1.0, 1e-8, "hospital", "add-or-remove-one", 1),
        (16, 6.0, 1e-5, "hospital", "replace-one", 2),
    ],
)
def test_few_plans_of_every_kind_keep_their_budget(
    teachers: int, epsilon: float, delta: float, unit: str, adjacency: str, moved: int
) -> None:
    protection = Protection(unit=unit, adjacency=adjacency, votes_moved=min(moved, teachers))
    search = OfferSearch(assumed_votes(0.9, 3, teachers), teachers, 2000, protection, delta)
    for aggregator in ("confident-gnmax", "gnmax", "lnmax"):
        offer = search.offer(aggregator, epsilon)
        if offer is not None:
            assert guarantee(offer, protection, delta, teachers) == offer.epsilon <= epsilon


def test_labels_are_reached_with_less_consensus_than_assumed(usual: Plan) -> None:
    offer, votes = usual.offers[0], assumed_votes(0.85, 10, 250)
    assert offer.threshold is not None
    share = votes.answered(*_check(offer), 250, consensus=0.9).mean()
    assert offer.asked * share >= offer.answered
    # And nearly always with those assumed, whatever the chance of every single query.
    asked = queries_for(20, share=0.5, low_share=0.5)
    assert np.mean(np.random.default_rng(0).binomial(asked, 0.5, size=10_000) >= 20) > 0.97
    assert queries_for(20, share=1.0, low_share=1.0) == 20


@pytest.fixture(scope="module")
def both(offers: Callable[..., list[Offer]]) -> list[Offer]:
    return offers(250, 10, 2.0)


def test_the_best_offer_is_the_one_worth_most(usual: Plan, both: list[Offer]) -> None:
    checked, plain = both
    assert usual.offers == (usual.best,) and usual.best == checked  # the other is not priced
    assert checked.effective_labels > plain.effective_labels and plain.coverage == pytest.approx(1.0)
    for offer in both:
        above = offer.right_share - (1 - offer.right_share) / 9
        assert offer.effective_labels == pytest.approx(offer.answered * above**4 * offer.coverage)
    passed = assumed_votes(0.85, 10, 250).answered(*_check(checked), 250)
    assert checked.coverage == pytest.approx(passed.mean() ** 2 / (passed**2).mean())


def test_a_larger_budget_is_worth_more(usual: Plan) -> None:
    worth = [point.effective_labels for point in usual.curve]
    assert worth == sorted(worth) and worth[0] < worth[-1]
    same = next(point for point in usual.curve if point.epsilon == 2.0)
    assert usual.best and same.labels == usual.best.answered


def test_no_other_noise_serves_better_within_the_budget(both: list[Offer]) -> None:
    offer, votes = both[1], assumed_votes(0.85, 10, 250)
    room = gaussian_room(2.0, 1e-5)
    for sigma in np.geomspace(20, 130, 8):
        count = room / about_rho(
            GNMax(num_teachers=250, num_classes=10, sigma=float(sigma)).cost(1, 1, RECORD)
        )
        right = np.array(votes.right_chance(float(sigma), 250).mean())
        assert effective_labels(np.array(float(count)), right, 1.0, 10) <= 1.02 * offer.effective_labels


def test_no_other_check_serves_better_within_the_budget(usual: Plan) -> None:
    offer, votes = usual.offers[0], assumed_votes(0.85, 10, 250)
    rho, rng = gaussian_room(2.0, 1e-5), np.random.default_rng(4)
    for _ in range(300):
        threshold, sigma1, sigma2 = rng.uniform(50, 320), rng.uniform(25, 500), rng.uniform(20, 200)
        passed = votes.answered(threshold, sigma1, 250)
        low = votes.answered(threshold, sigma1, 250, consensus=0.9).mean()
        asked = min(9_000, rho / (0.637 * (1 / (2 * sigma1**2) + low / sigma2**2)))
        right = (passed * votes.right_chance(sigma2, 250)).sum() / passed.sum()
        coverage = passed.mean() ** 2 / (passed**2).mean()
        worth = effective_labels(np.array(asked * low), right, coverage, 10)
        assert worth <= 1.05 * offer.effective_labels, (threshold, sigma1, sigma2)


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
    search = OfferSearch(past_votes(mnist), 250, 10_000, RECORD, 1e-5)
    right = mnist.argmax(axis=1)
    for name in ("confident-gnmax", "gnmax"):
        offer = search.offer(name, 2.0)
        assert offer is not None
        release = mechanism(offer).release(mnist, SeededNoise(11))
        share = release.answered.mean()
        assert share == pytest.approx(offer.answered_share, abs=0.02)
        correct = np.mean(release.label[release.answered] == right[release.answered])
        assert correct == pytest.approx(offer.right_share, abs=0.02)


def _study(error: float, *, most: int = 10_000, least: float = 0.0) -> OpenStudy:
    """A study whose ε is that of a Gaussian, about, and whose estimate errs by a factor."""
    return OpenStudy(
        price=lambda sigma, labels: math.sqrt(labels) / sigma * (1 + 0.1 / sigma),
        about=lambda sigma, labels: error * labels / sigma**2,
        room=lambda epsilon: epsilon**2,
        most_labels=most,
        least_sigma=least,
    )


@given(st.integers(1, 20_000), st.floats(0.05, 20.0), st.floats(0.5, 2.0))
def test_the_budget_is_spent_and_never_passed(labels: int, epsilon: float, error: float) -> None:
    found = spend(_study(error), epsilon=epsilon, labels=labels)
    assert found is not None and 1 <= found.labels <= 10_000
    assert found.epsilon <= epsilon
    assert found.epsilon == _study(error).price(found.sigma, found.labels)
    if found.labels >= 200 or found.sigma < 100:
        assert found.epsilon > 0.98 * epsilon


def test_no_less_noise_is_taken_than_allowed_and_no_more_labels_than_there_are() -> None:
    found = spend(_study(1.0, most=50, least=7.0), epsilon=100.0, labels=500)
    assert found is not None and (found.sigma, found.labels) == (7.0, 50) and found.epsilon < 100.0


def test_where_nothing_fits_there_is_nothing() -> None:
    study = OpenStudy(
        price=lambda sigma, labels: 5.0, about=lambda sigma, labels: 1.0, room=lambda e: e, most_labels=9
    )
    assert spend(study, epsilon=2.0, labels=3) is None


@pytest.mark.parametrize(
    ("sigma", "shown"), [(1.23411, 1.235), (79.0, 79.0), (0.0123456, 0.01235), (99.999, 100.0)]
)
def test_noise_is_rounded_up(sigma: float, shown: float) -> None:
    assert round_up(sigma) == shown
    assert round_up(161.0, digits=2) == 170.0 and round_up(math.inf) == math.inf

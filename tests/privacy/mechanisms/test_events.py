"""What a release costs: sensitivities by brute force, divergences by exact sums, counts and words."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.privacy import (
    Accountant,
    ConfidentGNMax,
    CoordinatorView,
    GNMax,
    LNMax,
    PrivacyEvent,
    Protection,
    epsilon_of,
)
from pate_fed.privacy.bounds.cost import Cost
from pate_fed.privacy.mechanisms.events import PLAIN, SECURE_SUM, cost_of_dp_event, hospital_noise

REST: dict[str, Any] = {"num_teachers": 12, "num_classes": 3}


CONFIDENT = ConfidentGNMax(**REST, threshold=8, sigma1=5.0, sigma2=3.0)


def event(mechanism: Any = CONFIDENT, asked: int = 10, answered: int = 4, **changes: Any) -> PrivacyEvent:
    given: dict[str, Any] = {"protection": Protection(), "noise": "test", "private": False, **changes}
    return PrivacyEvent(mechanism=mechanism, asked=asked, answered=answered, **given)


@pytest.mark.parametrize("order", [1.5, 2.0, 10.0, 40.0])
@pytest.mark.parametrize("sigma", [0.7, 1.0, 3.0])
@pytest.mark.parametrize("moved", [1, 2])
def test_noisy_totals_diverge_by_no_more_than_they_cost(order: float, sigma: float, moved: int) -> None:
    law = _gaussian(sigma)
    # One class loses the votes, another gains them.
    exact = 2 * _divergence(law, moved, order)
    cost = GNMax(**REST, sigma=sigma).cost_asked(Protection(votes_moved=moved)).as_totals
    assert exact <= float(cost.rdp(Fraction(order))) * (1 + 1e-9)
    # The bound is met up to what a discrete Gaussian falls short of a continuous one.
    assert exact >= float(cost.rdp(Fraction(order))) * 0.8


@pytest.mark.parametrize("order", [1.5, 2.0, 10.0])
def test_threshold_check_diverges_by_no_more_than_it_costs(order: float) -> None:
    law = _gaussian(CONFIDENT.sigma1)
    exact = _divergence(law, 1, order)
    bound = CONFIDENT.cost_asked(Protection()).as_totals.rdp(Fraction(order))
    assert 0.9 * bound <= exact <= bound * (1 + 1e-9)


@pytest.mark.parametrize("order", [1.5, 2.0, 10.0, 200.0])
@pytest.mark.parametrize("scale", [0.5, 2.0, 20.0])
def test_laplace_totals_diverge_by_no_more_than_they_cost(order: float, scale: float) -> None:
    exact = 2 * _divergence(_normal(-np.abs(np.arange(-900.0, 901.0)) / scale), 1, order)
    bound = LNMax(**REST, scale=scale).cost_asked(Protection()).as_totals.rdp(Fraction(order))
    assert 0.2 * bound <= exact <= bound * (1 + 1e-9)


def _gaussian(sigma: float) -> NDArray[np.float64]:
    """ln Pr[x] of the discrete Gaussian, x = -400..400."""
    return _normal(-0.5 * (np.arange(-400.0, 401.0) / sigma) ** 2)


def _normal(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(logs - np.log(np.exp(logs).sum()))


def _divergence(law: NDArray[np.float64], shift: int, order: float) -> float:
    """Rényi divergence of a law, given as logarithms, from itself moved by `shift`."""
    logs = order * law[shift:] + (1 - order) * law[:-shift]
    peak = logs.max()
    return float((peak + np.log(np.exp(logs - peak).sum())) / (order - 1))


def test_rho_of_the_papers_formula() -> None:
    # PATE++ Proposition 2: asked / (2 σ1²) + answered / σ2².
    assert event(asked=640, answered=283).cost().as_totals.rho == Fraction(640, 50) + Fraction(283, 9)
    moved = event(asked=640, answered=283, protection=Protection(votes_moved=5)).cost().as_totals
    assert moved.rho == 25 * (Fraction(640, 50) + Fraction(283, 9))


def test_laplace_is_pure() -> None:
    cost = event(LNMax(**REST, scale=20), asked=7, answered=7).cost().as_totals
    assert cost == Cost(pure=((Fraction(1, 10), 7),))
    assert cost.rdp(Fraction(2)) == 7 * Fraction(1, 100)
    assert cost.rdp(Fraction(1000)) == 7 * Fraction(1, 10)


def test_coordinator_without_noise_has_no_bound() -> None:
    for sight in (PLAIN, SECURE_SUM):
        assert event(coordinator=sight).coordinator_cost() is None
    assert PLAIN.text() == "every hospital's votes"
    assert "exact totals" in SECURE_SUM.text()


def test_coordinator_with_hospital_noise_pays_for_every_asked_query() -> None:
    sight = hospital_noise(sigma_party=8.0, survivors=27, colluders=2)
    cost = event(coordinator=sight, asked=100, answered=3).coordinator_cost()
    assert cost is not None
    # s² = 64 · 25 = 40²: a/s² a query, answered or not; the slack for sums is far below it.
    assert float(cost.as_totals.rho) == pytest.approx(100 / 1600, rel=1e-12)
    assert cost.as_totals.rho > Fraction(100, 1600)
    more = event(coordinator=replace(sight, colluders=26), asked=100, answered=3).coordinator_cost()
    assert more is not None and float(more.as_totals.rho) == pytest.approx(100 / 64, rel=1e-12)


@pytest.mark.parametrize("parties", [1, 2, 5, 40])
@pytest.mark.parametrize("order", [2.0, 8.0])
def test_sums_of_hospital_noise_diverge_by_no_more_than_they_cost(parties: int, order: float) -> None:
    sigma = math.sqrt(2)
    law = one = np.exp(_gaussian(sigma)[360:441])
    for _ in range(parties - 1):
        law = np.convolve(law, one)
    exact = 2 * _divergence(np.log(law[law > 1e-280]), 1, order)
    sight = hospital_noise(sigma_party=sigma * (1 + 1e-15), survivors=parties)
    cost = sight.cost(1, Protection(), num_classes=3)
    assert cost is not None and exact <= float(cost.rdp(Fraction(order))) * (1 + 1e-6)


def test_slack_of_sums_is_the_notes() -> None:
    # notes: n=5000, s_i²=2: 3e-8 a class.
    sight = hospital_noise(sigma_party=math.sqrt(2.0000001), survivors=5000)
    cost = sight.cost(1, Protection(), num_classes=4)
    assert cost is not None and sight.variance is not None
    slack = float(cost.as_totals.rho - 1 / sight.variance)
    direct = 10 * math.fsum(math.exp(-4 * math.pi**2 * k / (k + 1)) for k in range(1, 5000))
    assert direct == pytest.approx(2.7e-8, rel=0.1)
    assert direct <= slack <= direct * 1.01


@pytest.mark.parametrize(
    ("asked", "parties", "share", "most"),
    [(30, 4, 6.0, 2.69), (1250, 100, 10.0, 2.00), (300, 100, 10.0, 0.92)],
)
def test_the_coordinators_epsilon_is_that_of_the_noise_that_runs(
    asked: int, parties: int, share: float, most: float
) -> None:
    """Theorem 4 against the exact law: of so many totals the loss follows from the sum of all their noise."""
    cost = hospital_noise(sigma_party=share, survivors=parties).cost(asked, Protection(), num_classes=10)
    assert cost is not None
    stated, variance = epsilon_of(cost, 1e-5), parties * share**2
    wide = math.ceil(9 * math.sqrt(2 * asked * variance))
    at = np.arange(-wide, wide + 1)
    # The sum of two discrete Gaussians a query is one of their whole variance, within 1e-15 (Lemma 6).
    law = np.exp(-(at**2) / (4.0 * asked * variance))
    loss = (asked - at) / variance  # ln of P(z)/P(z - 1) is (1 - 2z)/(2σ²) for each of two totals a query
    delta = float((law / law.sum() * np.maximum(0.0, -np.expm1(stated - loss))).sum())
    assert 0.7e-5 < delta <= 1e-5 and stated <= most


@pytest.mark.parametrize(("share", "parties"), [(1.5, 2), (2.0, 2)])
@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_two_queries_of_shares_keep_the_coordinators_epsilon(
    share: float, parties: int, delta: float
) -> None:
    """Every outcome of two queries, of which each moves a vote between two of its totals."""
    at = np.arange(-math.ceil(7 * share), math.ceil(7 * share) + 1)
    one = np.exp(-(at**2) / (2 * share**2))
    law = one / one.sum()
    for _ in range(parties - 1):
        law = np.convolve(law, one / one.sum())
    cost = hospital_noise(sigma_party=share, survivors=parties).cost(2, Protection(), num_classes=2)
    assert cost is not None
    stated = epsilon_of(cost, delta)
    there = np.concatenate(([0.0], law[:-1]))
    pair, moved = np.multiply.outer(law, law).ravel(), np.multiply.outer(there, there).ravel()
    exact = sum(
        float(np.maximum(0.0, p * pair - math.exp(stated) * q * moved).sum())
        for p, q in zip(pair, moved, strict=True)
    )
    assert exact <= delta


def test_too_little_noise_for_gaussian_dp_is_charged_by_rdp() -> None:
    least = hospital_noise(sigma_party=math.sqrt(2) * (1 + 1e-15), survivors=1)
    cost = least.cost(3, Protection(), num_classes=2)
    assert cost is not None
    assert epsilon_of(cost, 1e-5) == epsilon_of(cost.as_totals, 1e-5) < math.inf


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "blind"},
        {"kind": "plain", "survivors": 3},
        {"kind": "secure-sum", "colluders": 1},
        {"kind": "hospital-noise"},
        {"kind": "hospital-noise", "sigma_party": 1.0, "survivors": 5},
        {"kind": "hospital-noise", "sigma_party": math.inf, "survivors": 5},
        {"kind": "hospital-noise", "sigma_party": math.nan, "survivors": 5},
        {"kind": "hospital-noise", "sigma_party": 4.0},
        {"kind": "hospital-noise", "sigma_party": 4.0, "survivors": 0},
        {"kind": "hospital-noise", "sigma_party": 4.0, "survivors": 5, "colluders": 5},
        {"kind": "hospital-noise", "sigma_party": 4.0, "survivors": 5, "colluders": -1},
    ],
)
def test_bad_sight_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        CoordinatorView(**values)


def test_bad_counts_are_refused() -> None:
    for change in ({"asked": -1}, {"answered": -1}, {"answered": 11}, {"asked": 1.5}):
        with pytest.raises(InputError):
            event(**change)  # type: ignore[arg-type]


def test_values_are_frozen() -> None:
    for value, name in ((event(), "asked"), (Protection(), "unit"), (PLAIN, "kind"), (CONFIDENT, "sigma2")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, 1)


STUDY = ConfidentGNMax(classes=10, threshold=200, sigma1=150, sigma2=40)


def test_dp_accounting_agrees_on_the_noisy_totals_in_both_directions() -> None:
    accountant = Accountant()
    accountant.spend(STUDY, queries=640, labels=283)
    accountant.spend(LNMax(classes=10, scale=20), queries=50)
    lowered = accountant.to_dp_event()
    theirs = RdpAccountant(orders=list(np.arange(1.5, 60, 0.25))).compose(lowered).get_epsilon(1e-5)
    ours = epsilon_of(accountant.cost.as_totals, 1e-5)
    assert ours == pytest.approx(theirs, rel=0.03)
    back = cost_of_dp_event(lowered)
    assert float(back.rho) == pytest.approx(float(accountant.cost.as_totals.rho), rel=1e-12)
    assert back.rho >= accountant.cost.as_totals.rho  # rounded against the user
    again = Accountant()
    again.spend(lowered)
    assert again.epsilon() == pytest.approx(ours, rel=1e-9) and again.epsilon() > accountant.epsilon()
    assert "1 DpEvent" in repr(again)
    assert again.to_dp_event() == dp_accounting.ComposedDpEvent([lowered])


def test_dp_events_of_every_known_kind_have_their_cost() -> None:
    events: list[Any] = [
        dp_accounting.NoOpDpEvent(),
        dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(4.0), 16),
        dp_accounting.LaplaceDpEvent(10.0),
        dp_accounting.dp_event.ZCDpEvent(0.5, 0.1),
    ]
    cost = cost_of_dp_event(dp_accounting.ComposedDpEvent(events))
    assert (float(cost.rho), float(cost.flat), cost.pure[0][1]) == (1.0, 0.1, 1)
    assert float(cost.pure[0][0]) == pytest.approx(0.1)

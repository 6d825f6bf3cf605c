"""Data-independent figures: exact Gaussian DP, RDP and PATE++, against each other and dp-accounting."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published import noise_cluster_epsilon, pate_plus_plus_epsilon, randomized_response_epsilon

from pate_fed.errors import InputError
from pate_fed.privacy import ConfidentGNMax, Protection
from pate_fed.privacy.bounds.conversion import (
    confident_mu,
    confident_rho,
    gaussian_delta,
    gaussian_dp_epsilon,
    to_epsilon,
)
from pate_fed.privacy.checks import DEFAULT_ORDERS

MNIST = {"sigma1": 150.0, "sigma2": 40.0}


@given(mu=st.floats(0.01, 8.0), delta=st.floats(1e-12, 0.3))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_exact_epsilon_gives_back_delta(mu: float, delta: float) -> None:
    epsilon = gaussian_dp_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    if epsilon > 1e-6:
        assert gaussian_delta(mu, epsilon * (1 - 1e-6)) > delta


@given(
    mu=st.floats(-8, 1.5).map(lambda power: 10**power),
    ratio=st.one_of(st.just(0.0), st.floats(-3, 1).map(lambda power: 10**power)),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_delta_is_never_below_the_one_of_eighty_digits(mu: float, ratio: float) -> None:
    epsilon = mu * ratio
    with mpmath.workdps(80):
        tails = [mpmath.ncdf(sign * mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu) for sign in (1, -1)]
        exact = tails[0] - mpmath.exp(epsilon) * tails[1]
    found = gaussian_delta(mu, epsilon)
    assert exact <= found <= exact * (1 + 1e-6) + 3e-13 * tails[0]  # ulps of logarithms down to -62


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_exact_epsilon_is_what_dp_accounting_computes(sigma: float, delta: float) -> None:
    dp = pytest.importorskip("dp_accounting")
    assert gaussian_dp_epsilon(1 / sigma, delta) == pytest.approx(
        dp.get_epsilon_gaussian(sigma, delta), rel=1e-6, abs=1e-9
    )


def test_rdp_is_what_dp_accounting_computes() -> None:
    dp = pytest.importorskip("dp_accounting")
    accountant = dp.rdp.RdpAccountant(DEFAULT_ORDERS, dp.NeighboringRelation.REPLACE_SPECIAL)
    # The largest total moves by one, the totals by √2.
    accountant.compose(dp.GaussianDpEvent(150.0), 640)
    accountant.compose(dp.GaussianDpEvent(40.0 / math.sqrt(2)), 283)
    ours = to_epsilon(DEFAULT_ORDERS, DEFAULT_ORDERS * confident_rho(640, 283, **MNIST), 1e-5)
    assert ours.epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)


def _by_library(mechanism: str, interval: float) -> float:
    """ε of the same run by composed privacy loss distributions: a moved vote changes two totals by one."""
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    check, argmax = (
        getattr(library, mechanism)(sigma, sensitivity=1, value_discretization_interval=interval)
        for sigma in (MNIST["sigma1"], MNIST["sigma2"])
    )
    both = check.self_compose(640).compose(argmax.self_compose(2 * 283))
    return float(both.get_epsilon_for_delta(1e-5))


def test_the_bounds_come_in_the_right_order() -> None:
    exact = gaussian_dp_epsilon(confident_mu(640, 283, **MNIST), 1e-5)
    continuous = _by_library("from_gaussian_mechanism", 1e-5)
    integer = _by_library("from_discrete_gaussian_mechanism", 5e-5)
    renyi = to_epsilon(DEFAULT_ORDERS, DEFAULT_ORDERS * confident_rho(640, 283, **MNIST), 1e-5)
    assert exact <= continuous <= exact * (1 + 1e-4)
    assert exact <= integer < renyi.epsilon
    assert exact == pytest.approx(2.529, abs=5e-4) and renyi.epsilon == pytest.approx(2.743, abs=5e-4)


def test_the_rho_of_a_run_is_the_ledgers() -> None:
    mechanism = ConfidentGNMax(num_teachers=250, num_classes=10, threshold=200, **MNIST)
    for protection in (
        Protection(),
        Protection(votes_moved=3),
        Protection(unit="hospital", adjacency="add-or-remove-one", votes_moved=5),
    ):
        ledger = mechanism.cost_asked(protection) * 7 + mechanism.cost_answered(protection) * 4
        assert confident_rho(7, 4, protection=protection, **MNIST) == pytest.approx(
            float(ledger.as_totals.rho)
        )
    assert confident_rho(7, 7, sigma1=None, sigma2=40.0) == 7 / 1600


def test_votes_that_move_together_cost_their_square() -> None:
    one, three = (confident_rho(10, 5, protection=Protection(votes_moved=k), **MNIST) for k in (1, 3))
    assert three == pytest.approx(9 * one)


def test_nothing_asked_costs_nothing() -> None:
    assert gaussian_dp_epsilon(confident_mu(0, 0, **MNIST), 1e-5) == 0.0
    assert gaussian_dp_epsilon(1e-7, 0.3) == 0.0


def test_pate_plus_plus_is_best_at_its_best_order() -> None:
    best, order = pate_plus_plus_epsilon(640, 283, delta=1e-5, **MNIST)
    rho = confident_rho(640, 283, **MNIST)
    assert best == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)))
    for other in (0.8 * order, 1.2 * order):
        assert pate_plus_plus_epsilon(640, 283, delta=1e-5, order=other, **MNIST)[0] > best


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"asked": -1}, "asked=-1"),
        ({"asked": 2.5}, "asked=2.5"),
        ({"answered": 11}, "answered=11"),
        ({"sigma1": 0.0}, "sigma1=0"),
        ({"sigma2": math.nan}, "sigma2=nan"),
        ({"sigma2": math.inf}, "sigma2=inf"),
    ],
)
def test_bad_runs_are_refused(change: dict[str, float], what: str) -> None:
    arguments = {"asked": 10, "answered": 5, **MNIST, **change}
    with pytest.raises(InputError, match=what):
        confident_rho(**arguments)  # type: ignore[arg-type]


def test_bad_conversions_are_refused() -> None:
    for mu, delta in ((-1.0, 1e-5), (math.nan, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0)):
        with pytest.raises(InputError):
            gaussian_dp_epsilon(mu, delta)
    with pytest.raises(InputError, match="epsilon"):
        gaussian_delta(1.0, -1.0)
    with pytest.raises(InputError, match="nothing was spent"):
        pate_plus_plus_epsilon(0, 0, delta=1e-5, **MNIST)


def test_label_dp_refuses_bad_input() -> None:
    for classes, probability in ((1, 0.9), (10, 0.05), (10, 1.0), (10, math.nan)):
        with pytest.raises(InputError):
            randomized_response_epsilon(classes, probability)
    with pytest.raises(InputError):
        noise_cluster_epsilon(0.0, 1e-5)

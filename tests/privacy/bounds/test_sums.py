"""The exact Gaussian δ of noisy integer sums, against the discrete laws themselves."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.cost import Cost, epsilon_of
from pate_fed.privacy.bounds.gaussian import gaussian_dp_epsilon
from pate_fed.privacy.bounds.profiles import pld_epsilon
from pate_fed.privacy.bounds.sums import sums_cost
from pate_fed.privacy.mechanisms.events import sum_distance

Floats = NDArray[np.float64]


def _masses(sigma: float, most: int) -> Floats:
    x = np.arange(-most, most + 1)
    mass: Floats = np.exp(-(x**2) / (2 * sigma**2))
    return mass / mass.sum()


def _exact_delta(law: Floats, moved: tuple[int, ...], epsilon: float) -> float:
    """Σ max(0, P - e^ε Q) of independent entries with this law, each moved by so many steps."""
    joint, shifted = np.ones(1), np.ones(1)
    for steps in moved:
        there = np.zeros_like(law)
        there[steps:] = law[: len(law) - steps]
        joint, shifted = np.multiply.outer(joint, law), np.multiply.outer(shifted, there)
    return float(np.maximum(0, joint - math.exp(epsilon) * shifted).sum())


@pytest.mark.parametrize(
    ("sigma", "moved"), [(2.0, (1,)), (2.0, (3,)), (5.0, (4,)), (20.0, (20,)), (4.0, (3, 4)), (9.0, (1, 7))]
)
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_the_bound_holds_for_the_noise_that_runs_and_is_tight(
    sigma: float, moved: tuple[int, ...], delta: float
) -> None:
    squared = sum(step**2 for step in moved)
    stated = epsilon_of(Cost(outcomes=((sums_cost(squared=squared, sigma=sigma, entries=9), 1),)), delta)
    law = _masses(sigma, math.ceil(14 * sigma))
    assert _exact_delta(law, moved, stated) <= delta
    # With σ² - 2 in place of σ² no more is lost than this, and rounding is nothing beside it.
    continuous = gaussian_dp_epsilon(math.sqrt(squared) / sigma, delta)
    assert continuous <= stated <= continuous * (1 - 2 / sigma**2) ** -1 * 1.001


@pytest.mark.parametrize(("share", "parties"), [(1.5, 2), (1.5, 4), (3.0, 3)])
def test_the_bound_holds_for_sums_of_hospitals_shares(share: float, parties: int) -> None:
    law = one = _masses(share, math.ceil(14 * share))
    for _ in range(parties - 1):
        law = np.convolve(law, one)
    for moved, delta in (((2,), 1e-3), ((5,), 1e-6)):
        cost = sums_cost(
            squared=moved[0] ** 2,
            sigma=share * math.sqrt(parties) * (1 - 1e-15),
            entries=1,
            distance=sum_distance(share, parties),
        )
        stated = epsilon_of(Cost(outcomes=((cost, 1),)), delta)
        assert _exact_delta(law, moved, stated) <= delta
        assert stated <= 1.6 * gaussian_dp_epsilon(moved[0] / (share * math.sqrt(parties)), delta)


def test_the_rounded_continuous_noise_is_as_near_as_the_proof_says() -> None:
    """Theorem 2's chain: N(0, σ² - 2), rounded at random with variance 2, is the discrete Gaussian."""
    sigma = 2.5
    grid = np.linspace(-30, 30, 60_001)
    density = np.exp(-(grid**2) / (2 * (sigma**2 - 2)))
    density /= density.sum()
    whole = np.arange(-12, 13)
    kernel = np.exp(-((whole[:, None] - grid) ** 2) / 4)
    every = np.exp(-((np.arange(-60, 61)[:, None] - grid) ** 2) / 4).sum(axis=0)
    rounded = (kernel / every * density).sum(axis=1)
    assert (
        np.abs(
            np.log(rounded / _masses(sigma, 12)) - np.log(_masses(sigma, 60)[48:73] / _masses(sigma, 12))
        ).max()
        < 1e-10
    )


def test_beside_another_release_it_is_charged_by_rdp() -> None:
    one = Cost(outcomes=((sums_cost(squared=200, sigma=50.0, entries=10), 1),))
    twice = epsilon_of(one + one, 1e-5)
    assert twice == pytest.approx(epsilon_of(Cost(rho=Fraction(200, 2500)), 1e-5), rel=1e-6)
    assert epsilon_of(one, 1e-5) < epsilon_of(Cost(rho=Fraction(100, 2500)), 1e-5)
    joined = epsilon_of(one + Cost(rho=Fraction(1, 10**6)), 1e-5)
    assert joined > epsilon_of(one, 1e-5)


def test_more_entries_cost_next_to_nothing_and_more_noise_costs_less() -> None:
    def stated(sigma: float, entries: int) -> float:
        return epsilon_of(Cost(outcomes=((sums_cost(squared=2, sigma=sigma, entries=entries), 1),)), 1e-5)

    assert stated(5.0, 1) <= stated(5.0, 10**8) < stated(5.0, 1) * (1 + 1e-6)
    assert stated(6.0, 1) < stated(5.0, 1)


def test_noise_too_small_for_the_theorem_is_refused() -> None:
    with pytest.raises(InputError, match=r"sigma=1\.9"):
        sums_cost(squared=1, sigma=1.9, entries=1)
    with pytest.raises(InputError, match="squared=0"):
        sums_cost(squared=0, sigma=3, entries=1)
    with pytest.raises(InputError, match="entries=0"):
        sums_cost(squared=1, sigma=3, entries=0)


def test_a_privacy_loss_distribution_says_the_same() -> None:
    pytest.importorskip("dp_accounting")
    one = Cost(outcomes=((sums_cost(squared=50, sigma=30.0, entries=40), 1),))
    assert pld_epsilon(one, 1e-5) == pytest.approx(epsilon_of(one, 1e-5), rel=2e-3)

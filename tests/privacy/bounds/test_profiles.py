"""ε by privacy loss distributions: against closed forms, brute force, and the other accountants."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from winner_laws import winner_laws

from pate_fed.errors import InputError
from pate_fed.privacy import (
    RECORD,
    ConfidentGNMax,
    DistributedGNMax,
    GNMax,
    LNMax,
    Protection,
    capped_cost_epsilon,
    epsilon_of,
)
from pate_fed.privacy.bounds.conversion import confident_mu, gaussian_dp_epsilon
from pate_fed.privacy.bounds.cost import Cost
from pate_fed.privacy.bounds.hockey_stick import argmax_epsilon, bit_epsilon
from pate_fed.privacy.bounds.profiles import pld_epsilon, totals_pld_epsilon

SIZE = {"num_teachers": 250, "num_classes": 10}


@pytest.mark.parametrize(
    ("asked", "answered", "sigma1", "sigma2", "delta"),
    [(2000, 500, 150.0, 40.0, 1e-5), (640, 283, 150.0, 40.0, 1e-5), (50, 10, 20.0, 8.0, 1e-7)],
)
def test_it_agrees_with_gaussian_dp_where_noise_is_wide(
    asked: int, answered: int, sigma1: float, sigma2: float, delta: float
) -> None:
    study = ConfidentGNMax(**SIZE, threshold=200, sigma1=sigma1, sigma2=sigma2)
    cost = study.cost(asked, answered, RECORD)
    gaussian = gaussian_dp_epsilon(confident_mu(asked, answered, sigma1=sigma1, sigma2=sigma2), delta)
    assert gaussian <= totals_pld_epsilon(cost, delta) <= gaussian * 1.0005
    assert pld_epsilon(cost, delta) == pytest.approx(gaussian, rel=0.002)
    assert capped_cost_epsilon(cost, delta) < pld_epsilon(cost, delta) < epsilon_of(cost.as_totals, delta)


def test_a_single_outcome_is_its_own_law() -> None:
    bit = ConfidentGNMax(**SIZE, threshold=5, sigma1=3.0, sigma2=3.0).cost(1, 0, RECORD)
    assert pld_epsilon(bit, 1e-3) == pytest.approx(bit_epsilon(3.0, 1e-3), rel=2e-3)
    assert pld_epsilon(bit, 1e-3) >= bit_epsilon(3.0, 1e-3) * (1 - 2e-6)  # its bisection
    winner = GNMax(**SIZE, sigma=4.0).cost(1, 1, RECORD)
    # The noisy totals', which two classes nearly reach.
    assert argmax_epsilon(4.0, 1e-3) <= pld_epsilon(winner, 1e-3) <= 1.01 * argmax_epsilon(4.0, 1e-3)


def test_several_checks_are_their_composition_by_brute_force() -> None:
    """All losses of three checks of a hospital of two teachers, enumerated."""
    hospital = Protection(unit="hospital", votes_moved=2)
    cost = ConfidentGNMax(**SIZE, threshold=5, sigma1=2.0, sigma2=3.0).cost(3, 0, hospital)
    x = np.arange(-22, 23)
    mass = np.exp(-(x**2) / 8.0)
    mass /= mass.sum()
    loss = 2 * (2 * x + 2) / 8.0
    losses = (loss[:, None, None] + loss[None, :, None] + loss[None, None, :]).ravel()
    chances = (mass[:, None, None] * mass[None, :, None] * mass[None, None, :]).ravel()
    for delta in (1e-2, 1e-5):
        epsilon = pld_epsilon(cost, delta)
        both = epsilon, 0.995 * epsilon
        exact = [float((chances * np.maximum(-np.expm1(at - losses), 0)).sum()) for at in both]
        assert exact[0] <= delta < exact[1]


def test_adaptive_transcripts_of_labels_stay_below_it() -> None:
    """Two labels of four classes, the second's votes chosen by the first's outcome, at random."""
    rng = np.random.default_rng(3)
    sigma, epsilon = 1.5, 0.8
    n = rng.integers(0, 6, (400, 4))
    n[:, 0] += 1
    moved = n + np.array([-1, 1, 0, 0])
    p, q = winner_laws(n, sigma), winner_laws(moved, sigma)
    cost = GNMax(**SIZE, sigma=sigma).cost(2, 2, RECORD)
    worst = 0.0
    for first in range(60):
        second = rng.integers(0, 400, 4)
        here, there = p[first][:, None] * p[second], q[first][:, None] * q[second]
        for a, b in ((here, there), (there, here)):
            worst = max(worst, float(np.maximum(a - math.exp(epsilon) * b, 0).sum()))
    assert pld_epsilon(cost, worst) >= epsilon > 0.3 * pld_epsilon(cost, worst)


def test_laplace_noise_is_pure_where_delta_is_small() -> None:
    cost = LNMax(**SIZE, scale=4.0).cost(3, 3, RECORD)
    assert pld_epsilon(cost, 1e-9) == pytest.approx(3 * 2 / 4.0, rel=1e-3)
    assert pld_epsilon(cost, 0.1) < epsilon_of(cost.as_totals, 0.1)
    with pytest.raises(InputError, match="Gaussian"):
        totals_pld_epsilon(cost, 1e-5)


def test_noise_in_shares_costs_its_distance() -> None:
    shares = DistributedGNMax(**SIZE, threshold=None, sigma_party=2.0, least_honest=100)
    one_place = GNMax(**SIZE, sigma=20.0).cost(5, 5, RECORD)
    cost = shares.cost(5, 5, RECORD)
    assert pld_epsilon(one_place, 1e-5) < pld_epsilon(cost, 1e-5) < pld_epsilon(one_place, 1e-5) + 1e-3
    near = replace(cost.outcomes[0][0], distance=Fraction(1, 10))
    told = pld_epsilon(Cost(outcomes=((near, 5),)), 1e-5)
    assert told > pld_epsilon(one_place, 1e-5) + 2.0  # 4τ each


def test_what_has_no_distribution_is_refused() -> None:
    hospital = Protection(unit="hospital", votes_moved=2)
    with pytest.raises(InputError, match="several votes"):
        pld_epsilon(GNMax(**SIZE, sigma=4.0).cost(1, 1, hospital), 1e-5)
    assert totals_pld_epsilon(GNMax(**SIZE, sigma=4.0).cost(1, 1, hospital), 1e-5) > 0
    with pytest.raises(InputError, match="RDP"):
        pld_epsilon(Cost(rho=Fraction(1)), 1e-5)
    with pytest.raises(InputError, match="too long"):
        pld_epsilon(GNMax(**SIZE, sigma=1e6).cost(1, 1, RECORD), 1e-5)
    with pytest.raises(InputError, match="too large"):
        pld_epsilon(GNMax(**SIZE, sigma=1e-3).cost(1, 1, RECORD), 1e-5)
    billion = Protection(unit="hospital", votes_moved=10**9)
    with pytest.raises(InputError, match="too long"):
        pld_epsilon(ConfidentGNMax(**SIZE, threshold=5, sigma1=3, sigma2=3).cost(1, 0, billion), 1e-5)
    with pytest.raises(InputError, match="delta"):
        pld_epsilon(Cost(), 0.0)
    assert pld_epsilon(Cost(), 1e-5) == totals_pld_epsilon(Cost(), 1e-5) == 0.0


def test_without_the_library_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(InputError, match="pip install dp-accounting"):
        pld_epsilon(GNMax(**SIZE, sigma=7.0).cost(1, 1, RECORD), 1e-4)

"""The attack on what a mechanism claims: its bound is a lower bound, and what leaks more is caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import own_parts
import pytest
from scipy import stats

from pate_fed.errors import InputError
from pate_fed.privacy import Protection, SeededNoise
from pate_fed.privacy.bounds.cost import CLAIMED_ORDERS
from pate_fed.privacy.mechanisms.own import OwnMechanism, own_mechanism
from pate_fed.privacy.planning.attack import (
    Row,
    _apart,
    _binary_rdp,
    _bounds,
    _jump,
    _votes,
    attack,
    audit_own,
)
from pate_fed.structure.parts import part_identity

JOINS = Protection(unit="hospital", adjacency="add-or-remove-one", votes_moved=3)
UNITS = [Protection(), Protection(unit="hospital", votes_moved=3), JOINS]
COINS = {(0, 1): 0.3, (1, 0): 0.7}


def own(kind: str, protection: Protection, scale: float = 20.0) -> OwnMechanism:
    return own_mechanism(
        getattr(own_parts, kind),
        classes=3,
        num_teachers=25,
        identity=part_identity(f"own_parts:{kind}", "aggregator"),
        protection=protection,
        parameters={"scale": scale},
    )


def coin_rdp(order: float) -> float:
    return float(np.log(0.7**order * 0.3 ** (1 - order) + 0.3**order * 0.7 ** (1 - order)) / (order - 1))


@pytest.mark.parametrize(("share", "caught"), [(1.0, 0), (0.8, 20)])
def test_the_bound_is_a_lower_bound_for_a_law_that_is_known(share: float, caught: int) -> None:
    """Two coins, of which RDP is known: what claims it is right, and what claims four fifths is caught."""
    exact, found = [coin_rdp(order) for order in CLAIMED_ORDERS[:90]], []
    for seed in range(20):
        rng = np.random.default_rng(seed)

        def draw(row: Row, count: int, rng: Any = rng) -> Any:
            ones = rng.binomial(count, COINS[row])
            return np.array([count - ones, ones, 0])

        rdp = [share * value for value in exact]
        found.append(attack("coins", rdp, [((0, 1), (1, 0))], draw, trials=10_000))
    assert sum(not each.passed for each in found) == caught
    for each in found:
        assert 0.8 * coin_rdp(each.order) < each.measured <= coin_rdp(each.order)


def test_the_divergence_of_two_coins_is_the_sum() -> None:
    p, q = np.array([0.7, 0.2, 1.0, 0.5]), np.array([0.3, 0.6, 0.5, 0.5])
    found = _binary_rdp(p[:, None], q[:, None], 90)
    assert found[0] == pytest.approx([coin_rdp(order) for order in CLAIMED_ORDERS[:90]], rel=1e-9)
    assert (found[1] == 0).all() and found[2] == pytest.approx(np.log(2), rel=1e-9)
    assert (found[3] == 0).all()


def test_chances_of_both_are_bounded_not_estimated() -> None:
    """A quarter of the trials chooses; ε of the others is by Clopper and Pearson's bounds."""
    shares = {(0, 1): 0.2, (1, 0): 0.6}

    def draw(row: Row, count: int) -> Any:
        return np.array([count - round(shares[row] * count), round(shares[row] * count)])

    found = attack("coins", [0.5], [((0, 1), (1, 0))], draw, deltas=[0.01], trials=2_000, confidence=0.99)
    low, high = _bounds(np.array([900, 1200]), np.array([300, 600]), 1500, 0.005)
    expected = np.log((low - 0.01) / high)
    assert found.measured == pytest.approx(expected.max()) and not found.passed and found.delta == 0.01
    assert found.line().startswith(
        "coins: sampled ε >= 0.893 at δ=0.01, charged 0.5 (2000 queries of (1, 0) and"
    )
    assert _apart(np.array([0.3, 0.01]), np.array([0.6, 0.001]), 1, [0.01]).tolist() == [[0], [0]]


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (10, 10), (3, 50), (500, 1000)])
def test_clopper_pearson_is_scipy_s(hits: int, trials: int) -> None:
    found = _bounds(np.array(hits), np.array(hits), trials, 0.005)
    expected = stats.binomtest(hits, trials).proportion_ci(confidence_level=0.99, method="exact")
    assert found == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("protection", UNITS)
def test_votes_that_are_tried_are_neighbours(protection: Protection) -> None:
    pairs = _votes(own("GeometricMax", protection), lambda _, count: np.array([count, 0, 0, 0]))
    assert len(pairs) > 12
    for one, two in pairs:
        change = np.array(two) - np.array(one)
        assert min(one + two) >= 0 and max(sum(one), sum(two)) <= 25
        assert np.abs(change).sum() == protection.l1 and (protection.votes_vanish or change.sum() == 0)


def test_where_answers_change_most_is_found() -> None:
    assert _jump([0, 50, 100], lambda top: np.array([100, 0]) if top < 67 else np.array([0, 100])) == 67


@pytest.mark.parametrize("protection", UNITS)
def test_a_mechanism_of_one_s_own_without_its_noise_is_caught(protection: Protection) -> None:
    found = audit_own(own("Bare", protection), SeededNoise(3), trials=500)
    assert not found.passed and "FAULT: the mechanism leaks more than it is charged for" in found.line()
    assert found.line().startswith("own_parts:Bare: sampled RDP >= ")


@pytest.mark.parametrize("protection", UNITS)
def test_one_that_keeps_what_it_claims_is_not(protection: Protection) -> None:
    for scale in (1.0, 20.0):
        found = audit_own(own("GeometricMax", protection, scale), SeededNoise(5), trials=1000)
        assert found.passed and ": no fault found" in found.line()


@pytest.mark.parametrize("change", [{"trials": 10}, {"confidence": 1.0}, {"confidence": "high"}])
def test_bad_parameters_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        audit_own(own("Bare", UNITS[0]), SeededNoise(3), **{"trials": 1000, **change})

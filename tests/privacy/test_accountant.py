"""The accountant: totals that know no order, and an odometer that never runs back."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mnist_events import MNIST, REST, event

from pate_fed.privacy import (
    RECORD,
    GNMax,
    LNMax,
    Protection,
    capped_cost_epsilon,
    epsilon_of,
    odometer,
    total_cost,
)
from pate_fed.privacy.bounds.cost import Cost


def test_odometer_never_runs_backwards_and_ends_at_the_total() -> None:
    rng = np.random.default_rng(0)
    events = [event(MNIST, int(a) + 5, int(a)) for a in rng.integers(0, 30, size=40)]
    readings = odometer(events, 1e-5)
    assert readings == sorted(readings) and len(readings) == 40
    assert readings[-1] == pytest.approx(epsilon_of(total_cost(events), 1e-5), rel=1e-6)
    assert odometer([], 1e-5) == []
    paid = odometer(events, 1e-5, reserved=Cost(Fraction(1, 100)))
    assert all(more > less for more, less in zip(paid, readings, strict=True))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.floats(0.1, 4), st.floats(0.1, 4), st.integers(0, 50), st.integers(0, 50)),
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_total_does_not_depend_on_the_order_of_its_parts(parts: list[Any], dice: Any) -> None:
    events = []
    for sigma1, sigma2, asked, answered in parts:
        mechanism = replace(MNIST, sigma1=sigma1, sigma2=sigma2)
        events.append(event(mechanism, asked, min(asked, answered)))
        events.append(event(LNMax(**REST, scale=sigma1), asked, asked))
    total = total_cost(events)
    dice.shuffle(events)
    assert total_cost(events) == total
    assert total.rdp(Fraction(3)) == sum((e.cost().rdp(Fraction(3)) for e in events), Fraction(0))


@pytest.mark.parametrize(
    ("asked", "labels", "sigma1", "totals", "rdp", "stated"),
    [
        (1250, 500, 150.0, 3.796, 2.953, 2.76),  # the default study
        (2000, 500, 150.0, 3.901, 3.032, 2.85),  # its caps before
        (640, 283, 150.0, 2.743, 2.142, 2.05),  # MNIST and Adult of the 2018 paper
        (1500, 538, 200.0, 3.889, 3.024, 2.90),
        (2000, 850, 150.0, 5.129, 3.973, 3.90),
    ],
)
def test_what_studies_state(
    asked: int, labels: int, sigma1: float, totals: float, rdp: float, stated: float
) -> None:
    cost = replace(MNIST, sigma1=sigma1).cost(asked, labels, RECORD)
    assert totals - 1e-3 < epsilon_of(cost.as_totals, 1e-5) <= totals
    assert rdp - 1e-3 < epsilon_of(cost, 1e-5) <= rdp
    assert 0.9 * stated < capped_cost_epsilon(cost, 1e-5) <= stated


def test_caps_beside_another_release_are_bounded_by_rdp() -> None:
    cost = MNIST.cost(100, 50, RECORD) + Cost(Fraction(1, 100))
    assert capped_cost_epsilon(cost, 1e-5) == epsilon_of(cost, 1e-5)
    assert capped_cost_epsilon(Cost(), 1e-5) == 0.0


def test_an_outcome_costs_less_than_the_totals_it_came_from() -> None:
    """Every mechanism and unit, at small and large orders, and never more."""
    units = (
        RECORD,
        Protection(votes_moved=3),
        Protection(unit="hospital", adjacency="add-or-remove-one", votes_moved=2),
    )
    for protection in units:
        for mechanism in (MNIST, GNMax(**REST, sigma=6), LNMax(**REST, scale=4)):
            cost = mechanism.cost(1, 1, protection)
            for order in (Fraction(5, 4), Fraction(2), Fraction(9)):
                assert 0 < cost.rdp(order) < cost.as_totals.rdp(order)
            assert cost.rdp(Fraction(10**9)) <= cost.as_totals.rdp(Fraction(10**9))

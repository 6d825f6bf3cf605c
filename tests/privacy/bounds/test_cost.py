"""ε of a cost: never below the exact value, at any size."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from mnist_events import MNIST, event, mechanisms

from pate_fed.errors import InputError
from pate_fed.privacy import (
    BudgetFilter,
    epsilon_of,
    total_cost,
)
from pate_fed.privacy.bounds.cost import Cost, _best_order, _epsilon_at

deltas = st.floats(1e-12, 0.1)


def high_precision(cost: Cost, delta: float, order: float) -> Any:
    """The improved conversion at one order with 50 digits."""
    with mpmath.workdps(50):
        a, d = mpmath.mpf(order), mpmath.mpf(delta)
        exact = cost.rdp(Fraction(order))
        rdp = mpmath.mpf(exact.numerator) / mpmath.mpf(exact.denominator)
        return rdp + mpmath.log(1 - 1 / a) - mpmath.log(d * a) / (a - 1)


@pytest.mark.parametrize(("asked", "answered", "published"), [(640, 283, 2.743), (1000, 442, 3.526)])
def test_epsilon_of_the_published_runs(asked: int, answered: int, published: float) -> None:
    totals = event(MNIST, asked, answered).cost().as_totals
    assert epsilon_of(totals, 1e-5) == pytest.approx(published, abs=2e-3)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(mechanisms, st.integers(1, 2000)), min_size=1, max_size=4), deltas)
def test_epsilon_is_at_least_the_exact_value_and_agrees_with_dp_accounting(parts: Any, delta: float) -> None:
    cost = total_cost(event(mechanism, asked, asked) for mechanism, asked in parts).as_totals
    ours = epsilon_of(cost, delta)
    if ours > 500:  # Where nothing is protected dp-accounting's own orders end.
        return
    best = _best_order(cost, delta)
    theirs, _ = compute_epsilon([best], [float(cost.rdp(Fraction(best)))], delta)
    orders = 1 + np.geomspace(1e-3, 1e7, 2000)
    wider, _ = compute_epsilon(orders, [float(cost.rdp(Fraction(a))) for a in orders], delta)
    # At δ of some per cent dp-accounting knows a rule by which ε is 0; else both use the same conversion.
    assert theirs == 0 or ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
    assert wider == 0 or ours <= wider * (1 + 1e-6)
    assert ours >= high_precision(cost, delta, best)
    budget_order = BudgetFilter(1.0, delta).order
    at_one = epsilon_of(cost, delta, orders=[budget_order])
    assert at_one <= ours


@settings(deadline=None, derandomize=True)
@given(st.floats(1e-6, 1e3), deltas, st.floats(1.001, 1e6))
def test_epsilon_at_an_order_is_never_below_its_exact_value(rho: float, delta: float, order: float) -> None:
    cost = Cost(Fraction(rho))
    exact = high_precision(cost, delta, order)
    got = _epsilon_at(cost, delta, order)
    assert mpmath.mpf(got) >= exact
    assert got == pytest.approx(float(exact), rel=1e-9, abs=1e-9)


def test_no_cost_is_no_epsilon() -> None:
    assert epsilon_of(Cost(), 1e-5) == 0.0
    assert epsilon_of(total_cost([]), 1e-300) == 0.0


def test_a_cost_of_any_size_has_an_epsilon() -> None:
    tiny, huge = Cost(Fraction(1, 10**400)), Cost(Fraction(10) ** 290)
    assert 0 <= epsilon_of(tiny, 1e-5) < 1e-3
    assert epsilon_of(huge, 1e-5) > 1e289
    assert epsilon_of(Cost(Fraction(10) ** 400), 1e-5) == math.inf


@settings(max_examples=15, deadline=None, derandomize=True)
@given(mechanisms, st.integers(1, 500), st.integers(1, 500), deltas)
def test_more_queries_never_cost_less(mechanism: Any, first: int, more: int, delta: float) -> None:
    less = epsilon_of(event(mechanism, first, first).cost(), delta)
    # Two searches may end on neighbouring orders.
    assert epsilon_of(event(mechanism, first + more, first + more).cost(), delta) >= less * (1 - 1e-4)


def test_a_flat_part_is_known_up_to_its_order() -> None:
    both = Cost(Fraction(1, 10)) + Cost(flat=Fraction(1, 2), most_order=Fraction(20))
    both += Cost(flat=Fraction(1, 4), most_order=Fraction(8))
    assert (both.flat, both.most_order) == (Fraction(3, 4), Fraction(8))
    assert both.rdp(Fraction(8)) == Fraction(8, 10) + Fraction(3, 4)
    assert (both * 2).rdp(Fraction(8)) == 2 * both.rdp(Fraction(8))
    assert both * 0 == Cost()
    with pytest.raises(InputError, match="known up to 8"):
        both.rdp(Fraction(17, 2))

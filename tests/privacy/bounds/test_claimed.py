"""A claimed curve between its orders, in totals, and what it is refused for."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from pate_fed.config.claim import CLAIMED_ORDERS, LEAST_ORDERS
from pate_fed.errors import InputError
from pate_fed.privacy.bounds.claimed import ClaimedCurve
from pate_fed.privacy.bounds.cost import NOTHING, Cost, epsilon_of

RHO = Fraction(1, 800)
CURVE = ClaimedCurve(tuple(float(RHO) * order for order in CLAIMED_ORDERS))
PURE = ClaimedCurve(tuple(min(0.05, 0.05**2 * order / 2) for order in CLAIMED_ORDERS))


def laplace_rdp(epsilon: float, order: float) -> float:
    """Exact RDP of Laplace noise that is ε-DP (Mironov 2017, Proposition 6)."""
    high = math.log(order / (2 * order - 1)) + (order - 1) * epsilon
    low = math.log((order - 1) / (2 * order - 1)) - order * epsilon
    return float(np.logaddexp(high, low)) / (order - 1)


def test_at_its_orders_it_is_what_was_said_and_between_them_a_bound() -> None:
    for place in (0, 40, len(CLAIMED_ORDERS) - 1):
        assert CURVE.rdp(Fraction(CLAIMED_ORDERS[place])) == Fraction(CURVE.values[place])
    for low, high in pairwise(CLAIMED_ORDERS):
        for share in (Fraction(1, 4), Fraction(1, 2), Fraction(7, 8)):
            order = Fraction(low) + share * (Fraction(high) - Fraction(low))
            assert (
                order * RHO * (1 - Fraction(1, 10**12))
                <= CURVE.rdp(order)
                <= order * RHO * Fraction(1003, 1000)
            )
            # Of the claim only the orders count; the divergence that it bounds there it bounds between.
            assert float(PURE.rdp(order)) >= laplace_rdp(0.05, float(order)) * (1 - 1e-9)


def test_below_its_first_order_it_is_that_of_the_first_and_beyond_the_last_unknown() -> None:
    assert CURVE.rdp(Fraction(10001, 10000)) == Fraction(CURVE.values[0])
    cost = Cost.of_claim(CURVE)
    with pytest.raises(InputError, match="known up to"):
        cost.rdp(Fraction(10**6))
    short = ClaimedCurve(CURVE.values[:60])
    assert short.most_order == Fraction(CLAIMED_ORDERS[59])
    assert epsilon_of(Cost.of_claim(short) * 10, 1e-5) >= epsilon_of(cost * 10, 1e-5)


@pytest.mark.parametrize("times", [1, 40, 3000])
def test_totals_are_those_of_the_same_curve_in_closed_form(times: int) -> None:
    claimed = epsilon_of(Cost.of_claim(CURVE) * times, 1e-5)
    exact = epsilon_of(Cost(rho=RHO) * times, 1e-5)
    assert exact * (1 - 1e-9) <= claimed <= exact * 1.004
    pure = epsilon_of(Cost.of_claim(PURE) * times, 1e-5)
    exact = epsilon_of(Cost(pure=((Fraction(0.05), times),)), 1e-5)
    assert exact * (1 - 1e-9) <= pure <= exact * 1.004


def test_costs_add_up_in_any_order_and_keep_the_claim() -> None:
    one, other, ours = Cost.of_claim(CURVE), Cost.of_claim(PURE), Cost(rho=RHO)
    total = one * 2 + ours + other + one
    assert total == other + one * 3 + ours + NOTHING and hash(total) == hash(other + one * 3 + ours)
    assert total.claimed == tuple(sorted(((CURVE, 3), (PURE, 1))))
    assert total.as_totals == total
    assert total.rdp(Fraction(3)) == 3 * CURVE.rdp(Fraction(3)) + PURE.rdp(Fraction(3)) + 3 * RHO
    assert epsilon_of(total, 1e-5) > epsilon_of(one * 3, 1e-5)


def test_the_grid_reaches_the_orders_that_budgets_need() -> None:
    assert CLAIMED_ORDERS[0] < 1.03 and CLAIMED_ORDERS[-1] > 8000
    assert CLAIMED_ORDERS[LEAST_ORDERS - 1] > 1.3

"""A claimed curve between its orders, in totals, and what it is refused for: its words name whose it is."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.claimed import CLAIMED_ORDERS, LEAST_ORDERS, Claim, ClaimedCurve, check_curve
from pate_fed.privacy.bounds.cost import NOTHING, Cost, epsilon_of
from pate_fed.privacy.protection import MECHANISM, Assumption
from pate_fed.structure.parts import PartIdentity

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


GIVEN = tuple(order / 800 for order in CLAIMED_ORDERS)
CLAIM = Claim(
    part=PartIdentity(name="theirs:make", version="1.2", digest="cd" * 32),
    parameters=(("scale", 40.0),),
    unit="record",
    adjacency="replace-one",
    votes_moved=1,
    rdp=GIVEN,
)


@pytest.mark.parametrize(
    ("rdp", "said"),
    [
        (GIVEN[: LEAST_ORDERS - 1], f"at {LEAST_ORDERS - 1} orders"),
        ((*GIVEN, 100.0), f"to {len(CLAIMED_ORDERS)} from 1.02"),
        ((0.0, *GIVEN[1:]), "an RDP of 0.0 at order 1.02"),
        ((*GIVEN[:-1], math.inf), "an RDP of inf"),
        ((*GIVEN[:-1], math.nan), "an RDP of nan"),
        ((GIVEN[5], *GIVEN[1:]), "falls at order"),
    ],
)
def test_what_can_be_no_curve_is_refused(rdp: tuple[float, ...], said: str) -> None:
    with pytest.raises(InputError, match=f"theirs.*{said}"):
        check_curve(rdp, "theirs")
    with pytest.raises(InputError):
        replace(CLAIM, rdp=rdp)


def test_the_fewest_orders_and_a_flat_curve_are_one() -> None:
    check_curve(GIVEN[:LEAST_ORDERS], "this")
    check_curve((0.1,) * LEAST_ORDERS, "this")


def test_it_is_shown_without_its_curve_and_says_on_whose_word_epsilon_rests() -> None:
    assert f"{CLAIM}" == f"Claim(theirs:make, scale=40.0, RDP at {len(GIVEN)} orders)"
    assert CLAIM.assumption == Assumption(kind=MECHANISM, part=CLAIM.part)

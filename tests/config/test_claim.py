"""What a mechanism of one's own claims: what can be no curve is refused, and its words name whose it is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pate_fed.config.assumptions import MECHANISM, Assumption
from pate_fed.config.claim import CLAIMED_ORDERS, LEAST_ORDERS, Claim, check_curve
from pate_fed.config.parts import PartIdentity
from pate_fed.errors import InputError

CURVE = tuple(order / 800 for order in CLAIMED_ORDERS)
CLAIM = Claim(
    part=PartIdentity(name="theirs:make", version="1.2", digest="cd" * 32),
    parameters=(("scale", 40.0),),
    unit="record",
    adjacency="replace-one",
    votes_moved=1,
    rdp=CURVE,
)


@pytest.mark.parametrize(
    ("rdp", "said"),
    [
        (CURVE[: LEAST_ORDERS - 1], f"at {LEAST_ORDERS - 1} orders"),
        ((*CURVE, 100.0), f"to {len(CLAIMED_ORDERS)} from 1.02"),
        ((0.0, *CURVE[1:]), "an RDP of 0.0 at order 1.02"),
        ((*CURVE[:-1], math.inf), "an RDP of inf"),
        ((*CURVE[:-1], math.nan), "an RDP of nan"),
        ((CURVE[5], *CURVE[1:]), "falls at order"),
    ],
)
def test_what_can_be_no_curve_is_refused(rdp: tuple[float, ...], said: str) -> None:
    with pytest.raises(InputError, match=f"theirs.*{said}"):
        check_curve(rdp, "theirs")
    with pytest.raises(InputError):
        replace(CLAIM, rdp=rdp)


def test_the_fewest_orders_and_a_flat_curve_are_one() -> None:
    check_curve(CURVE[:LEAST_ORDERS], "this")
    check_curve((0.1,) * LEAST_ORDERS, "this")


def test_it_is_shown_without_its_curve_and_says_on_whose_word_epsilon_rests() -> None:
    assert f"{CLAIM}" == f"Claim(theirs:make, scale=40.0, RDP at {len(CURVE)} orders)"
    assert CLAIM.assumption == Assumption(kind=MECHANISM, part=CLAIM.part)

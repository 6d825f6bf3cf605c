"""Terms of class sums: what goes together, what they cost, and that a text holds all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from builders import make_sum_terms, make_terms, vary

from pate_fed.errors import InputError, IntegrityError
from pate_fed.protocol.cost import check_reach
from pate_fed.protocol.sizes import largest_messages
from pate_fed.protocol.terms import Terms


@pytest.mark.parametrize("at_hospitals", [True, False])
def test_terms_survive_their_text(at_hospitals: bool) -> None:
    terms = make_sum_terms(at_hospitals=at_hospitals)
    assert Terms.from_json(terms.to_json()) == terms
    assert terms.num_teachers == terms.least_teachers == 0
    check_reach(terms)  # no threshold is looked for


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sums": None}, "sums"),
        ({"aggregator": "gnmax"}, "sums"),
        ({"secure_sum": False}, "noise_at"),
        ({"sigma": 5.0}, "sums.sigma"),
        ({"sigma_party": None}, "sigma_party"),
        ({"most_units": 4}, "most_units"),
        ({"unit": "hospital"}, "most_units"),
        ({"dimension": 10**6, "num_classes": 1000}, "dimension"),
        ({"teachers_per_client": 2}, "teachers_per_client"),
        ({"records_per_teacher": 25}, "records_per_teacher"),
        ({"labels": 7}, "max_queries"),
        ({"features": "not one"}, "features"),
        ({"squared_norm": 0}, "squared_norm"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named.replace(".", r"\.")):
        vary(make_sum_terms(), **changes)


def test_votes_are_not_sums() -> None:
    text = make_sum_terms().to_json()
    with pytest.raises(IntegrityError):
        Terms.from_json(text.replace('"aggregator":"class-sums"', '"aggregator":"gnmax"'))
    with pytest.raises(IntegrityError):
        Terms.from_json(text.replace('"secure_sum":true', '"secure_sum":false'))
    with pytest.raises(InputError):
        replace(make_terms(), sums=make_sum_terms().sums)


def test_the_largest_messages_hold_all_sums() -> None:
    few, many = make_sum_terms(), make_sum_terms(dimension=100_000)
    grown = largest_messages(many).to_coordinator - largest_messages(few).to_coordinator
    assert grown == 8 * 3 * (100_000 - 20)
    assert largest_messages(few).to_hospital > 2**26  # a feature map comes

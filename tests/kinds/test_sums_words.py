"""Words on class sums: once, and no word of votes or teachers."""

from __future__ import annotations

import pytest
from builders import make_sum_terms


@pytest.mark.parametrize("at_hospitals", [True, False])
def test_nothing_speaks_of_votes_or_teachers(at_hospitals: bool) -> None:
    words = make_sum_terms(at_hospitals=at_hospitals).words
    told = [
        *(
            text
            for _, text in (*words.trains, *words.leaves, *words.sees, *words.limits, *words.settings(""))
        ),
        *(f"{each.sees} {each.hidden} {each.by}" for each in words.against("noise", "Sums")),
        words.done("images", asked=1500, answered=1500),
        words.left("images"),
        words.why_large(1500),
        words.instead,
        *words.way,
        *words.together(0.9),
    ]
    assert not [text for text in told if "vote" in text.lower() or "teacher" in text.lower()]


def test_noise_is_named_where_hospitals_add_it() -> None:
    assert "mask and noise" in make_sum_terms().words.left("images")
    assert "noise" not in make_sum_terms(at_hospitals=False).words.left("images")


def test_sums_are_given_once_or_not_at_all() -> None:
    words = make_sum_terms().words
    assert words.given(20, left=True) == "its class sums once"
    assert words.given(20, left=False) == "answers to 0 queries"

"""A kind's words: what is alike for every kind is there without a line of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from builders import make_label_terms, make_noisy_terms, make_scored_terms, make_sum_terms, make_terms, vary

from pate_fed.kinds.terms import Terms
from pate_fed.kinds.words import Against, AtHome, Facts, Words

MASKED = vary(make_terms(), secure_sum=True)
ALL = [make_terms(), MASKED, make_noisy_terms(), make_sum_terms(), make_scored_terms(), make_label_terms()]


class Least(Words):
    """As few words as a kind can have."""

    kind = "histograms"
    answers = "counts"

    @property
    def leaves(self) -> Facts:
        return (("counts", "One row of counts."),)

    @property
    def sees(self) -> Facts:
        return (("coordinator", "Sees sums."),)

    @property
    def caps(self) -> Facts:
        return (("answers", "Once."),)

    @property
    def asked(self) -> str:
        return "a histogram, once"

    @property
    def home(self) -> AtHome:
        return AtHome(name="hospitals", holds="keep records", sends="counts", released="noisy counts")

    def together(self, accuracy: float) -> Iterator[str]:
        yield "not known"

    def done(self, inputs: str, *, asked: int, answered: int) -> str:
        return "Counted."

    def left(self, inputs: str) -> str:
        return "Counts."

    def _public(self, noise: str) -> Against:
        return Against(who="Anyone", sees="Noisy counts", hidden="Exact counts", by=noise)


@pytest.mark.parametrize("terms", ALL, ids=str)
def test_every_kind_says_all_that_pages_and_reports_read(terms: Terms) -> None:
    words = terms.words
    facts = (*words.reads, *words.trains, *words.leaves, *words.sees, *words.limits)
    assert all(name and text for name, text in facts)
    assert {"coordinator", "hospitals", "public"} == {name for name, _ in words.sees}
    public, coordinator, others = words.against("noise", "Something")
    assert coordinator.sees == "Something" and others.who == "The other hospitals" and "noise" in public.by
    assert words.done("images", asked=9, answered=5) and words.left("images") and words.asked
    assert words.home.name and words.home.sends and words.home.released
    assert words.protects and words.mechanism and words.question(3) and list(words.together(0.9))


def test_a_kind_of_few_words_has_the_rest_from_what_its_terms_say() -> None:
    plain, masked, noisy = (Least(terms) for terms in (make_terms(), MASKED, make_noisy_terms()))
    assert plain.against("n", "s")[1].by.startswith("trust alone")
    assert masked.against("n", "s")[1].hidden == "One hospital's own counts. Records"
    assert "may tell it their own noise" in noisy.against("n", "s")[1].by
    assert plain.way == ("Counts reach the coordinator", "as they are")
    assert masked.way[1] == "masked: only their sum can be read"
    assert dict(plain.limits)["hospitals"].startswith("At least 8 of 10")
    assert plain.question(1) == "1 query" and plain.question(2) == "2 queries" and plain.question(0)


def test_other_hospitals_that_pool_noise_are_bounded_only_where_some_were_reckoned_with() -> None:
    terms = make_noisy_terms()
    alone = replace(terms, secrecy=replace(terms.secrecy, colluders=0))
    assert [Least(each).against("n", "s")[2].bounded for each in (terms, alone, MASKED)] == [
        True,
        False,
        True,
    ]

"""Words on a kind of somebody's own: whose code reads records, and no word of votes or teachers."""

from __future__ import annotations

from pathlib import Path

import pytest
from kinds import BINS, ExactOwn, Own

from pate_fed.cli.terms_page import make_page


@pytest.mark.parametrize("made", [Own, ExactOwn])
def test_nothing_speaks_of_votes_or_teachers(made: type[Own], tmp_path: Path) -> None:
    words = made(tmp_path).terms.words
    facts = (*words.trains, *words.leaves, *words.sees, *words.limits, *words.settings(""), words.way)
    told = [
        *(text for _, text in facts),
        *(f"{each.sees} {each.hidden} {each.by}" for each in words.against("noise", "Totals")),
        *words.together(0.9),
        *(value for _, value in words.summary("5", asked=2, answered=2, apart=True)),
        words.done("rows", asked=2, answered=2),
        words.left("rows"),
        words.instead,
        words.asked,
        words.question(BINS),
        words.home.released,
        words.so_far(asked=1, answered=1),
    ]
    assert not [text for text in told if "vote" in text.lower() or "teacher" in text.lower()]


def test_the_page_that_a_hospital_agrees_to_names_the_code_its_word_and_its_size(tmp_path: Path) -> None:
    terms = Own(tmp_path).terms
    page = " ".join(" ".join(make_page(terms).lines()).split())
    part = terms.asks.parts[0][1]
    assert part.digest in page and "Your policy must list it" in page
    assert f"Up to 2 times one table of {BINS} rows and 1 columns" in page
    assert "how many records have number 0" in page and "The code adds noise first" in page
    assert f"At most 2 questions of {BINS} places" in page


def test_noise_is_named_where_hospitals_add_it(tmp_path: Path) -> None:
    (tmp_path / "exact").mkdir()
    assert "mask and noise" in Own(tmp_path).terms.words.left("rows")
    assert "noise" not in ExactOwn(tmp_path / "exact").terms.words.left("rows")

"""Terms at the command line: made from a study.toml, and priced in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import THEIRS, make_label_terms, make_sum_terms, own_map_terms

from pate_fed.cli.terms import cost_text, make_terms_of
from pate_fed.errors import IntegrityError
from pate_fed.kinds.terms import Terms


@pytest.fixture
def terms(demonstration: Path, monkeypatch: pytest.MonkeyPatch) -> Terms:
    monkeypatch.chdir(demonstration)
    return Terms.from_json(make_terms_of(Path("study.toml")))


def test_terms_are_of_the_hospitals_that_the_coordinator_is_told(terms: Terms) -> None:
    assert (terms.study, terms.num_clients, terms.least_clients) == ("breast-cancer", 4, 3)
    fewer = Terms.from_json(make_terms_of(Path("study.toml"), num_hospitals=3))
    assert (fewer.num_clients, fewer.pool_digest) == (3, terms.pool_digest)
    assert fewer.digest != terms.digest


def test_the_cost_is_told_against_whom_it_holds(terms: Terms) -> None:
    text = cost_text(terms.to_json())
    assert text.startswith("'breast-cancer': up to 170 queries, 170 labels; at δ=0.001 ε=")
    assert text.endswith(" against the public, no bound against the coordinator, for one patient")


def test_a_feature_map_of_one_s_own_is_told_of_with_the_cost() -> None:
    text, ours = cost_text(own_map_terms().to_json()), cost_text(make_sum_terms().to_json())
    assert text.startswith(ours) and ours.endswith("for one record")
    assert THEIRS.text in text and "has not proven that no record changes the features of others" in text


def test_private_labels_cost_what_is_spent_once() -> None:
    terms = make_label_terms()
    assert cost_text(terms.to_json()) == (
        "'s': private labels by randres, once; at δ=0 ε=1 against the public, ε=1 against the coordinator, "
        "for one label"
    )
    with pytest.raises(IntegrityError):
        cost_text("{}")

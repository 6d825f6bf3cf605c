"""Terms at the command line: made from a study.toml, and priced in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import THEIRS, make_label_terms, make_sum_terms, make_terms, own_map_terms, vary

from pate_fed.cli.terms import cost_text, make_page, make_terms_of
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


@pytest.mark.parametrize("secrecy", ["plain", "masks", "noise at hospitals"])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("unit", ["record", "hospital"])
def test_the_page_says_in_one_sentence_whom_the_study_protects(
    unit: str, adjacency: str, secrecy: str
) -> None:
    terms = vary(make_terms(), unit=unit, adjacency=adjacency)
    if secrecy != "plain":
        terms = vary(terms, secure_sum=True)
    if secrecy == "noise at hospitals":
        if (unit, adjacency) == ("hospital", "add-or-remove-one"):
            return  # refused: a hospital takes its noise along
        terms = vary(terms, noise_at="hospitals", sigma_party=6.0, colluders=0)
    page = make_page(terms)
    told = page.values["epsilon"]["to_a_patient"]
    assert told in " ".join(" ".join(page.lines()).split())
    assert ("one single record of yours" in told) == (unit == "record")
    assert ("used" in told) == (adjacency != "replace-one")
    assert ("which no ε covers" in told) == (secrecy != "noise at hospitals")

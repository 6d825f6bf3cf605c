"""ε is told and weighed before the first message: what means nothing is refused, with what would do."""

from __future__ import annotations

import pytest
from builders import make_noisy_terms, make_terms, vary

from pate_fed.errors import InputError
from pate_fed.protocol.cost import check_reach, make_ledger_terms
from pate_fed.protocol.guarantee import guarantee_lines, require_meaningful
from pate_fed.protocol.terms import Terms

FEW = make_terms(labels=40, max_queries=100)  # ten teachers
MANY = make_terms(num_clients=250, threshold=200.0, sigma1=150.0, sigma2=40.0, labels=500, max_queries=2000)


def _require(terms: Terms) -> None:
    require_meaningful(terms, make_ledger_terms(terms, noise="n", private=True))


def test_a_large_epsilon_is_refused_with_what_to_do() -> None:
    _require(MANY)
    with pytest.raises(InputError) as refused:
        _require(FEW)
    text = str(refused.value)
    for part in ("at most 10 is meant", "10 teachers are too few", "--teachers-per-client", "more hospitals"):
        assert part in text
    assert "stay alone" in text and "--allow-weak-privacy" in text
    assert "class sums (--aggregator class-sums --secure-sum)" in text
    _require(vary(FEW, allow_weak=True))
    _require(vary(FEW, epsilon=9.0))  # the budget bounds it


def test_where_planned_noise_would_do_the_refusal_says_so() -> None:
    with pytest.raises(InputError, match=r"250 teachers can have [0-9]+ labels at ε=4: leave out noise"):
        _require(vary(MANY, sigma2=5.0))


def test_a_hospital_that_sways_all_its_votes_is_not_told_to_train_more_teachers() -> None:
    with pytest.raises(InputError) as refused:
        _require(vary(FEW, unit="hospital"))
    assert "--teachers-per-client" not in str(refused.value)


def test_the_guarantee_names_delta_unit_and_adversaries() -> None:
    public, coordinator = guarantee_lines(make_ledger_terms(MANY, noise="n", private=True))
    for part in ("ε=2.8", "δ=1e-5", "one record replaced", "labels or the student"):
        assert part in public
    assert coordinator == "against the coordinator: unbounded; it sees every hospital's votes"
    assert "not private" in guarantee_lines(make_ledger_terms(MANY, noise="n", private=False))[2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threshold": 34.1, "sigma1": 6.0}, "--threshold 34.1 with 10 teachers .*out of reach"),
        ({"threshold": 0.0}, "--threshold 0: every query would pass"),
        ({"threshold": -3.0}, "--threshold -3"),
        ({"labels": 1501}, "--labels 1501 with --max-queries 1500"),
    ],
)
def test_votes_are_not_spent_for_nothing(changes: dict[str, float], words: str) -> None:
    terms = vary(make_terms(), **changes)
    with pytest.raises(InputError, match=words):
        check_reach(terms)
    with pytest.raises(InputError, match=words):
        make_ledger_terms(terms, noise="n", private=True)


def test_what_is_within_reach_passes() -> None:
    check_reach(vary(make_terms(), threshold=34.0, sigma1=6.0))
    check_reach(vary(make_terms(), aggregator="gnmax", threshold=-3.0))
    with pytest.raises(InputError, match="--sigma2"):  # there the vote's own noise decides
        check_reach(vary(make_noisy_terms(), threshold=34.0, sigma1=6.0, sigma2=5.0))

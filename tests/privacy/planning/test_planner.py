"""The planner: offers that the filter allows and the votes keep, and honesty with small federations."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import own_parts
import pytest

from pate_fed.errors import InputError
from pate_fed.privacy import RECORD, Plan, Pool, Protection, epsilon_of, plan
from pate_fed.privacy.mechanisms.own import own_mechanism
from pate_fed.privacy.planning.planner import ClaimedSearch
from pate_fed.privacy.planning.search import OBJECTIVE, Offer
from pate_fed.privacy.planning.vote_model import assumed_votes, past_votes

TERMS = {"num_teachers": 250, "num_classes": 10, "epsilon": 2.0, "delta": 1e-5}


def test_ten_hospitals_afford_next_to_nothing_and_are_told_what_helps() -> None:
    small = plan(**{**TERMS, "num_teachers": 10}, num_hospitals=10)
    assert small.best and small.best.answered <= 2
    assert len(small.advice) == 2
    assert "10 hospitals, 10 teachers: ε=2 buys" in small.advice[0]
    assert "250 teachers (25 a hospital)" in small.advice[1] and "record level" in " ".join(small.advice)
    large = plan(**TERMS, num_hospitals=10)
    assert large.best and large.best.answered > 300 and large.advice == ()


def test_a_whole_hospital_is_dear_however_many_teachers_it_has() -> None:
    protection = Protection(unit="hospital", votes_moved=2)
    made = plan(**{**TERMS, "num_teachers": 20}, num_hospitals=10, protection=protection)
    assert not made.best or made.best.answered <= 2
    assert "4 times" in " ".join(made.advice) and "more hospitals do" in " ".join(made.advice)


def test_where_nothing_fits_it_says_so() -> None:
    made = plan(**{**TERMS, "num_teachers": 1, "epsilon": 0.1}, num_hospitals=1)
    assert made.best is None and made.offers == ()
    assert any("not one useful label" in line for line in made.lines())
    assert "1 hospital, 1 teacher:" in made.advice[0] and "0 labels" in made.advice[0]
    assert all(point.labels == 0 and point.right_share is None for point in made.curve[:3])
    assert any(line.split()[1:3] == ["0", "-"] for line in made.lines())


def test_the_pool_is_a_limit() -> None:
    made = plan(**TERMS, pool=Pool(max_queries=50))
    assert made.best and made.best.asked <= 50 and made.best.right_share > 0.9
    small = plan(**{**TERMS, "num_teachers": 100, "epsilon": 50.0}, pool=Pool(max_queries=20))
    assert len(small.advice) == 1 and "the pool is the limit, not the budget" in small.advice[0]


def test_a_plan_can_be_written_down(usual: Plan) -> None:
    values = json.loads(json.dumps(usual.to_dict()))
    assert values["best"]["answered"] == usual.best.answered if usual.best else False
    assert values["delta"] == 1e-5 and values["unit"] == "record" and values["adjacency"] == "replace-one"
    assert len(values["curve"]) == 8 and values["objective"] == OBJECTIVE
    text = "\n".join(usual.lines())
    for part in (
        "ε=2",
        "δ=1e-5",
        "one record replaced",
        "assumed agreement of 0.85",
        OBJECTIVE,
        "caps, which fix ε",
    ):
        assert part in text
    assert usual.best and usual.best.noise() in text and f"{usual.best.answered:,}" in text
    assert usual.best.bytes_per_hospital == 4 * 10 * usual.best.asked


def test_the_same_question_has_the_same_answer(usual: Plan) -> None:
    assert plan(**TERMS) == usual


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"num_teachers": 0}, "num_teachers"),
        ({"num_classes": 1}, "num_classes"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"pool": Pool(votes=1.0)}, "agreement"),
        ({"pool": Pool(votes=0.1)}, "agreement"),
        ({"pool": Pool(votes=math.nan)}, "agreement"),
        ({"pool": Pool(votes=past_votes([[3, 2, 1]]))}, "3 classes"),
        ({"protection": Protection(votes_moved=251)}, "votes_moved"),
        ({"aggregator": "interactive-gnmax"}, "confident-gnmax, gnmax, lnmax can be planned"),
    ],
)
def test_bad_terms_are_refused(change: dict[str, object], what: str) -> None:
    with pytest.raises(InputError, match=what):
        plan(**{**TERMS, **change})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="max_queries"):
        Pool(max_queries=0)


def test_no_threshold_is_above_what_the_teachers_can_reach(offers: Callable[..., list[Offer]]) -> None:
    for teachers in (10, 30):
        made = offers(teachers, 10, 2.0)
        assert made
        for offer in made:
            assert offer.threshold is None or offer.threshold <= teachers


def test_another_aggregator_is_planned_where_it_is_asked_for() -> None:
    made = plan(**{**TERMS, "num_teachers": 30, "epsilon": 4.0}, aggregator="lnmax")
    assert made.best and [offer.mechanism for offer in made.offers] == ["lnmax"]
    assert 0.99 * 4.0 < made.best.epsilon <= 4.0
    assert "--aggregator lnmax --sigma2" in (made.command or "") and "--threshold" not in (made.command or "")
    # Laplace noise of the same deviation costs more, so the same budget buys less.
    gaussian = plan(**{**TERMS, "num_teachers": 30, "epsilon": 4.0}, aggregator="gnmax").best
    assert gaussian and gaussian.effective_labels > made.best.effective_labels


def test_a_mechanism_of_one_s_own_is_priced_by_its_curve_and_tried_on_the_votes() -> None:
    votes = past_votes([[240, 10, 0], [10, 240, 0], [90, 85, 75]], [0, 1, 1])
    few: dict[str, Any] = {**TERMS, "pool": Pool(max_queries=500, votes=votes), "num_classes": 3}
    made = plan(**few, aggregator=own_parts.GeometricMax(40.0))
    assert made.best is not None and made.offers == (made.best,)
    asked, claimed = made.best.asked, own_mechanism(own_parts.GeometricMax(40.0), classes=3, num_teachers=250)
    assert made.best.epsilon == epsilon_of(claimed.cost(asked, asked, RECORD), few["delta"]) <= few["epsilon"]
    assert epsilon_of(claimed.cost(asked + 1, asked + 1, RECORD), few["delta"]) > few["epsilon"]
    assert made.best.answered == asked and 0.5 < made.best.right_share <= 1
    assert "scale = 40.0 in [aggregation.parameters]" in (made.command or "")
    assert "exact totals" in (made.no_hospital_noise or "") and "has not proven" in made.advice[1]
    assert [point.labels for point in made.curve] == sorted(point.labels for point in made.curve)
    named = plan(**few | {"epsilon": 9.0}, aggregator="own_parts:Picky")
    assert named.best is not None and named.best.mechanism == "own_parts:Picky"
    assert named.best.answered < named.best.asked  # it leaves some unanswered
    assert "aggregation.parameters" not in (named.command or "")
    with pytest.raises(InputError, match="claims an RDP of 0"):
        plan(**few, aggregator="own_parts:Free")


POOL, DELTA = 60, 1e-5


def _search(part: object) -> ClaimedSearch:
    return ClaimedSearch(part, assumed_votes(0.9, 3, 100), 100, POOL, RECORD, DELTA)


def test_as_many_are_asked_as_the_claimed_curve_lets() -> None:
    search = _search(own_parts.GeometricMax(20.0))
    found = search.offer(2.0)
    assert found is not None and 0 < found.asked < POOL and found.answered == found.asked
    for more, above in ((0, False), (1, True)):
        cost = search.mechanism.cost(found.asked + more, found.asked + more, RECORD)
        assert (epsilon_of(cost, DELTA) > 2.0) is above
    assert found.epsilon <= 2.0 and search.parameters == {"scale": 20.0}
    plenty = search.offer(500.0)
    assert plenty is not None and plenty.asked == POOL  # the pool has no more


def test_queries_that_it_refuses_give_no_label() -> None:
    search = _search("own_parts:Picky")
    found = search.offer(300.0)
    assert found is not None and found.answered < found.asked and 0 < found.answered_share < 1
    assert search.parameters == {}  # by name its own defaults
    assert search.point(300.0).effective_labels == found.effective_labels


def test_where_nothing_useful_is_bought_it_says_none() -> None:
    search = _search(own_parts.GeometricMax(1.0))
    assert search.offer(1e-3) is None and search.point(1e-3).mechanism == "none"


def test_a_curve_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="claims an RDP"):
        _search("own_parts:Free")

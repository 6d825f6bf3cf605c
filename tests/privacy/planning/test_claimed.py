"""A budget of queries to a mechanism of one's own: what its claimed curve lets, and what labels are."""

from __future__ import annotations

import own_parts
import pytest

from pate_fed.privacy import RECORD, epsilon_of
from pate_fed.privacy.planning.claimed import ClaimedSearch
from pate_fed.privacy.planning.vote_model import assumed_votes

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

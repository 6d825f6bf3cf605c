"""The estimate of `pate-fed plan` by today's code, held against what forty-five settings gave in runs."""

from __future__ import annotations

from estimate_table import PARTS, truths


def test_estimates_are_near_what_runs_gave() -> None:
    """The marks are 14 of 15 and 13 of 15, which fresh ones miss: docs/plan.md says which are beyond."""
    found = truths()
    near = {part: [each.near for each in found if each.of["part"] == part] for part in PARTS}
    assert {part: len(each) for part, each in near.items()} == dict.fromkeys(PARTS, 15)
    assert [sum(near[part]) for part in PARTS] == [14, 14, 11]
    # What is refused would not have been twenty points better than was thought.
    assert all(each.way.serves or each.off > -20 for each in found)
    # Whoever takes the advice, "alone" or another, has nearly the better of both, but with few votes once.
    assert sorted(each.lost for each in found)[-2] < 2
    assert {each.advised == "alone" for each in found} == {True, False}


def test_without_a_pilot_estimates_are_farther_off() -> None:
    far = [sum(abs(each.off) > 5 for each in truths(pilots=pilots)) for pilots in (True, False)]
    assert far[0] + 3 <= far[1]

"""The estimate of `pate-fed plan` by today's code, held against what thirty settings gave in runs."""

from __future__ import annotations

from estimate_table import truths

WITHIN_FITTED, WITHIN_DRAWN = 3.0, 5.0  # points


def test_estimates_are_near_what_runs_gave() -> None:
    """The marks were 14 of 15 and 13 of 15: docs/plan.md says which settings are beyond, and why."""
    found = truths()
    fitted, drawn = ([each for each in found if each.of["part"] == part] for part in ("fitted", "drawn"))
    assert len(fitted) == len(drawn) == 15
    assert sum(abs(each.off) <= WITHIN_FITTED for each in fitted) >= 12
    assert sum(abs(each.off) <= WITHIN_DRAWN for each in drawn) >= 11
    # None is refused: the range's upper end is above a guess wherever runs were.
    assert all(each.way.serves for each in found)
    # Whoever takes the advice, "alone" or another, has nearly the better of both, but with 100 classes.
    assert sorted(each.lost for each in found if each.of["classes"] < 100)[-2:] < [3, 6]
    assert {each.advised == "alone" for each in found} == {True, False}


def test_without_a_pilot_estimates_are_farther_off() -> None:
    far = [sum(abs(each.off) > 5 for each in truths(pilots=pilots)) for pilots in (True, False)]
    assert far[0] + 3 <= far[1]

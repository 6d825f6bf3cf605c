"""What every course has: figures that add up, and a place among the kinds."""

from __future__ import annotations

import time

import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from clients.kinds import _SIDES
from pate_fed.kinds.terms import KINDS
from server.kinds import COURSES, Figures


def test_a_kind_stands_in_all_three_places() -> None:
    assert KINDS.keys() == _SIDES.keys() == COURSES.keys()


def test_the_time_of_a_phase_adds_up_also_where_it_fails() -> None:
    figures = Figures()
    assert figures.seconds.vote is None
    with figures.timed("vote"):
        time.sleep(0.002)
    once = figures.seconds.vote
    assert once is not None and once >= 0.002
    with pytest.raises(ValueError, match="failed"), figures.timed("vote"):
        raise ValueError("failed")
    assert figures.seconds.vote is not None and figures.seconds.vote > once
    assert figures.seconds.teach is None

"""What every kind says of itself: bounds of answers, which no honest hospital passes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.errors import IntegrityError
from pate_fed.kinds.base import Bounds

SEVERAL = Bounds(rows=9, columns=2, row=(1, 3))


@given(
    teachers=st.integers(1, 9),
    rows=st.lists(st.integers(0, 3), min_size=1, max_size=20),
)
def test_honest_votes_pass(teachers: int, rows: list[int]) -> None:
    votes = np.zeros((len(rows), 4), dtype=np.int64)
    votes[np.arange(len(rows)), rows] = teachers
    Bounds(rows=20, columns=4, row=(teachers, teachers)).check(votes, rows=len(rows))


@pytest.mark.parametrize(
    ("votes", "word"),
    [
        (np.array([[1.0, 0.0]]), "int64"),
        (np.array([[1, 0, 0]]), "shape"),
        (np.array([[1, 0], [1, 0]]), "shape"),
        (np.array([[2, -1]]), "negative"),
        (np.array([[2, 0]]), "an entry is more"),
        (np.array([[1, 1]]), "does not sum"),
        (np.array([[0, 0]]), "does not sum"),
        (np.array([[2**62, 2**62]]), "an entry is more"),
    ],
)
def test_dishonest_votes_are_refused(votes: np.ndarray, word: str) -> None:
    with pytest.raises(IntegrityError, match=word):
        Bounds(rows=9, columns=2, row=(1, 1)).check(votes, rows=1)


def test_votes_of_a_party_whose_size_decides_are_as_many_in_every_row() -> None:
    for each in (1, 2, 3):
        votes = np.array([[each, 0], [0, each]])
        SEVERAL.check(votes, rows=2)
    for wrong in ([[0, 0], [0, 0]], [[4, 0], [4, 0]], [[2, 2], [2, 2]], [[2, 0], [1, 0]]):
        with pytest.raises(IntegrityError, match=r"entry|row"):
            SEVERAL.check(np.array(wrong), rows=2)

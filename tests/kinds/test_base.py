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
    bounds, total = Bounds(rows=len(rows), columns=4, row=(teachers, teachers)), np.zeros_like(votes)
    packed = bounds.packed(votes)
    bounds.check(packed, rows=len(rows))
    assert packed.nbytes == bounds.nbytes == len(rows) * (1 if teachers == 1 else 4)
    bounds.add(total, packed)
    np.testing.assert_array_equal(total, votes)
    bounds.add(total, packed, -1)
    assert not total.any()


@pytest.mark.parametrize(("classes", "dtype"), [(256, "u1"), (257, "u2"), (65_537, "u4")])
def test_a_class_takes_as_few_bytes_as_it_may(classes: int, dtype: str) -> None:
    votes = np.eye(1, classes, classes - 1, dtype=np.int64)
    packed = Bounds(rows=9, columns=classes, row=(1, 1)).packed(votes)
    assert packed.dtype == dtype and packed.tolist() == [classes - 1]


@pytest.mark.parametrize(
    ("votes", "word"),
    [
        (np.array([[1.0, 1.0]]), "float64, not uint8"),
        (np.array([[1, 1]]), "int64, not uint8"),
        (np.array([[1, 1, 0]], np.uint8), "shape"),
        (np.array([[1, 1], [1, 1]], np.uint8), "shape"),
        (np.array([[3, 0]], np.uint8), "an entry is more"),
        (np.array([[2, 1]], np.uint8), "does not sum"),
        (np.array([[0, 0]], np.uint8), "does not sum"),
        (np.array([[255, 3]], np.uint8), "an entry is more"),
    ],
)
def test_dishonest_votes_are_refused(votes: np.ndarray, word: str) -> None:
    with pytest.raises(IntegrityError, match=word):
        Bounds(rows=9, columns=2, row=(2, 2)).check(votes, rows=1)


@pytest.mark.parametrize(
    ("votes", "word"),
    [
        (np.array([2], np.uint8), "for no class"),
        (np.array([0], np.uint16), "uint16, not uint8"),
        (np.array([0, 1], np.uint8), "shape"),
        (np.array([[1, 0]], np.uint8), "shape"),
    ],
)
def test_a_class_that_no_teacher_can_name_is_refused(votes: np.ndarray, word: str) -> None:
    with pytest.raises(IntegrityError, match=word):
        Bounds(rows=9, columns=2, row=(1, 1)).check(votes, rows=1)


def test_votes_of_a_party_whose_size_decides_are_as_many_in_every_row() -> None:
    for each in (1, 2, 3):
        votes = np.array([[each, 0], [0, each]], np.uint8)
        SEVERAL.check(votes, rows=2)
    for wrong in ([[0, 0], [0, 0]], [[4, 0], [4, 0]], [[2, 2], [2, 2]], [[2, 0], [1, 0]]):
        with pytest.raises(IntegrityError, match=r"entry|row"):
            SEVERAL.check(np.array(wrong, np.uint8), rows=2)

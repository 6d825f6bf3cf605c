"""Query strategies of one's own: what they see, and every wrong answer in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.learning.students.query_selection import PublicView, choose_by_own, try_own_strategy

INPUTS = np.zeros((10, 2, 2, 1), dtype=np.uint8)


def view(**more: Any) -> PublicView:
    values: dict[str, Any] = {
        "inputs": INPUTS.copy(),
        "left": np.array([1, 2, 5, 6, 8]),
        "index": np.array([0, 3]),
        "labels": np.array([1, 0]),
        "probabilities": None,
        "num_classes": 2,
        "wanted": 3,
        "seed": 7,
    }
    return PublicView(**(values | more))


def choose(part: Any, **more: Any) -> list[int]:
    return choose_by_own(part, view(**more), name="theirs:order").tolist()


def test_places_are_asked_about_in_its_order() -> None:
    assert choose(lambda seen: seen.left[::-1]) == [8, 6, 5]
    assert choose(lambda seen: [5]) == [5]
    assert choose(lambda seen: np.array([2, 6], dtype=np.uint8)) == [2, 6]

    class Later:
        def __call__(self, seen: PublicView) -> Any:
            return seen.left[1:]

    assert choose(Later) == choose(Later()) == [2, 5, 6]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (3, "is a int; a function of a PublicView is meant"),
        (lambda seen: [2, 2], "gives a place twice; every input is asked about once"),
        (lambda seen: [2, 10], "gives the places 2 to 10; 0 to 9 are meant"),
        (lambda seen: [-1], "gives the places -1 to -1; 0 to 9 are meant"),
        (lambda seen: [2, 3], r"gives the place 3, which is not left to ask about \(seen.left\)"),
        (lambda seen: [], r"gives float64 \(0,\); places of one input or more"),
        (lambda seen: seen.left * 1.0, r"gives float64 \(5,\); places"),
        (lambda seen: [[1, 2]], r"gives int64 \(1, 2\); places"),
        (lambda seen: None, r"gives object \(\); places"),
        (lambda seen: [True], r"gives bool \(1,\); places"),
        (lambda seen: 1 / 0, "fails .ZeroDivisionError: division by zero."),
        (lambda seen: seen.left.sort(), "fails .ValueError: "),
        (lambda seen: seen.inputs.fill(1), "fails .ValueError: "),
        (lambda seen: seen.votes, "fails .AttributeError: .PublicView. object has no attribute .votes"),
    ],
)
def test_a_wrong_answer_is_one_sentence_that_names_it(part: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        choose(part)
    assert str(refused.value).startswith("query strategy 'theirs:order': ")


def test_it_is_tried_as_in_a_first_and_in_a_later_round() -> None:
    seen: list[bool] = []

    def order(view: PublicView) -> Any:
        seen.append(view.probabilities is None)
        assert (view.probabilities is None) == (len(view.labels) == 0)
        return view.left

    try_own_strategy(order, INPUTS, name="theirs:order", num_classes=2, seed=1)
    assert seen == [True, False]

    def first_only(view: PublicView) -> Any:
        return view.left if view.probabilities is None else [0]

    with pytest.raises(InputError, match="gives the place 0, which is not left"):
        try_own_strategy(first_only, INPUTS, name="theirs:order", num_classes=2, seed=1)

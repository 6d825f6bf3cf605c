"""Which inputs are asked about first: a function of scores alone."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.learning import STRATEGIES, choose_order

SCORES = np.array(
    [
        [0.95, 0.2, 0.2, 0.2, 0.2, 0.0],  # sure
        [0.5, 0.2, 0.2, 0.2, 0.2, 0.0],  # unsure
        [0.4, 0.3, 0.0, 0.0, 0.0, 0.0],  # less sure
        [0.3, 0.2, 0.2, 0.2, 0.2, 0.2],  # the least sure
    ],
    dtype=np.float32,
)


def test_each_strategy_has_its_order() -> None:
    assert choose_order("random", SCORES).tolist() == [0, 1, 2, 3]
    assert choose_order("least-confident", SCORES).tolist() == [3, 2, 1, 0]


def test_the_class_with_fewest_labels_is_asked_about_next() -> None:
    scores = np.eye(3, dtype=np.float32)[[0, 0, 0, 0, 1, 2, 0, 1]]
    asked = choose_order("class-balanced", scores, released=np.array([5, 4, 1]))
    assert asked.tolist() == [5, 4, 0, 7, 1, 2, 3, 6]
    after = np.bincount(scores[asked[:4]].argmax(axis=1), minlength=3) + np.array([5, 4, 1])
    assert after.tolist() == [6, 6, 2]  # one input was all there is of the third
    even = choose_order("class-balanced", scores).tolist()
    assert even == [0, 4, 5, 1, 7, 2, 3, 6]  # without labels so far, class by class in turn


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("classes", [2, 3, 12])
def test_every_order_holds_every_input_once_and_equal_ones_in_their_order(
    strategy: str, classes: int
) -> None:
    scores = np.full((7, classes), 1 / classes, dtype=np.float32)
    assert choose_order(strategy, scores).tolist() == list(range(7))

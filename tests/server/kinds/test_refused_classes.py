"""Classes that the threshold keeps away are told of from released figures, others are not."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from server.kinds.votes import refusal_warnings

NAMES = ("ill", "well", "unknown")


def _warnings(answers: tuple[int, int, int], asked: tuple[int, int, int]) -> tuple[str, ...]:
    said = np.repeat(np.arange(3), asked)
    answered = np.concatenate([np.arange(n) < many for many, n in zip(answers, asked, strict=True)])
    return refusal_warnings(
        answered=answered, label=np.where(answered, said, -1), said=said, class_names=NAMES
    )


def test_a_class_that_is_seldom_answered_is_named_with_both_shares() -> None:
    (found,) = _warnings((55, 297, 99), (100, 300, 100))
    assert "class ill" in found and "55%" in found and "99%" in found
    assert "well" not in found and "--query-strategy class-balanced" in found


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ((90, 290, 95), (100, 300, 100)),  # a little less often
        ((30, 90, 30), (100, 300, 100)),  # all alike
        ((5, 290, 95), (10, 300, 100)),  # too few to tell
        ((0, 40, 5), (0, 40, 5)),  # without a label, among few labels
    ],
)
def test_what_is_even_or_too_few_is_not_told(
    answers: tuple[int, int, int], asked: tuple[int, int, int]
) -> None:
    assert _warnings(answers, asked) == ()


def test_classes_without_a_label_are_named() -> None:
    (found,) = _warnings((0, 290, 95), (0, 300, 100))
    assert found == "None of 385 labels is class ill: the student cannot tell it."
    refused, missing = _warnings((0, 290, 0), (50, 300, 50))
    assert "classes ill, unknown" in refused and "classes ill, unknown" in missing

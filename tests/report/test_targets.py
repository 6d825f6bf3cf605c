"""R², mean absolute error and RMSE: by hand, at the edges, and intervals that hold what they say."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.report.targets import TargetFigures

ENDS = (-100.0, 100.0)


def test_figures_by_hand() -> None:
    truth, found = np.array([0.0, 2.0, 4.0, 6.0]), np.array([1.0, 2.0, 4.0, 5.0])
    figures = TargetFigures.of(found, truth, ENDS)
    assert figures is not None and figures.count == 4
    assert (figures.r2, figures.mae, figures.usual) == (pytest.approx(0.9), 0.5, 2.0)
    assert figures.rmse == pytest.approx(np.sqrt(0.5))
    assert "of 4; always the mean: 2 off" in figures.text


def test_what_cannot_be_told_is_none_and_what_says_little_is_warned_of() -> None:
    assert TargetFigures.of(np.ones(1), np.ones(1), ENDS) is None
    assert TargetFigures.of(np.ones(5), np.full(5, 3.0), ENDS) is None
    exact = TargetFigures.of(truth := np.arange(9.0), truth, ENDS)
    assert exact is not None and (exact.r2, exact.mae) == (1, 0) and not exact.warnings
    mean = TargetFigures.of(np.full(9, 4.0), truth, ENDS)
    assert mean is not None and mean.r2 == 0 and "no better than always saying the mean" in mean.warnings[0]
    far = TargetFigures.of(truth + 9 + np.sin(truth), truth, ENDS)
    assert far is not None and far.r2_interval[1] < 0 and "worse than always" in far.warnings[0]


def test_true_numbers_at_an_end_of_the_range_are_counted_and_warned_of() -> None:
    """What is beyond it counts as the end, so that its error looks smaller than it is."""
    truth = np.array([0.0] * 2 + [5.0] * 18 + [10.0] * 2)
    figures = TargetFigures.of(truth, truth, (0.0, 10.0))
    assert figures is not None and figures.at_end == 4
    assert "4 of 22 true numbers are at an end" in figures.warnings[0]
    few = TargetFigures.of(truth, truth, (0.0, 20.0))
    assert few is not None and few.at_end == 2 and "2 of 22" in few.warnings[0]
    assert TargetFigures.of(truth, truth, ENDS).warnings == []  # type: ignore[union-attr]


def test_intervals_hold_the_true_values_in_about_95_of_100_cases() -> None:
    """Of a student that is off by N(0, 1) where truth is N(0, 2²): R² 0.75, MAE sqrt(2/π), RMSE 1."""
    rng, rounds = np.random.default_rng(5), 400
    held = np.zeros(3)
    for _ in range(rounds):
        truth = rng.normal(0, 2, 300)
        figures = TargetFigures.of(truth + rng.normal(0, 1, 300), truth, ENDS)
        assert figures is not None
        ends = (figures.r2_interval, figures.mae_interval, figures.rmse_interval)
        true = (0.75, np.sqrt(2 / np.pi), 1.0)
        held += [low <= value <= high for value, (low, high) in zip(true, ends, strict=True)]
    assert (held > 0.92 * rounds).all() and (held < 0.985 * rounds).all(), held

"""R², mean absolute error and RMSE: by hand, at the edges, and intervals that hold what they say."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.report.targets import TargetFigures


def test_figures_by_hand() -> None:
    truth, found = np.array([0.0, 2.0, 4.0, 6.0]), np.array([1.0, 2.0, 4.0, 5.0])
    figures = TargetFigures.of(found, truth)
    assert figures is not None and figures.count == 4
    assert (figures.r2, figures.mae, figures.usual) == (pytest.approx(0.9), 0.5, 2.0)
    assert figures.rmse == pytest.approx(np.sqrt(0.5))
    assert "of 4; always the mean: 2 off" in figures.text


def test_what_cannot_be_told_is_none_and_what_says_little_is_warned_of() -> None:
    assert TargetFigures.of(np.ones(1), np.ones(1)) is None
    assert TargetFigures.of(np.ones(5), np.full(5, 3.0)) is None
    exact = TargetFigures.of(truth := np.arange(9.0), truth)
    assert exact is not None and (exact.r2, exact.mae) == (1, 0) and not exact.warnings
    mean = TargetFigures.of(np.full(9, 4.0), truth)
    assert mean is not None and mean.r2 == 0 and "no better than always saying the mean" in mean.warnings[0]
    far = TargetFigures.of(truth + 9 + np.sin(truth), truth)
    assert far is not None and far.r2_interval[1] < 0 and "worse than always" in far.warnings[0]


def test_intervals_hold_the_true_values_in_about_95_of_100_cases() -> None:
    """Of a student that is off by N(0, 1) where truth is N(0, 2²): R² 0.75, MAE sqrt(2/π), RMSE 1."""
    rng, rounds = np.random.default_rng(5), 400
    held = np.zeros(3)
    for _ in range(rounds):
        truth = rng.normal(0, 2, 300)
        figures = TargetFigures.of(truth + rng.normal(0, 1, 300), truth)
        assert figures is not None
        ends = (figures.r2_interval, figures.mae_interval, figures.rmse_interval)
        true = (0.75, np.sqrt(2 / np.pi), 1.0)
        held += [low <= value <= high for value, (low, high) in zip(true, ends, strict=True)]
    assert (held > 0.92 * rounds).all() and (held < 0.985 * rounds).all(), held

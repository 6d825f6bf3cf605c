"""AUC by label and their mean: by hand, at the edges, and an interval that holds what it says."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.report.labels import LabelFigures


def test_figures_by_hand() -> None:
    truth = np.array([0b01, 0b01, 0b10, 0b00, 0b11, -1])
    found = np.array([[0.9, 0.2], [0.4, 0.1], [0.6, 0.9], [0.1, 0.3], [0.8, 0.7], [0.5, 0.5]])
    figures = LabelFigures.of(found, truth, ("a", "b"))
    assert figures is not None and figures.count == 5
    a, b = figures.each
    assert (a.yes, a.prevalence, a.auc, a.accuracy, a.majority) == (3, 0.6, 5 / 6, 0.6, 0.6)
    assert (b.yes, b.auc, b.accuracy) == (2, 1.0, 1.0) and b.auc_interval == (1.0, 1.0)
    assert figures.mean_auc == pytest.approx(11 / 12) and figures.mean_accuracy == pytest.approx(0.8)
    assert figures.rows[0][0] == "mean AUC" and [row[0] for row in figures.rows[1:]] == ["AUC, a", "AUC, b"]
    assert any("on 5 inputs only" in text for text in figures.warnings)


def test_what_cannot_be_told_is_none_or_said() -> None:
    shares = np.random.default_rng(0).random((200, 2))
    assert LabelFigures.of(shares[:0], np.empty(0, dtype=np.int64), ("a", "b")) is None
    assert LabelFigures.of(shares, np.full(200, 2), ("a", "b")) is None
    figures = LabelFigures.of(shares, np.arange(200) % 2, ("a", "b"))
    assert figures is not None and figures.each[1].auc is None and len(figures.rows) == 2
    assert "holds 0.5: a." in figures.warnings[0] and "have, or have not: b." in figures.warnings[1]
    assert figures.table[1][2:4] == ("-", "-")


def test_the_mean_s_interval_holds_the_true_value_in_about_95_of_100_cases() -> None:
    """Of labels with the same scores, where intervals that took them for independent would be too short."""
    rng, rounds, held = np.random.default_rng(5), 300, 0
    for _ in range(rounds):
        yes = rng.random((200, 3)) < (0.3, 0.3, 0.5)
        yes[:, 1] = yes[:, 0]
        scores = rng.normal(size=(200, 1)) * (1, 1, 0.5) + yes
        figures = LabelFigures.of(scores, (yes << np.arange(3)).sum(axis=1), ("a", "b", "c"))
        assert figures is not None
        low, high = figures.mean_auc_interval
        # Φ(1/√2) of unit noise, Φ(2/√2) of half of it.
        held += low <= (2 * 0.7602499 + 0.9213504) / 3 <= high
    assert 0.92 * rounds < held < 0.985 * rounds

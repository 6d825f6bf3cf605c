"""AUC by label and their mean: by hand, at the edges, and an interval that holds what it says."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from pate_fed.report.accuracy import Accuracy
from pate_fed.report.figures import of_no_class
from pate_fed.report.labels import LabelFigures
from pate_fed.report.result import RunResult


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
    assert "at 0.5 or below: a." in figures.warnings[0] and "have, or have not: b." in figures.warnings[1]
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


def test_a_mean_of_some_labels_says_of_how_many_and_few_are_warned_of() -> None:
    truth = np.array([0b001] * 5 + [0b000] * 95)
    found = np.random.default_rng(0).uniform(size=(100, 3))
    figures = LabelFigures.of(found, truth, ["a\x1b[31m", "b", "c"])
    assert figures is not None and "mean AUC over 1 of 3 labels" in figures.text
    assert "over 1 of 3 labels was" in figures.said("rows")
    assert "Fewer than 10 test inputs have, or have not: a [31m (5). Its AUC is of few." in figures.warnings
    assert all("\x1b" not in text for text in (figures.text, *figures.warnings, *sum(figures.table, ())))


def test_a_picture_of_labels_with_long_names_keeps_its_axis_and_says_no_share_of_right(
    run_result: RunResult,
) -> None:
    names = ["readmitted within thirty days of discharge, whatever for: yes", "died: yes"]
    truth = np.random.default_rng(1).integers(0, 4, size=300)
    scores = np.stack(
        [(truth >> place & 1) + np.random.default_rng(2).normal(size=300) for place in (0, 1)], 1
    )
    figures = LabelFigures.of(1 / (1 + np.exp(-scores)), truth, names)
    figure = of_no_class(
        replace(run_result, outcome=replace(run_result.outcome, accuracy=Accuracy(by_label=figures)))
    )
    assert figure is not None and figures is not None
    picture = figure.picture
    widths = [float(each) for each in re.findall(r'<rect[^>]* width="([\d.]+)"', picture)]
    assert len(widths) == 3 and min(widths) > 50
    assert f">{figures.mean_auc:.3f}<" in picture and " right (n" not in picture
    assert (
        f"{names[0]}: 0." in picture and f">AUC, {names[0]}<" not in picture
    )  # whole where it is pointed at

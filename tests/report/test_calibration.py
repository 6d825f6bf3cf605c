"""How a student's probabilities fit the truth: counted in bins and by class, and drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_page import Page

from pate_fed.report.calibration import Calibration
from pate_fed.report.html import render_report
from pate_fed.report.log import RunLog, read_result
from pate_fed.report.quality import calibration_curve, recall_bars
from pate_fed.report.result import RunResult
from pate_fed.structure import from_plain, to_plain


def _drawn(trials: int, *, skew: float) -> Calibration:
    """A student that says p of class 0, which is true with probability p to the power of `skew`."""
    rng = np.random.default_rng(3)
    p = rng.uniform(0.02, 0.98, trials)
    truth = (rng.uniform(size=trials) >= p**skew).astype(np.int64)
    found = Calibration.of(np.stack([p, 1 - p], axis=1), truth)
    assert found is not None
    return found


def test_whoever_is_right_as_often_as_sure_has_no_error_and_others_have() -> None:
    fair, skewed = _drawn(20_000, skew=1.0), _drawn(20_000, skew=3.0)
    assert fair.error < 0.015 < 0.03 < skewed.error
    assert fair.count == 20_000 and sum(right for _, right, _ in fair.bins) < 20_000
    for total, there in fair.by_class:
        assert total == pytest.approx(there, rel=0.03)
    assert abs(skewed.by_class[0][0] - skewed.by_class[0][1]) > 0.1 * skewed.count


def test_classes_alone_and_unknown_truth_tell_nothing() -> None:
    shares = np.array([[0.7, 0.3], [0.4, 0.6]])
    assert Calibration.of(np.eye(2), np.array([0, 1])) is None
    assert Calibration.of(shares, np.array([-1, -1])) is None
    found = Calibration.of(shares, np.array([-1, 1]))
    assert found is not None and found.bins == ((1, 1, 0.6),) and found.by_class == ((0.4, 0), (0.6, 1))


def test_it_is_the_same_after_the_log() -> None:
    found = _drawn(50, skew=1.0)
    assert from_plain(Calibration, to_plain(found), where="log", error=ValueError) == found


def _with(result: RunResult, found: Calibration | None) -> RunResult:
    accuracy = replace(result.outcome.accuracy, calibration=found)
    return replace(result, outcome=replace(result.outcome, accuracy=accuracy))


def test_the_diagram_says_how_sure_and_how_often_right(run_result: RunResult) -> None:
    found = Calibration(bins=((100, 60, 0.5), (900, 860, 0.99)), by_class=((90.0, 112), *[(101.0, 98)] * 9))
    figure = calibration_curve(_with(run_result, found))
    assert figure is not None and not figure.private
    assert "94.1 % sure of its answer and right in 92 %" in figure.caption.replace("92.0", "92")
    assert "farthest off for A: they add up to 90 inputs, and there are 112" in figure.caption
    assert figure.picture.count("<circle") == 2 and len(figure.rows) == 2
    recall = recall_bars(_with(run_result, found))
    assert recall is not None and recall.header == ("class", "recall", "foretold")
    assert recall.rows[0][2] == "90 for 112"
    assert (
        "The student's calibration"
        in Page(render_report(_with(run_result, found), publishable=True)).headings
    )
    assert "The student's calibration" not in Page(render_report(_with(run_result, None))).headings


def test_a_log_without_it_is_read_as_before(run_result: RunResult, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path) as log:
        log.write(run_result.study)
        log.write(run_result.outcome)
    path.write_text(path.read_text(encoding="utf-8").replace(', "calibration": null', ""), encoding="utf-8")
    assert "calibration" not in path.read_text(encoding="utf-8")
    assert read_result(path.parent).outcome.accuracy.calibration is None

"""What a threshold keeps at one ε."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pate_fed.reproduce import Reproduction, reproduce, rows, threshold, votes


def test_a_threshold_is_measured_against_none(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ((None, None, 100), (4.0, 1.0, 60))
    for name, value in {"EPSILON": 2000.0, "SETTINGS": settings}.items():
        monkeypatch.setattr(threshold, name, value)
    monkeypatch.setattr(votes, "TEACHERS", 4)
    plan = replace(small, seeds=2)
    lines = reproduce("fashion-mnist-threshold", plan)
    assert reproduce("fashion-mnist-threshold", plan) == lines
    runs = rows.read_rows(plan.out_dir / "threshold-runs.csv", threshold.ThresholdRun)
    assert [(run.threshold, run.sigma1, run.labels) for run in runs] == list(settings) * 2
    for plain, chosen in zip(runs[::2], runs[1::2], strict=True):
        assert plain.asked == 100 and chosen.asked > 60
        assert chosen.agreement >= chosen.agreement_pool
    assert "rarest, %" in lines[0] and len(lines) == 6

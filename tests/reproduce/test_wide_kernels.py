"""Wider kernels, and questions of the least margin."""

from __future__ import annotations

import numpy as np
import pytest
from control_studies import control_epsilon

from pate_fed.reproduce import Reproduction, columns, reproduce, wide_kernels

KINDS = ("random", "least margin", wide_kernels.BY_TOTALS)


def test_half_of_the_questions_have_the_least_margin_and_cost_the_same(
    small: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"EPSILON": 2000.0, "LABELS": 60, "QUESTIONS": KINDS}.items():
        monkeypatch.setattr(wide_kernels, name, value)
    lines = reproduce("fashion-mnist-wide", small)
    assert "plurality right, %" in lines[0] and len(lines) == 6
    runs = columns.read_rows(small.out_dir / "wide-runs.csv", wide_kernels.WideRun)
    assert [(run.questions, run.seed) for run in runs] == [(kind, 0) for kind in KINDS]
    assert runs[0].sigma2 == runs[1].sigma2 < runs[2].sigma2
    assert all(run.accuracy > 0.5 for run in runs)
    assert runs[0].labels_wrong != runs[1].labels_wrong  # they asked about other inputs


def test_the_least_margin_comes_first_but_for_chance() -> None:
    scores = np.array([[0.9, 0.0, 0.1], [0.4, 0.35, 0.3], [0.1, 0.5, 0.3]], dtype=np.float32)
    exact = wide_kernels.least_margin(scores, spread=0.0, rng=np.random.default_rng(0))
    assert exact.tolist() == [1, 2, 0]
    orders = {
        tuple(wide_kernels.least_margin(scores, spread=5.0, rng=np.random.default_rng(seed)))
        for seed in range(20)
    }
    assert len(orders) > 1


def test_the_noise_is_the_least_that_a_study_may_state() -> None:
    sigma = wide_kernels.stated_sigma2(20, epsilon=4.05, delta=1e-5)
    caps = {"sigma1": None, "max_queries": 20, "max_labels": 20, "delta": 1e-5}
    assert control_epsilon(sigma2=sigma, **caps) <= 4.05 < control_epsilon(sigma2=sigma - 0.1, **caps)

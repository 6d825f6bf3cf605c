"""Where an ε is spent: at random, or where a student is least sure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pate_fed.data import Dataset
from pate_fed.reproduce import Reproduction, reproduce, rows, uncertain, votes


def test_half_of_the_questions_are_doubtful_and_cost_the_same(
    small: Reproduction, loaded: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategies, data, labels, learnt = ("least-confident", "random"), loaded["fashion-mnist"], 60, []
    for name, value in {"EPSILON": 2000.0, "LABELS": labels, "STRATEGIES": strategies}.items():
        monkeypatch.setattr(uncertain, name, value)
    monkeypatch.setattr(votes, "TEACHERS", 4)
    learn = uncertain.train_and_test

    def noted(plan: Any, dataset: Any, index: Any, label: Any, *rest: Any, **more: Any) -> Any:
        learnt.append((index, label))
        return learn(plan, dataset, index, label, *rest, **more)

    monkeypatch.setattr(uncertain, "train_and_test", noted)
    lines = reproduce("fashion-mnist-questions", small)
    assert reproduce("fashion-mnist-questions", small) == lines and len(learnt) == 2
    runs = rows.read_rows(small.out_dir / "questions-runs.csv", uncertain.UncertainRun)
    assert [(run.strategy, run.seed) for run in runs] == [(each, 0) for each in strategies]
    assert len({run.sigma2 for run in runs}) == 1  # no choice costs more than another
    assert "plurality right, %" in lines[0] and len(lines) == 5
    (chosen, label), (random, _) = learnt
    first, later = np.split(chosen, [labels // 2])
    assert (first == random[: labels // 2]).all() and len(np.unique(chosen)) == labels
    others = np.setdiff1d(np.arange(data.num_queries), chosen)
    doubtful, sure = (
        uncertain.certainty(small, data, first, label[: labels // 2], asked) for asked in (later, others)
    )
    assert doubtful.max(axis=1).max() <= sure.max(axis=1).min()

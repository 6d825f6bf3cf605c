"""Which questions, and distillation, in small."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import Dataset
from pate_fed.reproduce import Reproduction, questions, reproduce


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_questions_in_small(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    strategies = ("random", "least-confident", "binary-experts")
    for name, value in {"LABELS": (40,), "SAMPLES": (30, 60), "STRATEGIES": strategies}.items():
        monkeypatch.setattr(questions, name, value)
    lines = reproduce("pate-2017-questions", small)
    rows = _rows(small.out_dir / "pate-2017-questions-asked.csv")
    assert [row["strategy"] for row in rows] == list(strategies)
    assert len({row["epsilon"] for row in rows}) == 1  # no choice costs more than another
    distilled = _rows(small.out_dir / "pate-2017-questions-distilled-not-private.csv")
    assert {row["target"] for row in distilled} == {"plurality", "T = 1", "T = 5"}
    assert all(float(row["accuracy"]) > 0.3 for row in distilled)
    assert any("NOT PRIVATE" in line for line in lines)
    assert reproduce("pate-2017-questions", small) == lines


def test_warmer_teachers_say_more_of_other_classes(loaded: dict[str, Dataset]) -> None:
    parts = np.array_split(np.arange(260), 4)
    hard, cool, warm = questions.shares_of_heads(loaded["mnist"], parts, (1.0, 5.0))
    assert all(each.shape == (200, 10) for each in (hard, cool, warm))
    assert all(np.allclose(each.sum(axis=1), 1, atol=1e-5) for each in (hard, cool, warm))
    assert set(np.unique(hard)) == {0.0, 1.0}
    assert warm.max(axis=1).mean() < cool.max(axis=1).mean() < 1

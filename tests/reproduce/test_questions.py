"""Which questions, in small."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pate_fed.reproduce import Reproduction, questions, reproduce


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_questions_in_small(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> None:
    strategies = ("random", "least-confident")
    for name, value in {"LABELS": (40,), "STRATEGIES": strategies}.items():
        monkeypatch.setattr(questions, name, value)
    lines = reproduce("pate-2017-questions", small)
    rows = _rows(small.out_dir / "pate-2017-questions-asked.csv")
    assert [row["strategy"] for row in rows] == list(strategies)
    assert len({row["epsilon"] for row in rows}) == 1  # no choice costs more than another
    assert reproduce("pate-2017-questions", small) == lines

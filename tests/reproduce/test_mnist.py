"""MNIST from published votes, in small."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from pate_fed.errors import InputError
from pate_fed.reproduce import Reproduction, mnist, reproduce


def test_mnist_from_votes(small: Reproduction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LABELS": (60, 20), "SLOW_STUDENTS": ("pate+",), "EPOCHS": 1}.items():
        monkeypatch.setattr(mnist, name, value)
    plan = replace(small, seeds=2)
    lines = reproduce("pate++-mnist-votes", plan)
    path = plan.out_dir / "mnist-votes-runs.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["student"], row["labels"], row["seed"]) for row in rows] == [
        (student, labels, seed)
        for student in ("encoder-head", "pate+")
        for seed in ("0", "1")
        for labels in ("60", "20")
    ]
    for row in rows[:4]:
        assert 0 < float(row["epsilon_do_not_publish"]) < float(row["epsilon_data_independent"])
        assert int(row["asked"]) >= int(row["labels"]) and float(row["accuracy"]) > 0.3
        assert row["accuracy"] == row["accuracy_single"]
    assert any("do not publish" in line for line in lines)
    assert sum(line.startswith("single: ") for line in lines) == 1
    before = path.read_bytes()
    assert reproduce("pate++-mnist-votes", plan) == lines and path.read_bytes() == before
    with pytest.raises(InputError, match="mnist_250_teachers"):
        reproduce("pate++-mnist-votes", Reproduction(data_dir=plan.out_dir, out_dir=tmp_path))


def test_slow_students_come_after_the_quick_one_seed_by_seed() -> None:
    tasks = list(mnist._tasks(2))
    assert len(tasks) == len(set(tasks)) == 2 * 2 * 5
    assert {student for student, *_ in tasks[:4]} == {"encoder-head"}
    assert [seed for *_, seed in tasks] == [0, 0, 1, 1] + 8 * [0] + 8 * [1]
    assert {student for student, *_ in tasks[4:12]} == {"co-teaching", "gan", "pate+", "pate++"}

"""Private labels' tables, in small, and what they are at the paper's scale."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pate_fed.data import Dataset
from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.learners import LearnSettings, TeachSettings
from pate_fed.reproduce import Reproduction, label_dp, reproduce


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def test_tables_go_on_where_they_were(
    loaded: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_data: Any
) -> None:
    for name, value in {
        "EPSILONS": (0.5, 4.0),
        "IN_TURN": (4.0, 0.5),
        "OURS": ("noise-cluster", "randres+denoise-ssl", "pate-fm"),
        "OTHERS": ("lp-1st",),
        "RECORDS": 260,
    }.items():
        monkeypatch.setattr(label_dp, name, value)
    true = label_dp._settings
    quick = LearnSettings(epochs=1, batch_size=64)
    few = TeachSettings(num_teachers=5, learn=quick, unlabelled=64)
    monkeypatch.setattr(label_dp, "_settings", lambda plan: replace(true(plan), learn=quick, teach=few))
    plan = Reproduction(data_dir=tmp_path, out_dir=tmp_path, seeds=1)
    lines = reproduce("label-dp-fashion-mnist", plan)
    path = plan.file("label-dp-runs", "csv")
    rows = _rows(path)
    assert len(rows) == 2 * (1 + 2 * 4)
    assert any("RandRes, formula" in line and "15.5" in line and "85.8" in line for line in lines)
    best = next(line for line in lines if line.startswith("  best of ours: "))
    assert {part.split()[-1] for part in best.split(",")} <= set(label_dp.OURS)
    assert any("Equation 8" in line for line in lines) and any("90.7" in line for line in lines)
    assert lines[-1].startswith("ours differs: randres+ssl") and "two strong ones" in lines[-1]
    assert "two strong ones" not in list(label_dp._lines([], paper=True))[-1]
    kept = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(kept[:-2]) + "\n", encoding="utf-8")
    reproduce("label-dp-fashion-mnist", plan)
    assert _rows(path) == rows
    mine = loaded["mnist"]
    loaded["mnist"] = make_data("mnist", seed=3)
    with pytest.raises(InputError, match="other mnist images"):
        reproduce("label-dp-fashion-mnist", plan)
    loaded["mnist"] = mine
    plan.file("label-dp-totals-mnist", "npy").write_bytes(b"no")
    path.unlink()
    with pytest.raises(InputError, match="holds no totals"):
        reproduce("label-dp-fashion-mnist", plan)


def test_the_papers_scale_is_the_papers(tmp_path: Path) -> None:
    from pate_fed.kinds.label_dp.clusters import Scan

    paper = label_dp._settings(Reproduction(data_dir=tmp_path, out_dir=tmp_path, paper=True))
    assert paper.clusterer == Scan() and paper.num_clusters == 10
    assert (paper.teach.num_teachers, paper.teach.unlabelled, paper.teach.learn.epochs) == (800, 0, 40)
    assert paper.learn.sgd and paper.learn.epochs == 200
    quick = label_dp._settings(Reproduction(data_dir=tmp_path, out_dir=tmp_path))
    assert quick.num_clusters is None and quick.teach.num_teachers == 250
    tasks = list(label_dp._tasks(3))
    assert len(tasks) == len(set(tasks)) == 4 * (1 + 5 * 12)
    assert {task[1] for task in tasks} >= set(label_dp.PAPER)

"""An input that is in the public pool twice is asked about once, at its first place: one sum, not two."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from pate_fed.data import load_dataset, repeated_inputs
from pate_fed.data.settings import GlyphSettings
from pate_fed.simulation import main

STUDY = """
[parties]
num_clients = 4
[data]
dataset = "table"
pool = "pool.csv"
private = ["a.csv", "b.csv", "c.csv", "d.csv"]
num_queries = 30
[data.table]
label = "y"
classes = ["no", "yes"]
columns = { x = "number" }
[teacher]
name = "random-forest"
trees = 3
[aggregation]
aggregator = "gnmax"
sigma2 = 0.5
[queries]
labels = 30
max_queries = 30
batch_size = 8
[student]
name = "forest"
"""


def _write(path: Path, values: np.ndarray) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["x", "y"], *([x, "yes" if x > 10 else "no"] for x in values)])


@pytest.mark.parametrize("options", [["--secure-sum"], []], ids=["masked", "plain"])
def test_a_study_asks_about_each_input_once_and_ends(options: list[str], tmp_path: Path) -> None:
    pool = np.tile(np.arange(20), 2)  # places 20 to 39 repeat 0 to 19; 30 to 39 only test
    _write(tmp_path / "pool.csv", pool)
    for name in "abcd":
        _write(tmp_path / f"{name}.csv", np.arange(20))
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    run_dir = tmp_path / "run"
    command = ["--config", str(tmp_path / "study.toml"), "--run-dir", str(run_dir), "--quiet"]
    assert main([*command, "--backend", "inline", "--seed", "3", *options]) == 0
    with np.load(run_dir / "labels.npz") as labels:
        assert sorted(labels["index"].tolist()) == list(range(20))
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["queries_asked"] == metrics["queries_answered"] == 20
    assert metrics["accuracy"]["ensemble"] is not None  # the repeated places are voted on to measure alone


def test_the_same_is_the_same_whatever_its_zeros_and_gaps(tmp_path: Path) -> None:
    dataset = load_dataset("glyph", glyph=GlyphSettings(classes=3, private=20, public=20), cache_dir=tmp_path)
    images = np.array(dataset.public_images)
    images[5] = images[2]
    images[7] = images[2]
    assert np.flatnonzero(repeated_inputs(replace(dataset, public_images=images))).tolist() == [5, 7]
    rows = np.array([[0.0, np.nan], [-0.0, np.nan], [1.0, 0.0], [0.0, 1.0]])
    assert repeated_inputs(replace(dataset, public_images=rows)).tolist() == [False, True, False, False]

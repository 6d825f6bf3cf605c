"""PATE 2017's random forests on real tables, at a small scale."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.reproduce import Reproduction, census, reproduce

read_adult = cache(census._adult)  # reading it takes a second


def test_adult_is_read_as_the_paper_counts_it(shared: Path) -> None:
    table = read_adult(shared / "data")
    assert table.private_images.shape == (32_561, 13) and table.public_images.shape == (16_281, 13)
    assert np.isfinite(table.private_images).all() and np.isfinite(table.public_images).all()
    assert 0.23 < np.mean([*table.private_labels, *table.public_labels]) < 0.25


@pytest.mark.slow
def test_diabetes_keeps_every_patient_on_one_side(shared: Path) -> None:
    table = census._diabetes(shared / "data" / "diabetes130" / "dataset_diabetes.zip")
    assert table.private_images.shape[1] == 18
    assert 34_000 < len(table.private_labels) <= 34_104
    assert len(table.public_labels) == 12_702
    assert 0.85 < np.mean([*table.private_labels, *table.public_labels]) < 0.92


def test_figures_stand_beside_the_published(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TEACHERS": 10, "LABELS": 60, "TREES": 5, "SCALE": 2.0}.items():
        monkeypatch.setattr(census, name, value)
    monkeypatch.setattr(census, "_adult", lambda folder: replace(read_adult(folder), num_queries=60))
    plan = Reproduction(data_dir=shared / "data", out_dir=tmp_path / "out", seeds=2)
    said: list[str] = []
    lines = reproduce("pate-2017-adult", plan, on_progress=said.append)
    assert "83.00" in lines[2]
    assert float(lines[2].split()[-2]) > 70
    assert "2.66" in lines[6]
    assert {path.name for path in plan.out_dir.iterdir()} == {
        "pate-2017-adult.json",
        "pate-2017-adult.txt",
        "pate-2017-adult-runs.csv",
        "pate-2017-adult-runs-inputs.json",
        "totals-adult.npz",
    }
    count = len(said)
    assert reproduce("pate-2017-adult", plan, on_progress=said.append) == lines and len(said) == count


def test_data_that_are_not_there_are_named(tmp_path: Path) -> None:
    for name, words in (("pate-2017-adult", "adult"), ("pate-2017-diabetes", "dataset_diabetes.zip")):
        with pytest.raises(InputError, match=words):
            reproduce(name, Reproduction(data_dir=tmp_path, out_dir=tmp_path / "out"))
        with pytest.raises(InputError, match="--data-dir"):
            reproduce(name, Reproduction(data_dir=None, out_dir=tmp_path / "out"))

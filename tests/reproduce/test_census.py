"""PATE 2017's random forests on real tables, at a small scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.reproduce import Reproduction, census, reproduce


def test_adult_is_read_as_the_paper_counts_it(shared: Path) -> None:
    table = census._adult(shared / "data" / "adult")
    assert table.rows.shape == (48_842, 13)
    assert table.train == 32_561
    assert len(table.labels) - table.train == 16_281
    assert np.isfinite(table.rows).all()
    assert 0.23 < table.labels.mean() < 0.25


def test_diabetes_keeps_every_patient_on_one_side(shared: Path) -> None:
    table = census._diabetes(shared / "data" / "diabetes130" / "dataset_diabetes.zip")
    assert table.rows.shape[1] == 18
    assert 34_000 < table.train <= 34_104
    assert len(table.labels) - table.train == 12_702
    assert 0.85 < table.labels.mean() < 0.92


def test_figures_stand_beside_the_published(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TEACHERS": 10, "LABELS": 60, "TREES": 5, "SCALE": 2.0}.items():
        monkeypatch.setattr(census, name, value)
    plan = Reproduction(data_dir=shared / "data", out_dir=tmp_path / "out", seeds=2)
    lines = reproduce("pate-2017-adult", plan)
    assert "83.00" in lines[2]
    assert float(lines[2].split()[-2]) > 70
    assert "2.66" in lines[6]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "pate-2017-adult.csv",
        "pate-2017-adult.txt",
    }


def test_data_that_are_not_there_are_named(tmp_path: Path) -> None:
    for name, words in (("pate-2017-adult", "adult"), ("pate-2017-diabetes", "dataset_diabetes.zip")):
        with pytest.raises(InputError, match=words):
            reproduce(name, Reproduction(data_dir=tmp_path, out_dir=tmp_path / "out"))
        with pytest.raises(InputError, match="--data-dir"):
            reproduce(name, Reproduction(data_dir=None, out_dir=tmp_path / "out"))

"""A label that is a number: shared between two ends, summed as classes are, and told by the student."""

from __future__ import annotations

import csv
import json
import shutil
import tracemalloc
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pate_fed.cli.main import main
from pate_fed.data.own_columns import OwnColumns
from pate_fed.data.profile import examine_rows
from pate_fed.data.schema import TARGET_STEPS, Schema
from pate_fed.data.table import Rows, read_table
from pate_fed.errors import InputError
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureSettings

SCHEMA = Schema(label="days", target_range=(0.0, 20.0), columns=(("x", ()),))


def test_neighbours_differ_by_no_more_than_the_stated_sensitivity() -> None:
    """Theorem 1 by brute force: add, replace, and two records of one patient, at every place in the range."""
    pool = np.linspace(0, 1, 8)[:, None]
    features = build_feature_map(FeatureSettings(name="bins", columns=(1,), lattice=16, bins=3), pool)
    places = [0, 1, TARGET_STEPS // 3, TARGET_STEPS // 2, TARGET_STEPS - 1, TARGET_STEPS]
    records = list(product((0.0, 0.3, 0.7, np.nan), places))

    def summed(rows: list[tuple[float, int]], groups: list[int] | None = None) -> np.ndarray:
        x, y = np.array([[x] for x, _ in rows]), np.array([y for _, y in rows])
        found = None if groups is None else np.array(groups)
        return features.contributions(x, y, num_classes=2, groups=found, steps=TARGET_STEPS)

    most = features.squared_norm
    each = [summed([record]) for record in records]
    patients = [summed([one, other], [7, 7]) for one, other in product(records[:8], records[-8:])]
    for own in (*each, *patients):
        assert (own >= 0).all() and 0 < int((own**2).sum()) <= most
    worst = max(int(((one - other) ** 2).sum()) for one, other in product(each, each))
    assert most < worst <= 2 * most
    for (x, place), own in zip(records, each, strict=True):
        whole = features.features(np.array([[x]]))[0]
        assert np.array_equal(own.sum(axis=1), whole)
        assert np.abs(own[:, 1] - whole * place / TARGET_STEPS).max() <= 0.5


def test_bad_cells_are_named_without_their_value_and_beyond_is_the_nearer_end(tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_text("x,days\n1,-3\n2,5\n3,999\n")
    rows = read_table(path, SCHEMA, labelled=True)
    assert rows.labels.tolist() == [0, TARGET_STEPS // 4, TARGET_STEPS]
    assert rows.beyond == 2 and not rows.read_as and "beyond" not in repr(rows)  # it may tell of one record
    [note] = examine_rows(rows, SCHEMA, OwnColumns())
    assert note.mend and note.column == "days" and "2 numbers of 3 beyond the declared range" in note.text
    assert not examine_rows(rows, SCHEMA, OwnColumns(), ranges_alone=True)
    path.write_text("x,days\n1,1e300\n")
    assert read_table(path, SCHEMA, labelled=True).labels.tolist() == [TARGET_STEPS]
    for cell, told in (("secret", "not a finite number"), ("", "a number from 0 to 20 is meant")):
        path.write_text(f"x,days\n1,{cell}\n")
        with pytest.raises(InputError, match=told) as caught:
            read_table(path, SCHEMA, labelled=True)
        assert "row 2, column days" in str(caught.value) and "secret" not in str(caught.value)
    alike = (1.0, 1.0000000000000002)  # on the page of terms both would be 1
    for wrong in ({"target_range": (1.0, 1.0)}, {"target_range": alike}, {"classes": ("a", "b")}):
        with pytest.raises(InputError, match="target_range"):
            replace(SCHEMA, **wrong)


def _tables(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name, count in (("h0", 300), ("h1", 300), ("h2", 300), ("h3", 300), ("pool", 200)):
        x, noise = rng.normal(0, 1, count).round(2), rng.normal(0, 1, count)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = zip(x, np.clip(10 + 3 * x + noise, 0, 25).round(1), strict=True)
            csv.writer(file).writerows([("x", "days"), *rows])


def test_many_records_are_looked_at_in_little_memory() -> None:
    """Places in the range are no classes: a table of numbers by places would be of 24 GB."""
    x = np.random.default_rng(0).normal(size=(3000, 1))
    places = np.arange(3000) * (TARGET_STEPS // 3000)
    rows = Rows(x, places, np.arange(3000))
    tracemalloc.start()
    assert not examine_rows(rows, SCHEMA, OwnColumns())
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_a_study_from_files_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pate_fed.simulation import main as simulate

    _tables(tmp_path)
    study, run = str(tmp_path / "study.toml"), str(tmp_path / "run")
    files = [str(tmp_path / f"h{number}.csv") for number in range(4)]
    asked = ["study", "new", "--csv", *files, "--label", "days", "--target-range", "0:20", "--out", study]
    assert main(asked) == 0
    assert simulate(["--config", study, "--seed", "1", "--run-dir", run]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["accuracy"]["student"] is None
    assert metrics["target"]["what"] == "days from 0 to 20" and metrics["target"]["r2"] > 0.6
    tested = metrics["accuracy"]["tested"]
    assert metrics["num_classes"] is None
    assert tested["kept"] + tested["not_asked"] == metrics["target"]["count"]
    assert main(["ledger", "verify", run]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "How near it comes: days from 0 to 20" in page and "by class" not in page
    shutil.copytree(run, f"{run}-2")
    for more in (
        ["compare", run, f"{run}-2", "--html", str(tmp_path / "c.html")],
        ["plan", "--config", study],
    ):
        capsys.readouterr()
        assert main(more) == 0
        out = capsys.readouterr().out
        assert ("R²" in out and "labels right" not in out) or "the label is a number: nothing is voted" in out
    capsys.readouterr()
    assert main(["predict", run, str(tmp_path / "pool.csv"), "--format", "json"]) == 0
    *told, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert all(0 <= each["number"] <= 20 for each in told) and last["evaluation"]["r2"] > 0.6
    papers = tmp_path / "papers"
    assert main(["report", run, "--papers", str(papers)]) == 0
    card = (papers / "model-card.md").read_text(encoding="utf-8")
    assert f"| R² | {metrics['target']['r2']:.3f} (" in card and "| accuracy |" not in card
    for more in (["--aggregator", "gnmax"], ["--unit", "hospital"]):
        assert simulate(["--config", study, "--seed", "1", "--run-dir", f"{run}-no", *more]) == 2
        assert not (tmp_path / "run-no").exists()
    capsys.readouterr()
    assert main([*asked[:-1], f"{study}-no", "--range", "age=0:110"]) == 2
    assert "give --pool FILE in place of --range" in capsys.readouterr().err
    for ends in ("20:0", "5:5", "0:1e60", "0:inf", "1:1.0000000000000002", "0,5:20"):
        assert main([*asked[:-3], ends, "--out", f"{study}-no"]) == 2
        assert f"--target-range {ends}: " in capsys.readouterr().err

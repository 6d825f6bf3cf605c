"""A run as CSV files: what it has, and what only the analyst gets."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from saved_runs import events, save_run

from pate_fed.cli.main import main


def _rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_csv_files_hold_what_the_run_has(made_up: Path, tmp_path: Path) -> None:
    assert main(["export", str(made_up), "--csv", str(tmp_path / "new" / "csv")]) == 0
    folder = tmp_path / "new" / "csv"
    figures = dict(_rows(folder / "figures.csv"))
    assert figures["privacy.student.data_independent"] == "3.5" and figures["accuracy.student"] == "0.9"
    assert figures["accuracy.student_interval.low"] == "0.870578" and figures["noise_private"] == "True"
    assert figures["seed"] == ""  # unknown is empty, never 0
    labels = _rows(folder / "labels.csv")
    assert labels[0] == ["index", "answered", "label"] and len(labels) == 151
    assert labels[1] == ["0", "1", "0"] and labels[-1] == ["149", "0", ""]
    epochs = _rows(folder / "epochs.csv")
    assert len(epochs) == 17 and {row[1] for row in epochs[1:]} == {"test_accuracy", "loss_supervised"}
    assert _rows(folder / "spending.csv") == [
        ["asked", "answered", "epsilon"],
        ["75", "50", "2.0"],
        ["150", "100", "3.0"],
    ]


@pytest.mark.parametrize("analyst", [False, True])
def test_figures_from_private_votes_are_exported_for_the_analyst_alone(
    made_up: Path, tmp_path: Path, analyst: bool
) -> None:
    extra = ["--analyst"] if analyst else []
    assert main(["export", str(made_up), "--csv", str(tmp_path), *extra]) == 0
    held = "".join(path.read_text(encoding="utf-8") for path in tmp_path.iterdir())
    for private in ("do_not_publish", "2.3456", "0.4567"):
        assert (private in held) is analyst
    assert "hospital-7" not in held and "top_" not in held


def test_a_run_that_was_cut_off_has_no_labels_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_run(tmp_path / "cut", events()[:3])
    assert main(["export", str(run), "--csv", str(tmp_path / "csv")]) == 0
    assert [path.name for path in (tmp_path / "csv").iterdir()] == ["figures.csv"]
    assert dict(_rows(tmp_path / "csv" / "figures.csv"))["status"] == "aborted"
    assert "wrote figures.csv in" in capsys.readouterr().out

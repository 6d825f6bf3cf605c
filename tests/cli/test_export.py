"""`pate-fed export`: a run's student as a file for other runtimes."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from saved_runs import events, make_study, save_run

from pate_fed.cli.main import main
from pate_fed.config.assumptions import Assumptions


class FakeRun:
    """A run of which only what the command asks for is there."""

    def __init__(self, path: Path, *, private: bool) -> None:
        self.path, self.epsilon, self.delta = path, 2.5, 1e-5
        self.written: dict[Path, dict[str, str]] = {}
        study = SimpleNamespace(
            protects="one record",
            noise_private=private,
            noise="not private: seeded noise",
            assumptions=Assumptions(),
        )
        self.result = SimpleNamespace(study=study)

    @property
    def student(self) -> Any:
        return SimpleNamespace(export_onnx=lambda path, about: self.written.update({path: about}))


@pytest.mark.parametrize("private", [True, False])
def test_the_file_says_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], private: bool
) -> None:
    run = FakeRun(tmp_path, private=private)
    (tmp_path / "student.pt").touch()
    monkeypatch.setattr("pate_fed.report.run.Run.load", lambda path: run)
    out = tmp_path / "out.onnx"
    assert main(["export", str(tmp_path), "--onnx", str(out)]) == 0
    told = run.written[out]
    assert (told["epsilon"], told["delta"], told["protects"]) == ("2.5", "1e-5", "one record")
    assert ("warning" in told) is not private
    assert str(out) in capsys.readouterr().out


def test_what_cannot_be_exported_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path), "--onnx", str(tmp_path / "out.onnx")]) == 2
    monkeypatch.setattr("pate_fed.report.run.Run.load", lambda path: FakeRun(tmp_path, private=True))
    assert main(["export", str(tmp_path), "--onnx", str(tmp_path / "out.onnx")]) == 2
    assert main(["export", str(tmp_path), "--onnx", str(tmp_path / "none" / "out.onnx")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3 and all(line.startswith("error: ") for line in errors)


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("runs") / "made-up", events(), study=make_study())


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


def test_what_is_missing_is_one_sentence_with_the_way_to_get_it(
    made_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("tensorboard", "torch.utils.tensorboard", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "file").touch()
    for option, folder, told in (
        ("--tensorboard", "new", "pip install tensorboard"),
        ("--mlflow", "new", "pip install mlflow"),
        ("--csv", "file", "no folder can be made there"),
    ):
        assert main(["export", str(made_up), option, str(tmp_path / folder)]) == 2
        error = capsys.readouterr().err
        assert told in error and len(error.splitlines()) == 1
    assert main(["export", str(made_up)]) == 2
    assert "nothing to export" in capsys.readouterr().err


def test_tensorboard_reads_what_was_written(made_up: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["export", str(made_up), "--tensorboard", str(tmp_path)]) == 0
    held = EventAccumulator(str(tmp_path))
    held.Reload()
    assert len(held.Scalars("student/test_accuracy")) == 8
    assert [each.step for each in held.Scalars("privacy/epsilon_over_queries")] == [75, 150]
    assert not any("do_not_publish" in tag for tag in held.Tags()["scalars"])


@pytest.mark.parametrize("analyst", [False, True])
def test_mlflow_reads_what_was_written(made_up: Path, tmp_path: Path, analyst: bool) -> None:
    pytest.importorskip("mlflow", reason="MLflow is large, and no dependency of ours: pip install mlflow")
    from mlflow.tracking import MlflowClient

    for _ in range(2):  # two runs of one study are in one experiment
        assert main(["export", str(made_up), "--mlflow", str(tmp_path), *["--analyst"][: int(analyst)]]) == 0
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("made-up")
    run, _ = client.search_runs([experiment.experiment_id])
    assert run.data.metrics["privacy.student.data_independent"] == 3.5
    assert run.data.tags["noise"] == "private" and run.data.tags["epsilon"] == "3.5 at δ = 1e-5"
    assert len(client.get_metric_history(run.info.run_id, "student/test_accuracy")) == 8
    assert run.info.status == "FINISHED" and run.info.run_name == "made-up"
    assert any("do_not_publish" in name for name in run.data.metrics) is analyst

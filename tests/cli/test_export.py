"""`pate-fed export`: a run's student as a file for other runtimes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from saved_runs import events, make_study, save_run

from pate_fed.cli.main import main
from pate_fed.privacy.protection import Assumptions


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
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert main(["export", str(made_up)]) == 2
    assert "nothing to export" in capsys.readouterr().err

"""`--dry-run`: the beginning's checks and figures, without a beginning."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import own_parts
import pytest
from builders import SMALL_STUDY

from pate_fed import server, simulation
from pate_fed.report.run import Run


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(SMALL_STUDY, encoding="utf-8")
    return tmp_path


def test_it_shows_what_the_run_then_guarantees_and_writes_nothing(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--config", "study.toml", "--run-dir", "run"]
    assert simulation.main([*command, "--dry-run", "--format", "json"]) == 0
    foreseen = json.loads(capsys.readouterr().out)
    assert [path.name for path in study.iterdir()] == ["study.toml"]
    assert (foreseen["num_clients"], foreseen["most_queries"], foreseen["most_labels"]) == (6, 4, 4)
    assert foreseen["guaranteed"]["coordinator"] is None
    assert foreseen["aggregation"]["sigma2"] == 2.0 and foreseen["teaching_seconds"] == pytest.approx(0.6)
    assert simulation.main([*command, "--quiet"]) == 0
    run = Run.load(study / "run")
    assert run.epsilon == foreseen["guaranteed"]["student"]
    assert foreseen["largest_message_bytes"]["to_coordinator"] > 6 * 3 * 8


def test_it_is_text_by_default(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulation.main(["--config", "study.toml", "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("study: ") and said[1] == "parties: 6, 6 teachers"
    assert said[2].startswith("aggregator: gnmax, σ2 ")
    assert any(line.startswith("guaranteed: ε=") for line in said)
    assert said[-2] == "time: roughly 0.6 s of teaching here, and the student's after it"
    assert said[-1] == "dry run: nothing was started, asked or written"
    assert [path.name for path in study.iterdir()] == ["study.toml"]


def test_where_nothing_is_trained_no_time_of_teaching_is_told(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    glyph = "[data.glyph]\nclasses = 3\nprivate = 240\npublic = 120\n"
    (study / "study.toml").write_text(glyph, encoding="utf-8")
    sums = ["--num-clients", "6", "--aggregator", "class-sums", "--secure-sum"]
    assert simulation.main(["--config", "study.toml", *sums, "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "time: no teacher is trained; the student's alone" in said
    assert any(line.startswith("chosen: rounds 0: 240 records under noise of") for line in said)
    assert simulation.main(["--config", "study.toml", *sums, "--records", "9000", "--dry-run"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "asked: each party's sums of features, at most 11 times, of a pool of 120" in said


def test_a_coordinator_has_it_too(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert server.main(["--config", "study.toml", "--num-clients", "4", "--insecure", "--dry-run"]) == 0
    assert "parties: 4, 4 teachers" in capsys.readouterr().out
    assert [path.name for path in study.iterdir()] == ["study.toml"]


def test_it_refuses_what_the_run_would(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SMALL_STUDY.replace("num_clients = 6", "num_clients = 121")
    (study / "study.toml").write_text(text, encoding="utf-8")
    assert simulation.main(["--config", "study.toml", "--dry-run"]) == 2
    assert "120" in capsys.readouterr().err


def test_a_part_of_the_current_folder_is_found_in_a_simulation_alone(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend("")  # undone afterwards, with what the search appends
    monkeypatch.setattr("pate_fed.structure.parts._folder", None)
    text = SMALL_STUDY.replace('"gnmax"\nsigma2 = 2.0', '"dry_mech:make"')
    (study / "study.toml").write_text(text, encoding="utf-8")
    (study / "dry_mech.py").write_bytes(Path(own_parts.__file__).read_bytes())
    monkeypatch.setattr("sys.path", [place for place in sys.path if place])
    apart = ["--config", "study.toml", "--num-clients", "4", "--insecure", "--dry-run"]
    assert server.main(apart) == 2
    assert (
        "there is no module dry_mech among what is installed, install it here first"
        in capsys.readouterr().err
    )
    assert simulation.main(["--config", "study.toml", "--dry-run"]) == 0
    assert "every ε rests on the privacy curve that dry_mech:make" in capsys.readouterr().out
    assert simulation.main(["--config", "study.toml", "--dry-run", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["claimed_by"][0]["name"] == "dry_mech:make"

"""`pate-fed`: every command from the outside, and every mistake with its code."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from pate_fed.cli.main import main
from pate_fed.privacy import ConfidentGNMax, Ledger, LedgerTerms, Protection, SeededNoise

MECHANISM = ConfidentGNMax(num_teachers=20, num_classes=3, threshold=10, sigma1=6, sigma2=4)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory with a ledger of two batches."""
    noise = SeededNoise(5)
    terms = LedgerTerms(
        study_digest="0" * 64,
        delta=1e-5,
        mechanisms=(MECHANISM,),
        protection=Protection(),
        noise=noise.kind,
        private=noise.private,
    )
    with Ledger.create(tmp_path / "ledger.sqlite", terms) as ledger:
        for batch in range(2):
            release = MECHANISM.release(np.tile([15, 3, 2], (6, 1)), noise)
            index = np.arange(batch * 6, batch * 6 + 6)
            ledger.charge(
                release.event,
                batch_digest=f"{batch}" * 64,
                index=index,
                answered=release.answered,
                label=release.label,
            )
    return tmp_path


def test_ledger_show_says_who_is_protected(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "show", str(run_dir)]) == 0
    text = capsys.readouterr().out
    for word in ("ε=", "record", "coordinator", "not private"):
        assert word in text


def test_ledger_verify_recomputes_and_names_what_was_changed(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", "verify", str(run_dir), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["queries_asked"] == 12
    with sqlite3.connect(run_dir / "ledger.sqlite") as database:
        triggers = list(database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
        for name, _ in triggers:
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE entries SET asked = asked - 1 WHERE seq = 2")
        for _, sql in triggers:
            database.execute(sql)
    database.close()
    assert main(["ledger", "verify", str(run_dir)]) == 6
    assert "row 2" in capsys.readouterr().err


def test_a_hash_from_elsewhere_is_looked_for(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "verify", str(run_dir)]) == 0
    head = capsys.readouterr().out.split()[-1]
    assert main(["ledger", "verify", str(run_dir), "--head", head]) == 0
    assert main(["ledger", "verify", str(run_dir), "--head", "0" * 64]) == 6
    assert "no row has the hash" in capsys.readouterr().err
    assert main(["ledger", "verify", str(run_dir), "--public-key", "1" * 64]) == 6
    assert "was not signed by the key" in capsys.readouterr().err


def test_a_directory_without_a_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["ledger", "show"], ["ledger", "verify"], ["report"]):
        assert main([*command, str(tmp_path)]) == 2
        assert str(tmp_path) in capsys.readouterr().err


def test_plan_gives_the_same_as_text_json_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", "--teachers", "60", "--epsilon", "2", "--hospitals", "6"]
    assert main(command) == 0
    text = capsys.readouterr().out
    picture = tmp_path / "plan.png"
    assert main([*command, "--format", "json", "--picture", str(picture)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["best"]["epsilon"] <= 2
    assert str(plan["best"]["answered"]) in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


def test_a_picture_is_drawn_where_nothing_is_affordable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "plan.png"
    assert main(["plan", "--epsilon", "0.1", "--teachers", "3", "--picture", str(picture)]) == 0
    assert "not one useful label" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_on_a_terminal_lines_end_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--epsilon", "2"]) == 0
    plain = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["plan", "--epsilon", "2"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, plain.splitlines())) > 100 and max(map(len, shown.splitlines())) <= 60
    assert shown.split() == plain.split()


def test_plan_for_whole_hospitals_affords_less(capsys: pytest.CaptureFixture[str]) -> None:
    labels = []
    for options in ([], ["--unit", "hospital", "--hospitals", "12"]):
        assert main(["plan", "--teachers", "60", "--epsilon", "2", "--format", "json", *options]) == 0
        labels.append(json.loads(capsys.readouterr().out)["best"]["answered"])
    assert labels[0] > labels[1]


def test_plan_takes_past_totals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "past.npy", np.tile([40, 15, 5], (500, 1)))
    command = ["plan", "--teachers", "60", "--classes", "3", "--epsilon", "2"]
    assert main([*command, "--agreement", str(tmp_path / "past.npy")]) == 0
    assert "past" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--epsilon", "0"], "epsilon"),
        (["--epsilon", "2", "--delta", "1"], "delta"),
        (["--epsilon", "2", "--teachers", "0"], "--teachers 0"),
        (["--epsilon", "2", "--hospitals", "-4"], "--hospitals -4"),
        (["--epsilon", "2", "--hospitals", "6", "--teachers", "5"], "--hospitals 6"),
        (["--epsilon", "2", "--hospitals", "10", "--unit", "hospital", "--votes-moved", "3"], "25 votes"),
        (["--epsilon", "2", "--agreement", "none.npy"], "none.npy"),
        (["--epsilon", "2", "--agreement", "0.01"], "agreement"),
        (["--epsilon", "2", "--picture", "/proc/x.png"], "--picture /proc/x.png"),
    ],
)
def test_plan_names_mistakes(options: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *options]) == 2
    err = capsys.readouterr().err
    assert word in err
    assert "Traceback" not in err


def test_data_shows_glyph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATE_FED_CACHE", str(tmp_path / "cache"))
    sheet = tmp_path / "sheet.png"
    command = ["data", "glyph", "--classes", "4", "--private", "120", "--public", "40"]
    assert main([*command, "--preview", str(sheet)]) == 0
    assert "120 private, 40 public" in capsys.readouterr().out
    assert sheet.read_bytes().startswith(b"\x89PNG")
    assert main([*command, "--preview", str(tmp_path)]) == 2
    assert "--preview" in capsys.readouterr().err
    assert main(["data", "glyf"]) == 2
    assert "glyph" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--trials", "0"], ["--confidence", "2.0"], ["--shrink", "0.0"]])
def test_audit_names_the_option_that_is_wrong(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *option]) == 2
    assert f"error: {' '.join(option)}: must be" in capsys.readouterr().err


def test_audit_passes_the_mechanisms_and_catches_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--seed", "1", "--trials", "4000"]) == 0
    assert "FAULT" not in capsys.readouterr().out
    assert main(["audit", "--seed", "1", "--trials", "4000", "--shrink", "0.5"]) == 6
    assert "FAULT" in capsys.readouterr().out
    assert main(["audit", "--trials", "0"]) == 2

"""`pate-fed ledger` and `report`: a run directory from the outside, and every mistake with its code."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from report_page import Page
from saved_runs import events, save_run

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
    assert main(["ledger", "verify", str(run_dir), "--unsealed", "--format", "json"]) == 0
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


def test_a_run_without_a_seal_is_verified_and_said_to_have_none(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", "verify", str(run_dir)]) == 6
    told = capsys.readouterr()
    assert "intact, 3 rows" in told.out and f"error: {run_dir}: no seal.json: the run was cut off" in told.err
    assert main(["ledger", "verify", str(run_dir), "--unsealed"]) == 0


def test_the_rows_are_events_that_dp_accounting_takes_and_adds_up_to_no_less(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    assert main(["ledger", "export", str(run_dir), "--dp-accounting"]) == 0
    found = json.loads(capsys.readouterr().out)
    accountant = RdpAccountant(
        neighboring_relation=library.NeighboringRelation[found["neighboring_relation"]]
    )
    for row in found["rows"]:
        for each in row["events"]:
            event = getattr(library, each["event"])(each["noise_multiplier"])
            accountant.compose(event, each["count"])
    theirs = accountant.get_epsilon(found["delta"])
    # Noisy totals tell more than outcomes do, and not twice as much.
    assert found["spent"] <= theirs <= 2 * found["spent"]
    multipliers = sorted(each["noise_multiplier"] for each in found["rows"][0]["events"])
    assert multipliers == pytest.approx([4 / 2**0.5, 6])  # a vote moves two totals by one, the check's by one
    assert main(["ledger", "export", str(run_dir)]) == 2
    assert "give --dp-accounting" in capsys.readouterr().err


def test_a_hash_from_elsewhere_is_looked_for(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "verify", str(run_dir), "--unsealed"]) == 0
    head = capsys.readouterr().out.split()[-1]
    assert main(["ledger", "verify", str(run_dir), "--unsealed", "--head", head]) == 0
    assert main(["ledger", "verify", str(run_dir), "--head", "0" * 64]) == 6
    assert "no row has the hash" in capsys.readouterr().err
    assert main(["ledger", "verify", str(run_dir), "--public-key", "1" * 64]) == 6
    assert "was not signed by the key" in capsys.readouterr().err


def test_a_hash_or_key_is_read_in_capitals_and_one_that_is_none_accuses_no_ledger(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", "verify", str(run_dir), "--unsealed"]) == 0
    head = capsys.readouterr().out.split()[-1]
    assert main(["ledger", "verify", str(run_dir), "--unsealed", "--head", head.upper()]) == 0
    for option in ("--head", "--public-key"):
        assert main(["ledger", "verify", str(run_dir), option, head[:12]]) == 2
        assert f"{head[:12]!r}: 64 hex digits are meant" in capsys.readouterr().err


def test_the_copy_to_hand_on_has_nothing_from_private_votes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_run(tmp_path / "run", events())
    for options, name in (((), "report.html"), (("--publishable",), "report-publishable.html")):
        assert main(["report", str(folder), *options]) == 0
        assert capsys.readouterr().out == f"wrote {folder / name}\n"
    whole, copy = (Page((folder / name).read_text(encoding="utf-8")) for name in ("report.html", name))
    assert "12.3" in whole.words and "12.3" not in copy.words


def test_a_report_without_a_ledger_that_passes_its_check_warns(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_run(run_dir / "run", events())
    path = folder / "ledger.sqlite"
    (run_dir / "ledger.sqlite").rename(path)
    assert main(["report", str(folder)]) == 0
    assert not capsys.readouterr().err
    for damage, said in (
        (lambda: path.write_bytes(b"PK"), "does not pass"),
        (path.unlink, "holds no ledger"),
    ):
        damage()
        assert main(["report", str(folder)]) == 0
        told = capsys.readouterr()
        assert told.out == f"wrote {folder / 'report.html'}\n"
        assert told.err.startswith(f"warning: {folder}: ") and said in told.err


def test_a_directory_without_a_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["ledger", "show"], ["ledger", "verify"], ["report"]):
        assert main([*command, str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert str(tmp_path) in error and ("holds no run" in error or "ledger" in error)

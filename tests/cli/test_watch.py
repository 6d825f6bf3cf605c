"""`pate-fed watch`: a run while it goes on, and how it ended."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from saved_runs import LABELS, RECORD, SUMS, events, make_outcome, make_study, save_run

from pate_fed.cli import watch
from pate_fed.report.log import RunLog, Waiting
from pate_fed.report.result import LeftOut
from pate_fed.report.watching import read_snapshot, snapshot_rows
from pate_fed.runtime.signals import INTERRUPTED

Run = Callable[..., Any]


def test_a_finished_run_is_shown_once(run: Run, tmp_path: Path) -> None:
    done = run("watch", str(save_run(tmp_path / "run", events())))
    lines = done.out.splitlines()
    assert done.code == 0 and not done.err
    assert lines[0].startswith("study: made-up (glyph, 3 classes") and "ε never above 3.5" in lines[0]
    assert lines[1] == "left out: hospital-7 (vote): no answer within 600 s"
    assert lines[2] == "ready: 10 of 10 hospitals in 10 s"
    assert lines[4] == "released: 100 labels of 150 queries; ε 3 spent so far"
    assert lines[-2] == "by class: 0 42, 1 35, 2 23"  # the columns of the confusion matrix
    assert lines[-1].startswith("SUCCESS  ε=3.5")
    assert not any(private in done.out for private in ("45.7", "2.346", "0.4567", "12.3"))


def test_a_run_under_way_is_followed_to_its_end(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sleep something more is written; half a line waits until it is whole."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "study.toml").write_text(make_study().to_toml(), encoding="utf-8")
    told, seen = events(), list[int]()

    def go_on(_: float) -> None:
        seen.append(len(seen))
        if not told:
            raise AssertionError("the run is over, and it is watched on")
        with RunLog(folder / "log.jsonl") as log:
            log.write(told.pop(0))
        if len(seen) == 2:
            with (folder / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write('{"event": "relea')

    monkeypatch.setattr("time.sleep", go_on)
    done = run("watch", str(folder))
    assert done.code == 0 and not told and len(seen) == len(events())
    assert done.out.count("released:") == 1 and done.out.count("epoch ") == 8
    assert done.out.splitlines()[-1].startswith("SUCCESS")


def test_the_picture_says_what_is_going_on(tmp_path: Path) -> None:
    folder = save_run(tmp_path / "run", events()[:9])
    now = read_snapshot(folder)
    assert now is not None and not now.over
    rows = dict(snapshot_rows(now))
    assert rows["phases"] == (
        "✓ get ready (10 in 10 s)   ✓ answer (9 hospitals)   ✓ release (100 labels)   ▶ learn (epoch 3)"
    )
    assert rows["run"].startswith("begun ") and "last heard of" in rows["run"]
    assert rows["ready"] == "10 of 10 hospitals in 10 s"
    assert rows["privacy"].endswith("ε 3 spent, never above 3.5, at δ = 1e-5")
    assert rows["privacy"].count("█") == 26  # 3 / 3.5 of 30
    assert rows["labels"] == "100 of 200 after 150 of 1,500 queries"
    assert rows["student"].startswith("▁") and "outcome" not in rows
    text = io.StringIO()
    Console(file=text, width=100).print(watch._picture(now, folder))
    assert "hospital-7 (vote): no answer within 600 s" in text.getvalue()


def test_who_has_not_answered_yet_is_told_by_name(run: Run, tmp_path: Path) -> None:
    early = Waiting(phase="vote", asked=10, answered=0, patience_s=600.0)
    late = Waiting(phase="vote", asked=10, answered=8, missing=("hospital-2", "hospital-7"), patience_s=600.0)
    folder = save_run(tmp_path / "run", [*events()[:3], early, late])
    now = read_snapshot(folder)
    assert now is not None
    rows = dict(snapshot_rows(now))
    told = "8 of 10 hospitals answered (vote); not yet: hospital-2, hospital-7; they have 10 min 00 s"
    assert rows["waits for"] == told and "▶ answer (8 of 10)" in rows["phases"]
    whole = [*events()[:3], early, late, *events()[3:]]
    now = read_snapshot(save_run(tmp_path / "over", whole))
    assert now is not None and "waits for" not in dict(snapshot_rows(now))
    lines = run("watch", str(tmp_path / "over")).out.splitlines()
    assert [line for line in lines if line.startswith("waiting")] == [f"waiting: {told}"]


@pytest.mark.parametrize(
    ("record", "phase"), [(RECORD, "▶ get ready (1 of 3)"), (LABELS, "▶ answer (1 of 3)")]
)
def test_who_is_not_connected_yet_is_told_by_name(run: Run, tmp_path: Path, record: Any, phase: str) -> None:
    here = Waiting(
        phase="connect",
        asked=3,
        answered=1,
        present=("north",),
        missing=("west",),
        not_admitted=1,
        patience_s=60.0,
    )
    folder = save_run(tmp_path / "run", [record, here])
    now = read_snapshot(folder)
    assert now is not None
    rows, told = (
        dict(snapshot_rows(now)),
        "1 of 3 connected (north); not yet: west; not admitted yet: 1; they have 1 min 00 s",
    )
    assert rows["waits for"] == told and phase in rows["phases"]
    lines = run("watch", str(save_run(tmp_path / "over", [record, here, make_outcome()]))).out.splitlines()
    assert f"waiting: {told}" in lines


@pytest.mark.parametrize("record", [SUMS, LABELS])
def test_other_kinds_of_study(run: Run, tmp_path: Path, record: Any) -> None:
    done = run("watch", str(save_run(tmp_path / "run", events(record))))
    assert done.code == 0 and done.out.splitlines()[-1].startswith("SUCCESS")


def test_names_cannot_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    left = LeftOut(party="a\x1b[2Jb", phase="vote", reason="late")
    done = run("watch", str(save_run(tmp_path / "run", [RECORD, left, make_outcome()])))
    assert "left out: a [2Jb (vote): late" in done.out and "\x1b" not in done.out


def test_ctrl_c_ends_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    folder = save_run(tmp_path / "run", events()[:3])
    before = (folder / "log.jsonl").read_bytes()
    done = run("watch", str(folder))
    assert done.code == INTERRUPTED and done.err == "interrupted\n"
    assert (folder / "log.jsonl").read_bytes() == before


def test_what_is_no_run_is_one_sentence(run: Run, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        done = run("watch", str(folder))
        assert done.code == 2 and "holds no run" in done.err and len(done.err.splitlines()) == 1

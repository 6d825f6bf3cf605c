"""`pate-fed hospital log`: the log in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clients.log import HospitalLog
from pate_fed.cli.demo import HOSPITALS
from pate_fed.protocol.messages import Refusal


def test_a_hospitals_log_in_words(tmp_path: Path, run: Any) -> None:
    log = HospitalLog(tmp_path)
    log.note("taught", teacher=0)
    log.note("answered", asks="votes", rows=30, bytes=480, question="ab")
    log.note("handled", seconds=4.454343)
    log.note("sent", message_type="query.answer", bytes=1589)
    log.note("sent", message_type="query.end", bytes=400)
    log.note("ended", status="aborted")
    log.note("policy", reason="POLICY_DAY", sentence="too many today: 3 more")
    log.note("refused", reason="POLICY_DAY")
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"time": 1, "eve')
    code, out, _ = run("hospital", "log", str(tmp_path))
    lines = out.splitlines()
    assert code == 0
    assert lines[-1] == "in all: 30 rows answered (votes), 1 request refused, 1,989 bytes sent, 1 line cut"
    for line, words in zip(
        lines,
        (
            "trained teacher 1",
            "answered: 30 rows of votes",
            "took 4.5 s",
            "1589 bytes",
            "400 bytes",
            "the coordinator was interrupted",
            "3 more",
            Refusal.POLICY_DAY.value,
        ),
        strict=False,
    ):
        assert words in line
    code, out, _ = run("hospital", "log", str(tmp_path), "--format", "json")
    assert json.loads(out.splitlines()[-1])["bytes"] == 1989


def test_sums_and_answers_about_labels_are_answers(tmp_path: Path, run: Any) -> None:
    HospitalLog(tmp_path).note("answered", asks="class-sums", rows=48, bytes=768, question="ab")
    out = run("hospital", "log", str(tmp_path)).out.splitlines()
    assert "answered: 48 rows of class-sums" in out[0]
    assert out[1] == "in all: 48 rows answered (class-sums), 0 requests refused, 0 bytes sent"
    for event in ("answered", "answered again"):
        HospitalLog(tmp_path / "labels").note(event, asks="private-labels", rows=60, question="ab")
    *_, told = run("hospital", "log", str(tmp_path / "labels")).out.splitlines()
    assert told == "in all: 60 rows answered (private-labels), 0 requests refused, 0 bytes sent"
    *_, total = run("hospital", "log", str(tmp_path), "--format", "json").out.splitlines()
    assert json.loads(total)["rows"] == {"class-sums": 48}


def test_a_coordinators_words_do_not_steer_the_terminal(tmp_path: Path, run: Any) -> None:
    log = HospitalLog(tmp_path)
    log.note("sent", message_type="query.\x1b[2J", bytes=3)
    log.note("policy", reason="POLICY_CLASSES", sentence="the classes a\x1b[31m are not listed")
    out = run("hospital", "log", str(tmp_path)).out
    assert "sent 3 bytes" in out and "are not listed" in out and "\x1b" not in out


def test_verify_says_what_holds_and_what_does_not(tmp_path: Path, demonstration: Path, run: Any) -> None:
    identity = demonstration / f"identity-{HOSPITALS[0]}"
    log = HospitalLog(tmp_path, key=identity / "hospital.key")
    for queries in (3, 4):
        log.note("answered", asks="votes", rows=queries)
    command = ("hospital", "log", str(tmp_path), "--verify", "--dir", str(identity))
    code, out, _ = run(*command)
    assert code == 0
    assert "chain: 2 lines, whole and in order" in out and "end: no line is missing" in out
    assert out.splitlines()[-1] == f"verified: whole, in order, signed by {HOSPITALS[0]}, without a receipt"
    code, out, _ = run("hospital", "log", str(tmp_path), "--verify")  # nothing says whose it is
    assert code == 0 and "not verified: no signature was checked" in out
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    code, out, _ = run(*command)
    assert code == 6 and "PROBLEM: line 1 does not follow" in out and "NOT verified" in out
    assert json.loads(run(*command, "--format", "json").out)["broken"]


def test_a_log_is_found_by_its_studys_name(tmp_path: Path, monkeypatch: Any, run: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for place in ("lungs-1", "hearts-2"):
        state = tmp_path / "pate_fed" / place / "north"
        state.mkdir(parents=True)
        (state / "hospital.json").write_text("{}")
        (state / "terms.json").write_text(json.dumps({"study": place.partition("-")[0]}))
        HospitalLog(state).note("answered", asks="votes", rows=len(place))
    assert "answered: 7 rows of votes" in run("hospital", "log", "lungs").out
    code, _, err = run("hospital", "log", "bones")
    assert code == 2 and "known: hearts, lungs" in err
    (tmp_path / "pate_fed" / "hearts-2" / "north" / "terms.json").write_text('{"study": "lungs"}')
    code, _, err = run("hospital", "log", "lungs")
    assert code == 2 and "more than one" in err

"""A hospital with an admission: what is wrong with its records is said before it connects to anyone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import make_label_terms
from vote_study import make_vote_study

from clients.log import HospitalLog
from clients.process import HospitalProcess, _described
from pate_fed.client import main, make_parser
from pate_fed.errors import IntegrityError
from pate_fed.flower.transport import Exchange
from pate_fed.identity import Authority, HospitalIdentity, make_request
from pate_fed.protocol.messages import ANSWER, END, JOIN, Record, record_digest


def _thousands(text: str) -> str:
    """The first column in one row as 1.234 in a file of semicolons, which may be 1234."""
    head, *rows = text.replace(",", ";").replace(".", "").splitlines()
    place = head.split(";").index("mean radius")
    cells = rows[0].split(";")
    cells[place] = "1.234"
    return "\n".join([head, ";".join(cells), *rows[1:]])


def _one_patient(text: str) -> str:
    head, *rows = text.splitlines()
    return "\n".join([head, *("P1" + row[row.index(",") :] for row in rows)])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vote_study(tmp_path_factory.mktemp("own") / "demo", teachers=20).folder


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_thousands, "column mean radius: 1.234 may be 1234 or 1.234"),
        (_one_patient, "records are one patient's: is that the column of patients?"),
        (lambda text: text.replace("benign", "good", 1), "column diagnosis is none of the classes"),
    ],
)
def test_records_that_cannot_be_used_connect_to_nobody(
    demo: Path,
    spoil: Callable[[str], str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATE_FED_SITE", "")  # which the client sets
    records = tmp_path / "records.csv"
    records.write_text(spoil((demo / "north.csv").read_text(encoding="utf-8")), encoding="utf-8")
    options = ["--hospital", "north", "--data", str(records), "--tls-dir", str(demo / "identity-north")]
    assert main([*options, "--state-dir", str(tmp_path / "state")]) == 2
    shown = capsys.readouterr()
    assert f"error: {records}" in shown.err and words in shown.err
    assert "connecting" not in shown.err
    assert shown.out == "FAILED  hospital=north wrong input\n"


@pytest.mark.parametrize("name", ["", "log.jsonl", "flower"])
def test_a_state_directory_that_is_read_only_connects_to_nobody(
    demo: Path,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATE_FED_SITE", "")
    state, allowed = tmp_path / "state", os.access
    state.mkdir()
    (state / "log.jsonl").touch()
    (state / "flower").mkdir()
    closed = state / name
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and allowed(path, mode))
    options = ["--hospital", "north", "--data", str(demo / "north.csv"), "--state-dir", str(state)]
    assert main([*options, "--tls-dir", str(demo / "identity-north")]) == 2
    shown = capsys.readouterr()
    assert f"error: {closed}: cannot be written by this user" in shown.err and "connecting" not in shown.err


def test_records_that_cannot_be_reached_are_named(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATE_FED_SITE", "")
    options = ["--hospital", "north", "--tls-dir", str(demo / "identity-north")]
    assert main([*options, "--data", "n" * 300]) == 2
    assert "nnn: cannot be read (File name too long)" in capsys.readouterr().err


def test_labels_that_cannot_be_used_connect_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATE_FED_SITE", "")
    terms = make_label_terms()
    authority = Authority.init(tmp_path / "ca", address="127.0.0.1:9", terms=terms.to_json(), days=90)
    authority.admit(make_request(tmp_path / "own", "north"), days=90).write(tmp_path / "north.admission")
    HospitalIdentity.offered(tmp_path / "own", tmp_path / "north.admission").take()
    labels = tmp_path / "labels.csv"
    labels.write_text("index,label\n4,0\n99,2\n")
    options = ["--hospital", "north", "--data", str(labels), "--tls-dir", str(tmp_path / "own")]
    assert main([*options, "--state-dir", str(tmp_path / "state")]) == 2
    shown = capsys.readouterr()
    assert "be from 0 to 49" in shown.err and "connecting" not in shown.err


def _end(code: int) -> Exchange:
    """The coordinator's notice that the study is over, answered."""
    request = {"status": "success" if code == 0 else "aborted", "exit_code": code, "summary": "ε=1"}
    reply = {"kind": "ended", "party": "north"}
    return Exchange(message_type=END, request=request, reply=reply, seconds=0.1, bytes_out=9)


def _serve(
    demo: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, brought: Iterable[Exchange]
) -> tuple[int, HospitalProcess]:
    """A hospital that is brought these requests and no others; its exit code."""
    options = ["--hospital", "north", "--data", str(demo / "north.csv"), "--state-dir", str(folder / "state")]
    arguments = make_parser().parse_args([*options, "--tls-dir", str(demo / "identity-north")])
    made, left = HospitalProcess(arguments, threading.Event()), iter(brought)
    monkeypatch.setattr(made, "_answer", lambda node: next(left))
    connection: Any = SimpleNamespace(
        node=None,
        watch=lambda: None,
        may_have_request=lambda: True,
        note_answered=lambda: None,
        wait_until_sent=lambda seconds: None,
    )
    return made._serve(connection), made


def test_an_interrupted_coordinator_is_waited_for(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _serve(demo, tmp_path, monkeypatch, [_end(130), _end(0)])[0] == 0
    shown = capsys.readouterr()
    assert shown.err.count("the coordinator ended before the study and may go on; waiting") == 1
    assert "ABORTED" not in shown.out and shown.out.startswith("SUCCESS  hospital=north")
    assert _serve(demo, tmp_path, monkeypatch, [_end(4)])[0] == 4


def _voted(batch: int) -> Exchange:
    """Three votes, as an answer to a batch."""
    reply = {
        "kind": "answer",
        "party": "north",
        "batch_digest": f"{batch:064}",
        "answer": np.eye(3, dtype=np.int64),
    }
    request = {"index": np.arange(3)}
    return Exchange(message_type=ANSWER, request=request, reply=reply, seconds=0.1, bytes_out=9)


def test_an_answer_that_is_sent_again_is_said_to_be(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").mkdir()
    log = HospitalLog(tmp_path / "state")

    def answers() -> Iterator[Exchange]:
        for event, batch in (("answered", 1), ("answered", 2), ("answered again", 2)):
            done = _voted(batch)
            log.note(event, asks="votes", rows=3, bytes=24, question=str(batch))
            log.note("handled", seconds=0.1, kind="answer", sha256=record_digest(done.reply))
            yield done
        yield _end(0)

    _serve(demo, tmp_path, monkeypatch, answers())
    shown = capsys.readouterr()
    told = [line.partition(" rows")[0] for line in shown.err.splitlines() if "answered" in line]
    assert told == ["north: answered: 3", "north: answered: 3", "north: answered again: 3"]
    assert " answered=6 " in shown.out  # by its log, whichever process answered


def test_an_old_copy_of_its_state_ends_it_with_what_to_do(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    HospitalLog(tmp_path / "state").note("policy", reason="OLDER", sentence="a backup was put back: do this")
    refused = {"kind": "refused", "party": "north", "code": "OLDER"}
    done = Exchange(message_type=ANSWER, request={}, reply=refused, seconds=0.1, bytes_out=9)
    with pytest.raises(IntegrityError, match="put back: do this") as raised:
        _serve(demo, tmp_path, monkeypatch, [done])
    assert raised.value.exit_code == 6


def test_sums_that_were_given_are_in_the_outcome(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").mkdir()
    HospitalLog(tmp_path / "state").note("answered", asks="class-sums", rows=48, bytes=768, question="ab")
    _serve(demo, tmp_path, monkeypatch, [_end(0)])
    out = capsys.readouterr().out
    assert " answered=48 " in out


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ({"kind": "refused", "party": "north", "code": "POLICY"}, "code that is not this hospital's"),
        ({"kind": "refused", "party": "north", "code": "MALFORMED"}, "cannot be read was sent"),
        ({}, "cannot be read was sent"),
    ],
)
def test_what_could_not_be_read_is_told_as_it_was(reply: Record, told: str) -> None:
    done = Exchange(message_type=JOIN, request=None, reply=reply, seconds=1.0, bytes_out=9)
    assert told in (_described(done) or "")

"""The hospital's ClientApp: each message in becomes one reply out, and no text of an error leaves."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Message

import clients.app
from clients.app import note_sent, refuse_bundle
from clients.state_dir import LOCAL_SITE, SITE_VARIABLE, LocalSettings
from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.protocol.messages import (
    ANSWER,
    END,
    JOIN,
    SUM,
    Record,
    RefusalReply,
    SumReply,
    SumRequest,
    parse_reply,
    record_digest,
)


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a real hospital."""
    state = tmp_path / "state"
    LocalSettings(hospital="north", data="north.csv", state_dir=state).write(tmp_path / LOCAL_SITE)
    monkeypatch.setenv(SITE_VARIABLE, str(tmp_path / LOCAL_SITE))
    return state


def _send(message_type: str, record: Record | None = None) -> object:
    grid = InlineGrid(clients.app.app, num_nodes=1)
    [node] = grid.get_node_ids()
    [reply] = grid.send_and_receive([Message(to_flower(record or {"kind": "junk"}), node, message_type)])
    assert not reply.has_error()
    return parse_reply(from_flower(reply.content))


@pytest.mark.parametrize("message_type", [JOIN, ANSWER, SUM, END])
def test_junk_of_every_kind_is_refused_as_malformed(message_type: str, real: Path) -> None:
    reply = _send(message_type)
    assert reply == RefusalReply(party="north", code="MALFORMED")
    assert "handled" in (real / "log.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("message_type", [JOIN, ANSWER])
def test_a_hospital_that_cannot_be_opened_says_so_without_a_word_of_why(
    message_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / LOCAL_SITE).write_text(json.dumps({"hospital": "Ann Smith"}))
    monkeypatch.setenv(SITE_VARIABLE, str(tmp_path / LOCAL_SITE))
    assert _send(message_type) == RefusalReply(party="unknown", code="FAULT")
    assert capsys.readouterr().err == "a request was not handled: InputError\n"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space left"), MemoryError(), ValueError("Ann")])
def test_a_fault_that_may_pass_is_told_from_another(
    error: Exception, real: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("clients.hospital.Hospital.sum_step", fail)
    code = "FAULT" if isinstance(error, ValueError) else "LATER"
    request = SumRequest(
        terms_digest="0" * 64, batch=0, index=np.arange(3), measured=0, given=b"", roster=b"", step=b"x"
    )
    assert _send(SUM, request.to_record()) == RefusalReply(party="north", code=code)


def test_nothing_leaves_whose_line_is_not_on_the_disk(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A masked vector that is made already waits for room; the line is synced before it goes."""
    reply = SumReply(party="north", step=b"a masked vector")
    monkeypatch.setattr("clients.hospital.Hospital.sum_step", lambda *_: reply)
    request = SumRequest(
        terms_digest="0" * 64, batch=0, index=np.arange(3), measured=0, given=b"", roster=b"", step=b"x"
    )
    sync, full = os.fsync, True

    def fsync(handle: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, "no space left")
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    assert _send(SUM, request.to_record()) == RefusalReply(party="north", code="LATER")
    full = False
    assert _send(SUM, request.to_record()) == reply
    last = json.loads((real / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert (last["event"], last["sha256"]) == ("handled", record_digest(reply.to_record()))


def test_what_was_sent_and_what_was_refused_unread_is_in_the_hospitals_own_log(real: Path) -> None:
    reply = refuse_bundle({})
    assert parse_reply(reply) == RefusalReply(party="north", code="POLICY")
    note_sent({}, message_type=ANSWER, bytes_out=12, reply=reply)
    lines = (real / "log.jsonl").read_text(encoding="utf-8").splitlines()
    refused, unread, sent = map(json.loads, lines)
    assert (sent["event"], sent["message_type"], sent["bytes"]) == ("sent", ANSWER, 12)
    assert (unread["event"], refused["event"]) == ("bundle refused", "refused")
    assert unread["sha256"] == sent["sha256"] == record_digest(reply)

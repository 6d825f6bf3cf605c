"""The check of a hospital's log finds every change, and says what it cannot vouch for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_terms

from clients.log import HEAD_FILE, LOG_FILE, HospitalLog, keep_receipt
from clients.log_check import LogCheck, check_log
from pate_fed.errors import InputError, IntegrityError
from pate_fed.identity import Authority, HospitalIdentity
from pate_fed.identity.admission import ADMISSION_FILE
from pate_fed.identity.keys import KEY_FILE, Receipt
from pate_fed.protocol.messages import EndReply, JoinReply, Refusal, RefusalReply, record_digest

TERMS = make_terms()


SENT = [
    JoinReply(party="north", terms_digest=TERMS.digest, enrolment=bytes(number)).to_record()
    for number in (1, 2)
]
END = EndReply(party="north").to_record()


def _log(state: Path, identity: Path | None) -> HospitalLog:
    return HospitalLog(state, key=None if identity is None else identity / KEY_FILE)


def _write(state: Path, identity: Path | None) -> None:
    log = _log(state, identity)
    for record in (*SENT, END):
        log.note("handled", kind=str(record["kind"]), sha256=record_digest(record), seconds=1.0)
        log.note("sent", message_type="query.answer", bytes=400, sha256=record_digest(record))


def _receipt(authority: Authority, *digests: str) -> str:
    found = Receipt(hospital="north", terms_digest=TERMS.digest, received=digests)
    return found.signed(authority.ledger_key())


@pytest.fixture
def state(tmp_path: Path, admitted: tuple[Authority, Path]) -> Path:
    """A state directory with a signed log of two messages and a receipt of both."""
    authority, identity = admitted
    _write(tmp_path, identity)
    digests = [record_digest(record) for record in SENT]
    keep_receipt(tmp_path, _receipt(authority, *digests), identity)
    return tmp_path


def test_a_whole_log_is_verified(state: Path, admitted: tuple[Authority, Path]) -> None:
    found = check_log(state, admitted[1])
    assert found.broken == []
    assert found.verdict == "verified: whole, in order, signed by north, with the coordinator's receipt"
    assert (found.lines, found.signed, found.confirmed) == (6, 6, 2)
    assert "receipt: the coordinator confirms 2 of 2 messages" in found.holds


def _check(state: Path, identity: Path, content: bytes) -> LogCheck:
    (state / LOG_FILE).write_bytes(content)
    return check_log(state, identity)


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_that_is_changed_is_found(
    step: int, state: Path, admitted: tuple[Authority, Path]
) -> None:
    content = (state / LOG_FILE).read_bytes()
    for place in (*range(0, len(content), step), len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1 << (place % 7)
        assert _check(state, admitted[1], bytes(changed)).broken, place
    assert not _check(state, admitted[1], content).broken


def test_lines_that_are_removed_repeated_or_reordered_are_found(
    state: Path, admitted: tuple[Authority, Path]
) -> None:
    content = (state / LOG_FILE).read_bytes()
    lines = content.splitlines(keepends=True)
    for number in range(len(lines)):
        without = lines[:number] + lines[number + 1 :]
        twice = lines[: number + 1] + lines[number:]
        swapped = lines[:number] + lines[number + 1 : number + 2] + [lines[number]] + lines[number + 2 :]
        for made in (without, twice, *([swapped] if number + 1 < len(lines) else [])):
            assert _check(state, admitted[1], b"".join(made)).broken, number
        # Shortened by whoever takes the head away, too.
        (state / HEAD_FILE).rename(state / "aside")
        assert _check(state, admitted[1], b"".join(lines[:number])).broken
        (state / "aside").rename(state / HEAD_FILE)


def test_what_is_missing_is_counted_not_what_stands_behind_it(
    state: Path, admitted: tuple[Authority, Path]
) -> None:
    lines = (state / LOG_FILE).read_bytes().splitlines(keepends=True)
    one = _check(state, admitted[1], b"".join(lines[1:]))  # of the first message; that of the second stands
    assert len(one.broken) == 2 and one.broken[1].startswith("the coordinator received 1 message that")
    both = _check(state, admitted[1], b"".join(lines[3:]))
    assert both.broken[1].startswith("the coordinator received 2 messages that")
    other = _check(state, admitted[1], b"".join([*lines[:1], *lines[2:]]))  # a line of no message of its own
    assert len(other.broken) == 1 and other.confirmed is None


def test_a_log_that_was_written_anew_without_the_key_is_found(
    state: Path, admitted: tuple[Authority, Path]
) -> None:
    (state / LOG_FILE).unlink()
    _write(state, None)  # a whole chain, by whoever has no key
    assert "no line is signed by north" in check_log(state, admitted[1]).broken
    # As an earlier release would have written it.
    old = [json.loads(line) for line in (state / LOG_FILE).read_text().splitlines()]
    plain = [{name: each[name] for name in each if name not in ("before", "sha256")} for each in old]
    (state / LOG_FILE).write_text("".join(json.dumps(each) + "\n" for each in plain))
    assert check_log(state, admitted[1]).broken
    (state / HEAD_FILE).unlink()
    assert check_log(state, admitted[1]).broken  # the receipt tells of more


def test_a_log_of_its_first_line_alone_is_not_whole(tmp_path: Path, admitted: tuple[Authority, Path]) -> None:
    """Whoever takes all lines but one away takes the head away, too."""
    _write(tmp_path, admitted[1])
    first, *_ = (tmp_path / LOG_FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / HEAD_FILE).unlink()
    found = _check(tmp_path, admitted[1], first)
    assert found.verdict.startswith("NOT verified") and "lines may have been removed" in found.broken[0]


@pytest.mark.parametrize("changes", [{"hospital": "east"}, {"terms_digest": "11" * 32}])
def test_a_receipt_for_something_else_confirms_nothing(
    changes: dict[str, str], tmp_path: Path, admitted: tuple[Authority, Path]
) -> None:
    authority, identity = admitted
    _write(tmp_path, identity)
    found = Receipt(hospital="north", terms_digest=TERMS.digest, received=(record_digest(SENT[0]),))
    text = replace(found, **changes).signed(authority.ledger_key())
    (tmp_path / "receipt-0.json").write_text(text)
    assert "another hospital's or another study's" in check_log(tmp_path, identity).broken[0]


@pytest.mark.parametrize("damage", ["signature", "digest"])
def test_a_receipt_that_was_changed_is_found(
    damage: str, state: Path, admitted: tuple[Authority, Path]
) -> None:
    [path] = state.glob("receipt-*.json")
    values = json.loads(path.read_text())
    if damage == "digest":
        values["received"] = values["received"][:1]
    else:
        values["signature"] = values["signature"][::-1]
    path.write_text(json.dumps(values))
    assert "not signed by the study's coordinator" in check_log(state, admitted[1]).broken[0]


def test_what_the_coordinator_did_not_get_is_said_and_a_refusal_needs_no_line(
    tmp_path: Path, admitted: tuple[Authority, Path]
) -> None:
    authority, identity = admitted
    _write(tmp_path, identity)
    assert check_log(tmp_path, identity).verdict.endswith("without a receipt")
    refused = RefusalReply(party="north", code=Refusal.FAULT.name)
    received = (record_digest(SENT[0]), record_digest(refused.to_record()))
    keep_receipt(tmp_path, _receipt(authority, *received), identity)
    found = check_log(tmp_path, identity)
    assert not found.broken and found.confirmed == 1
    assert "1 it does not confirm" in found.holds[-1]
    unheard = replace(JoinReply.from_record(SENT[0]), enrolment=b"9").to_record()
    keep_receipt(tmp_path, _receipt(authority, record_digest(unheard)), identity)
    assert "received 1 message that the log has no line of" in check_log(tmp_path, identity).broken[0]


def test_what_was_cut_short_stands_for_no_message(tmp_path: Path, admitted: tuple[Authority, Path]) -> None:
    """Whoever has the key could else leave a message out, and put its digest where nobody reads it."""
    authority, identity = admitted
    log, (first, second) = _log(tmp_path, identity), map(record_digest, SENT)
    log.note("handled", kind="ready", sha256=first, seconds=1.0)
    keep_receipt(tmp_path, _receipt(authority, first, second), identity)
    path, torn = tmp_path / LOG_FILE, json.dumps({"kind": "ready", "sha256": second})
    whole = path.read_bytes()
    missed = "the coordinator received 1 message that the log has no line of: lines were removed"
    assert _check(tmp_path, identity, whole + torn.encode()).broken == [missed]
    log.note("end")  # the piece is now in the middle
    assert check_log(tmp_path, identity).broken == [missed]


def test_a_line_that_was_cut_short_is_told_and_the_rest_holds(
    tmp_path: Path, admitted: tuple[Authority, Path]
) -> None:
    identity = admitted[1]
    _write(tmp_path, identity)
    path, head = tmp_path / LOG_FILE, (tmp_path / HEAD_FILE).read_bytes()
    _log(tmp_path, identity).note("voted", queries=4)
    path.write_bytes(path.read_bytes()[:-30])
    (tmp_path / HEAD_FILE).write_bytes(head)  # the crash came before it was written
    found = check_log(tmp_path, identity)
    assert found.verdict.startswith("verified") and (found.lines, found.cut) == (6, 1)
    _log(tmp_path, identity).note("voted", queries=5)
    found = check_log(tmp_path, identity)
    assert found.verdict.startswith("verified") and (found.lines, found.cut) == (8, 1)
    content = path.read_bytes()
    place = content.index(b'"queries": 4') + 11  # what is left of the line that was cut is held, too
    assert _check(tmp_path, identity, content[:place] + b"9" + content[place + 1 :]).broken


def test_of_an_older_log_nothing_is_claimed(tmp_path: Path, admitted: tuple[Authority, Path]) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "log.jsonl").write_text('{"time": 1.0, "event": "joined"}\n', encoding="utf-8")
    HospitalLog(state, key=admitted[1] / "hospital.key").record("asked")
    for identity in (None, admitted[1]):
        found = check_log(state, identity)
        assert found.verdict.startswith("NOT verified")
        assert "line 1 is none that this log's hospital wrote with this release" in found.broken[0]


def test_without_an_identity_the_chain_alone_is_checked(tmp_path: Path) -> None:
    _write(tmp_path, None)
    found = check_log(tmp_path, None)
    assert found.verdict == "chain whole, but not verified: no signature was checked"
    content = (tmp_path / LOG_FILE).read_bytes()
    (tmp_path / LOG_FILE).write_bytes(content.replace(b"400", b"401", 1))
    assert check_log(tmp_path, None).broken
    with pytest.raises(InputError, match="holds no log"):
        check_log(tmp_path / "nowhere", None)


def test_an_admission_of_an_earlier_release_names_no_key(
    tmp_path: Path, admitted: tuple[Authority, Path]
) -> None:
    _, identity = admitted
    for path in identity.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / path.name).chmod(0o600)
    values = json.loads((tmp_path / ADMISSION_FILE).read_text())
    older = {name: values[name] for name in values if not name.startswith("ledger")}
    (tmp_path / ADMISSION_FILE).write_text(json.dumps(older))
    assert HospitalIdentity.open(tmp_path).check("north") != ["?"]
    _write(tmp_path / "state", tmp_path)
    assert check_log(tmp_path / "state", tmp_path).verdict.endswith("without a receipt")
    (tmp_path / ADMISSION_FILE).write_text(json.dumps({**values, "ledger_key": "00" * 32}))
    with pytest.raises(IntegrityError, match="ledger key in the admission is not signed"):
        HospitalIdentity.open(tmp_path).check("north")

"""Old copies: a hospital or a coordinator that was put back from a backup is found."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kinds import HOSPITALS, NoisyVotes

from clients.log import LOG_FILE, HospitalLog, read_events
from clients.trail import TRAIL_FILE, Trail
from pate_fed.errors import IntegrityError
from pate_fed.protocol.heads import LEDGER, Head, Statement, heads_text, read_heads
from pate_fed.protocol.messages import Question, Refusal, RefusalReply
from pate_fed.secure_sum import Identity
from pate_fed.secure_sum.messages import BatchShares

TERMS = "0" * 64


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NoisyVotes:
    """Five hospitals that have answered one question of five inputs under masks."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    made = NoisyVotes(tmp_path)
    made.close()
    made.total(_part(made, 0))
    return made


def _part(kind: NoisyVotes, batch: int) -> Question:
    return kind.question(batch, np.arange(5 * batch, 5 * batch + 5))


def _code(reply: Any) -> str:
    assert isinstance(reply, RefusalReply), reply
    return reply.code


def _backup(kind: NoisyVotes, number: int) -> Path:
    state = kind.settings[number].state_dir
    copy = state.with_name(f"backup-{state.name}")
    shutil.copytree(state, copy)
    return copy


def _put_back(kind: NoisyVotes, number: int, copy: Path) -> None:
    state = kind.settings[number].state_dir
    shutil.rmtree(state)
    shutil.copytree(copy, state)


def _opening(kind: NoisyVotes, question: Question, number: int, **changes: Any) -> Any:
    opened = kind.__dict__.setdefault("opened", {})
    if question.digest not in opened:
        opened[question.digest] = kind.open(question).opening
    return kind.send(number, question, opened[question.digest], **changes)


def test_a_hospital_that_was_put_back_answers_nothing_and_says_what_to_do(kind: NoisyVotes) -> None:
    copy = _backup(kind, 1)
    kind.total(_part(kind, 1))
    _put_back(kind, 1, copy)
    question = _part(kind, 2)
    assert _code(_opening(kind, question, 1)) == "OLDER"
    assert isinstance(_opening(kind, question, 0), BatchShares)
    told = [event for _, event in read_events(kind.settings[1].state_dir) if event and "sentence" in event]
    assert "a backup was put back" in told[-1]["sentence"]
    assert "Put the newest state directory back or leave the study" in told[-1]["sentence"]
    # It stays so, though nobody shows it any more.
    kind.heads = ""
    assert _code(_opening(kind, _part(kind, 3), 1, statement=b"")) == "OLDER"


def test_the_others_find_a_coordinator_that_hides_that_one_was_put_back(kind: NoisyVotes) -> None:
    copy, before = _backup(kind, 1), kind.heads
    old = kind.stated["hospital-1"]
    kind.total(_part(kind, 1))
    _put_back(kind, 1, copy)
    newest = read_heads(kind.heads)
    own = {"statement": old.to_bytes()}
    for number, heads in enumerate(
        (
            before,  # as it was
            heads_text({**newest, "hospital-1": old.head}),
            heads_text({name: head for name, head in newest.items() if name != "hospital-1"}),
            "",
        )
    ):
        kind.heads = heads
        question = _part(kind, 2 + number)
        for other in (0, *range(2, HOSPITALS)):
            assert _code(_opening(kind, question, other, statement=b"")) == "BEHIND"
    # What it shows the one and what the others has two digests, and is no batch that they sign together.
    kind.heads = before
    told = _part(kind, 2)
    kind.show()
    assert told.digest != _part(kind, 2).digest
    assert isinstance(_opening(kind, told, 1, **own), BatchShares)


def test_one_that_was_put_back_within_a_batch_does_not_mask_it_again(kind: NoisyVotes) -> None:
    question = _part(kind, 1)
    batch = kind.open(question)
    for number in range(HOSPITALS):
        batch.take(kind.send(number, question, batch.opening))
    copy = _backup(kind, 1)
    request = batch.mask_requests()["hospital-1"]
    assert not isinstance(kind.send(1, question, request), RefusalReply)
    _put_back(kind, 1, copy)
    assert _code(kind.send(1, question, request)) == "OLDER"


def test_one_that_has_answered_as_much_since_is_found_too(kind: NoisyVotes) -> None:
    state = kind.settings[1].state_dir
    newest = Statement.read(kind.stated["hospital-1"].to_bytes())
    fork = Trail(state, party="hospital-1", key=None)
    trail = (state / TRAIL_FILE).read_bytes()
    (state / TRAIL_FILE).write_bytes(trail[: -32 * 2])
    for number in range(4):
        fork.add(bytes([number]) * 32, terms_digest=TERMS)
    assert (state / TRAIL_FILE).stat().st_size > len(trail)
    assert kind.stated["hospital-1"] == newest
    assert _code(_opening(kind, _part(kind, 1), 1)) == "OLDER"


@pytest.mark.parametrize("now", [Head(2, b"a" * 32), Head(3, b"b" * 32), None])
def test_a_ledger_that_went_back_is_refused_before_anything_leaves(
    now: Head | None, kind: NoisyVotes
) -> None:
    def show(ledger: Head | None) -> Question:
        kind.show()
        rows = {} if ledger is None else {LEDGER: ledger}
        kind.heads = heads_text({**read_heads(kind.heads), **rows})
        return _part(kind, 1 if ledger == Head(3, b"a" * 32) else 2)

    assert isinstance(_opening(kind, show(Head(3, b"a" * 32)), 0), BatchShares)
    assert _code(_opening(kind, show(now), 0)) == "LEDGER"
    assert isinstance(_opening(kind, replace(show(Head(4, b"c" * 32)), batch=3), 0), BatchShares)


def test_an_answer_leaves_only_once_it_is_on_the_trail(
    kind: NoisyVotes, monkeypatch: pytest.MonkeyPatch
) -> None:
    question, order = _part(kind, 1), list[str]()
    real = os.fsync

    def note(handle: int) -> None:
        order.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", note)
        assert isinstance(_opening(kind, question, 0), BatchShares)
    trail = str(kind.settings[0].state_dir / TRAIL_FILE)
    assert order.index(trail) > next(place for place, name in enumerate(order) if "batches.state" in name)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="full"):
            _opening(kind, question, 1)
    assert isinstance(_opening(kind, question, 1), BatchShares)  # the very reply that was kept


def test_the_first_line_of_a_log_is_on_the_disk_with_the_logs_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real = list[str](), os.fsync

    def note(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", note)
    log = HospitalLog(tmp_path, durable=True)
    log.record("answered")
    assert synced == [str(tmp_path / LOG_FILE), str(tmp_path)]
    log.record("answered")
    assert synced[2:] == [str(tmp_path / LOG_FILE)]


def test_a_trail_tells_nothing_of_answers_and_counts_one_once(tmp_path: Path) -> None:
    key, answers = tmp_path / "sum.key", [bytes([number]) * 32 for number in range(3)]
    key.write_bytes(Identity.generate().to_bytes())
    key.chmod(0o600)
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        trail = Trail(tmp_path / name, party="north", key=key)
        made.append([trail.add(answer, terms_digest=TERMS) for answer in answers])
        assert trail.add(answers[-1], terms_digest=TERMS) == made[-1][-1]  # sent again
        with open(tmp_path / name / TRAIL_FILE, "ab") as file:
            file.write(b"cut")
        more = Statement.read(trail.add(answers[0], terms_digest=TERMS))
        assert more.head.count == len(answers) + 1
        assert (tmp_path / name / TRAIL_FILE).stat().st_size == 32 * 5
    heads = {Statement.read(stated).head.value for stated in (*made[0], *made[1])}
    assert len(heads) == 2 * len(answers)  # equal answers, and no equal head


def test_only_what_it_signed_itself_counts_as_its_own_word(tmp_path: Path) -> None:
    key = tmp_path / "sum.key"
    identity = Identity.generate()
    key.write_bytes(identity.to_bytes())
    key.chmod(0o600)
    trail = Trail(tmp_path, party="north", key=key)
    question = Question(terms_digest=TERMS, batch=0, index=np.arange(3))
    said = Statement(head=Head(7, b"x" * 32))
    for forged in (
        said,
        said.signed(Identity.generate(), party="north", terms_digest=TERMS),
        said.signed(identity, party="east", terms_digest=TERMS),
        said.signed(identity, party="north", terms_digest="1" * 64),
    ):
        with pytest.raises(IntegrityError, match="not signed by it"):
            trail.objection(replace(question, statement=forged.to_bytes()), run=b"")
    signed = said.signed(identity, party="north", terms_digest=TERMS).to_bytes()
    found = trail.objection(replace(question, statement=signed), run=b"")
    assert found is not None and found[0] is Refusal.OLDER and "has signed 7 replies" in found[1]
    assert trail.objection(question, run=b"another run") is None


def test_garbage_in_what_was_shown_is_told_as_damage(tmp_path: Path) -> None:
    trail, heads = Trail(tmp_path, party="north", key=None), heads_text({"south": Head(1, bytes(32))})
    question = Question(terms_digest=TERMS, batch=0, index=np.arange(3), heads=heads)
    assert trail.objection(question, run=b"run") is None
    [seen] = tmp_path.glob("seen-*")
    seen.write_bytes(b"\xff\xfe\n\xff\xff")
    with pytest.raises(IntegrityError, match="not readable"):
        trail.objection(question, run=b"run")

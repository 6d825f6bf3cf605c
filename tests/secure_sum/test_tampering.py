"""A flipped bit in any field of any message is noticed, by whoever gets it, and the cause is named."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import (
    CoordinatorSum,
    HospitalSum,
    Identity,
    RefusedError,
    SumRefusal,
    parse_reply,
    parse_request,
)
from pate_fed.secure_sum.codec import pack, unpack
from pate_fed.secure_sum.fields import CHECKS, VERSION
from pate_fed.secure_sum.messages import Reply, Request

VALUES = np.arange(20, dtype=np.int64).reshape(4, 5)


def _flips(value: Any) -> list[Any]:
    """The value with one bit changed: at the start, in the middle, at the end."""
    if isinstance(value, int):
        return [value ^ 1, value ^ (1 << 20)]
    raw = value.encode() if isinstance(value, str) else value.tobytes() if _is_array(value) else value
    changed = []
    for at in sorted({0, len(raw) // 2, len(raw) - 1}):
        data = bytearray(raw)
        data[at] ^= 1
        changed.append(bytes(data))
    if isinstance(value, str):
        return [data.decode() for data in changed]
    return [np.frombuffer(data, dtype=value.dtype) for data in changed] if _is_array(value) else changed


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _ran(federation: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Four hospitals, and the first one's requests and replies outside a batch, by kind."""
    parties = federation(4)
    requests = {"sum.enrol": parties.coordinator.enrol_request(), "sum.roster": parties.roster}
    replies = {
        "sum.enrolment": parties.hospitals["hospital-0"].enrolment,
        "sum.pinned": parties.ask("hospital-0", parties.roster),
        "sum.refused": parties.hospitals["hospital-0"].refuse(SumRefusal.FAULT),
    }
    return parties, requests, replies


def _hear(parties: Any, name: str, record: Any) -> None:
    parties.hospitals[name].answer(parse_request(record), lambda: VALUES[0])


@pytest.mark.parametrize("step", ["enrol", "roster", "share", "mask", "consent", "unmask"])
def test_a_hospital_notices_every_flipped_bit(step: str, federation: Any) -> None:
    parties = federation(4)
    if step in ("enrol", "roster"):
        good = parties.coordinator.enrol_request() if step == "enrol" else parties.roster
    else:
        before = {"share": None, "mask": "share", "consent": "mask", "unmask": "consent"}[step]
        batch = parties.until(before, VALUES) if before else parties.open(5)
        good = parties.requests(batch, step, parties.names)["hospital-0"]
    state = parties.hospitals["hospital-0"].progress_state()
    tried = 0
    for field, value in good.to_record().items():
        for bad in _flips(value):
            with pytest.raises(RefusedError) as caught:
                _hear(parties, "hospital-0", {**good.to_record(), field: bad})
            assert caught.value.reason is not SumRefusal.FAULT
            tried += 1
    assert tried > 3 * len(good.to_record()) - 6
    assert parties.hospitals["hospital-0"].progress_state() == state
    parties.ask("hospital-0", good, VALUES[0])


@pytest.mark.parametrize("step", ["share", "mask", "consent", "unmask"])
def test_the_coordinator_notices_every_flipped_bit(step: str, federation: Any) -> None:
    parties = federation(4)
    batch = parties.open(5)
    before = {"mask": "share", "consent": "mask", "unmask": "consent"}.get(step)
    if before:
        batch = parties.until(before, VALUES, batch=batch)
    requests = parties.requests(batch, step, parties.names)
    replies = {name: parties.ask(name, requests[name], VALUES[i]) for i, name in enumerate(parties.names)}
    good = replies["hospital-1"].to_record()
    for field, value in good.items():
        for bad in _flips(value):
            with pytest.raises(IntegrityError):
                batch.take(parse_reply({**good, field: bad}))
    for reply in replies.values():
        batch.take(reply)
    later = ("share", "mask", "consent", "unmask")
    for rest in later[later.index(step) + 1 :]:
        for name, request in parties.requests(batch, rest, parties.names).items():
            batch.take(parties.ask(name, request, VALUES[parties.names.index(name)]))
    np.testing.assert_array_equal(batch.total(), VALUES.sum(axis=0))


def test_enrolments_and_pins_with_flipped_bits_are_refused(federation: Any) -> None:
    parties, _, replies = _ran(federation)
    fresh = CoordinatorSum(parties.coordinator_identity, study=parties.roster.study)
    for kind, take in (
        ("sum.enrolment", fresh.admit),
        ("sum.pinned", parties.coordinator.note_pinned),
        ("sum.refused", parties.coordinator.read_refusal),
    ):
        good = replies[kind].to_record()
        for field, value in good.items():
            for bad in _flips(value):
                with pytest.raises(IntegrityError):
                    take(parse_reply({**good, field: bad}))
        take(parse_reply(good))


def test_a_reply_under_another_name_is_refused(federation: Any) -> None:
    """Swapped identities: a rightly signed message whose name is that of another hospital."""
    parties = federation(4)
    batch = parties.until("share", VALUES)
    reply = parties.ask("hospital-0", batch.mask_requests()["hospital-0"], VALUES[0])
    for bad in (replace(reply, party="hospital-1"), reply.signed(parties.identities["hospital-1"])):
        with pytest.raises(IntegrityError, match=r"hospital-[01] did not sign"):
            batch.take(bad)
    with pytest.raises(IntegrityError, match="nobody is not in the roster"):
        batch.take(replace(reply, party="nobody"))
    batch.take(reply)


def test_duplicates_late_and_early_replies_are_refused(federation: Any) -> None:
    parties = federation(4)
    batch, other = parties.open(5), parties.open(5)
    shares = parties.ask("hospital-0", batch.opening)
    batch.take(shares)
    with pytest.raises(IntegrityError, match="hospital-0 sent a second message"):
        batch.take(shares)
    with pytest.raises(IntegrityError, match="answered another batch"):
        other.take(shares)
    for name in parties.names[1:]:
        batch.take(parties.ask(name, batch.opening))
    vector = parties.ask("hospital-0", batch.mask_requests()["hospital-0"], VALUES[0])
    batch.take(vector)
    with pytest.raises(IntegrityError, match="second"):
        batch.take(vector)
    with pytest.raises(IntegrityError, match="after that step was closed"):
        batch.take(shares)
    with pytest.raises(IntegrityError, match="before that step was opened"):
        other.take(replace(vector, **other.opening.head))


def test_a_hospital_declared_lost_cannot_come_back(federation: Any) -> None:
    parties = federation(4)
    batch = parties.until("share", VALUES)
    requests = batch.mask_requests()
    replies = [parties.ask(name, requests[name], VALUES[i]) for i, name in enumerate(parties.names)]
    for reply in replies[:3]:
        batch.take(reply)
    notice = batch.survivor_notice()
    assert batch.survivors == ("hospital-0", "hospital-1", "hospital-2")
    with pytest.raises(IntegrityError, match=r"hospital-3 sent .* after that step was closed"):
        batch.take(replies[3])
    with pytest.raises(RefusedError) as caught:
        parties.ask("hospital-3", notice)
    assert caught.value.reason is SumRefusal.SURVIVORS


def test_wrong_shares_void_the_batch_and_are_said_to_be_wrong(federation: Any) -> None:
    for lost, what in (([], "self-mask"), ([3], "pair seeds")):
        parties = federation(4)
        batch = parties.until("consent", VALUES, drop={"mask": lost})
        request = batch.unmask_request()
        present = [name for i, name in enumerate(parties.names) if i not in lost]
        for name in present:
            reply = parties.ask(name, request)
            if name == "hospital-0":
                wrong = bytearray(reply.shares)
                wrong[-34 if lost else 0] ^= 1
                reply = replace(reply, shares=bytes(wrong)).signed(parties.identities[name])
            batch.take(reply)
        with pytest.raises(IntegrityError, match=f"{what} do not fit .*nothing is unmasked"):
            batch.total()
        with pytest.raises(IntegrityError, match="VOID"):
            batch.total()


def test_messages_of_a_newer_version_are_refused_with_a_sentence(federation: Any) -> None:
    _, requests, replies = _ran(federation)
    for parse, messages in ((parse_request, requests), (parse_reply, replies)):
        for message in messages.values():
            newer = {**message.to_record(), "version": VERSION + 1, "a field of the future": b""}
            with pytest.raises(
                RefusedError, match=r"version 2 .*this program version 1: update this"
            ) as caught:
                parse(newer)
            assert caught.value.reason is SumRefusal.VERSION
    with pytest.raises(RefusedError, match="update the other side's program"):
        parse_request({**requests["sum.roster"].to_record(), "version": 0})


def test_records_that_no_message_makes_are_refused(federation: Any) -> None:
    _, requests, replies = _ran(federation)
    for parse, messages in ((parse_request, requests), (parse_reply, replies)):
        for message in messages.values():
            good = message.to_record()
            bad: list[Any] = [{**good, "extra": 1}, {**good, "kind": "votes"}, {**good, "kind": 3}, {}]
            bad += [{name: value for name, value in good.items() if name != gone} for gone in good]
            bad += [{**good, name: value} for name in good for value in (None, 1.5, True, [1], np.zeros(3))]
            for record in bad:
                with pytest.raises(RefusedError):
                    parse(record)


def test_every_field_of_every_message_has_a_check() -> None:
    for kind in (*Request.__args__, *Reply.__args__):
        assert {entry.name for entry in fields(kind)} <= set(CHECKS)


def test_the_codec_is_exact_and_refuses_damage() -> None:
    record = {
        "a": -(2**63),
        "b": "α",
        "c": b"\0\1",
        "d": np.arange(3, dtype="<u4"),
        "e": np.empty(0, dtype="<i8"),
        "f": np.array([65_535], dtype="<u2"),
    }
    data = pack(record)
    again = unpack(data)
    assert pack(again) == data and list(again) == list(record)
    np.testing.assert_array_equal(again["d"], record["d"])
    for size in range(1, len(data)):
        if data[:size] not in {pack(dict(list(record.items())[:count])) for count in range(len(record))}:
            with pytest.raises(IntegrityError):
                unpack(data[:size])
    for bad in (True, 2**63, 1.0, None, np.zeros((2, 2), dtype="<i8"), np.zeros(2)):
        with pytest.raises(IntegrityError, match="'x'"):
            pack({"x": bad})  # type: ignore[dict-item]
    with pytest.raises(IntegrityError):
        unpack(pack({"b": 1}) + pack({"a": 1}))


def test_a_damaged_or_foreign_state_is_refused(federation: Any) -> None:
    parties = federation(4)
    parties.until("mask", VALUES)
    machine, own = parties.hospitals["hospital-0"], parties.identities["hospital-0"]
    study, progress = machine.study_state(), machine.progress_state()
    good = {"study_state": study, "progress_state": progress}
    HospitalSum.restore(own, **good)
    for bad in (
        {**good, "study_state": study[:-1]},
        {**good, "progress_state": progress[:40] + bytes([progress[40] ^ 1]) + progress[41:]},
        {**good, "progress_state": b""},
        {"study_state": progress, "progress_state": study},
    ):
        with pytest.raises(IntegrityError, match="saved state"):
            HospitalSum.restore(own, **bad)
    with pytest.raises(IntegrityError, match="another identity"):
        HospitalSum.restore(Identity.generate(), **good)

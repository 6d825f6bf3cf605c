"""A flipped bit in any field of any message is noticed, by whoever gets it, and the cause is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import (
    CoordinatorSum,
    RefusedError,
    SumRefusal,
    read_reply,
    read_request,
)
from pate_fed.secure_sum.keys import pack

VALUES = np.arange(20, dtype=np.int64).reshape(4, 5)


def _flips(value: Any) -> list[Any]:
    """The value with one bit changed: at the start, in the middle, at the end."""
    if isinstance(value, bytes) and not value:
        return []
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


def _hear(parties: Any, name: str, record: Any) -> None:
    parties.hospitals[name].answer(read_request(pack(record)), lambda: VALUES[0])


@pytest.mark.parametrize("step", ["enrol", "roster", "share", "mask", "consent", "unmask"])
def test_a_hospital_notices_every_flipped_bit(step: str, federation: Any) -> None:
    parties = federation(4)
    if step in ("enrol", "roster"):
        good = parties.coordinator.enrol_request() if step == "enrol" else parties.pin("hospital-0")
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
    assert tried > 3 * len(good.to_record()) - 9
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
                batch.take(read_reply(pack({**good, field: bad})))
    for reply in replies.values():
        batch.take(reply)
    later = ("share", "mask", "consent", "unmask")
    for rest in later[later.index(step) + 1 :]:
        for name, request in parties.requests(batch, rest, parties.names).items():
            batch.take(parties.ask(name, request, VALUES[parties.names.index(name)]))
    np.testing.assert_array_equal(batch.total(), VALUES.sum(axis=0))


def test_enrolments_and_pins_with_flipped_bits_are_refused(outside_a_batch: Any) -> None:
    parties, _, replies = outside_a_batch
    fresh = CoordinatorSum(parties.coordinator_identity, study=parties.roster.study, places=4)
    for kind, take in (
        ("sum.enrolment", fresh.admit),
        ("sum.pinned", parties.coordinator.note_pinned),
        ("sum.refused", parties.coordinator.read_refusal),
    ):
        good = replies[kind].to_record()
        for field, value in good.items():
            for bad in _flips(value):
                with pytest.raises(IntegrityError):
                    take(read_reply(pack({**good, field: bad})))
        take(read_reply(pack(good)))


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

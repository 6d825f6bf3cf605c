"""Messages: versions, and records that no message makes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import RefusedError, SumRefusal, read_reply, read_request
from pate_fed.secure_sum.keys import pack
from pate_fed.secure_sum.messages import (
    CHECKS,
    VERSION,
    BatchOpening,
    MaskRequest,
    Reply,
    Request,
    ShareEvidence,
)


def test_messages_of_a_newer_version_are_refused_with_a_sentence(outside_a_batch: Any) -> None:
    _, requests, replies = outside_a_batch
    for read, messages in ((read_request, requests), (read_reply, replies)):
        for message in messages.values():
            newer = {**message.to_record(), "version": VERSION + 1, "a field of the future": b""}
            with pytest.raises(
                RefusedError, match=r"version 4 .*this program version 3: update this"
            ) as caught:
                read(pack(newer))
            assert caught.value.reason is SumRefusal.VERSION
    with pytest.raises(RefusedError, match="update the other side's program"):
        read_request(pack({**requests["sum.pin"].to_record(), "version": 0}))


@pytest.mark.parametrize("wrong", [[1, 0, 2], [0, 0, 1], [-1, 0, 1], [0, 1, 2**40], []])
def test_positions_rise_and_are_in_a_roster(wrong: list[int], seven: Any) -> None:
    request = seven.until("share", np.zeros((7, 5), dtype=np.int64)).mask_requests()["hospital-0"]
    record = request.to_record()
    read_request(pack(record))
    with pytest.raises(IntegrityError, match="increasing int64 array of positions"):
        read_request(pack({**record, "sharers": np.array(wrong, dtype=np.int64)}))


def test_records_that_no_message_makes_are_refused(outside_a_batch: Any) -> None:
    _, requests, replies = outside_a_batch
    for read, messages in ((read_request, requests), (read_reply, replies)):
        for message in messages.values():
            good = message.to_record()
            bad: list[Any] = [{**good, "extra": 1}, {**good, "kind": "votes"}, {**good, "kind": 3}, {}]
            bad += [{**good, "kind": np.zeros(3, dtype=np.int64)}]
            bad += [{name: value for name, value in good.items() if name != gone} for gone in good]
            for record in bad:
                with pytest.raises(RefusedError):
                    read(pack(record))
            fields = [name for name in good if name != "kind"]
            bad = [{**good, name: value} for name in fields for value in (None, 1.5, True, [1], np.zeros(3))]
            for record in bad:  # what no bytes hold
                with pytest.raises(RefusedError):
                    type(message).from_record(record)


def test_every_field_of_every_message_has_a_check() -> None:
    for kind in (*Request.__args__, *Reply.__args__):
        assert {entry.name for entry in fields(kind)} <= set(CHECKS)


VALUES = np.arange(35, dtype=np.int64).reshape(7, 5)


def test_a_second_roster_is_refused_and_the_first_may_come_again(seven: Any) -> None:
    seven.ask("hospital-0", seven.pin("hospital-0"))
    seven.refused("hospital-0", seven.pin("hospital-0", threshold=6), SumRefusal.ROSTER_CHANGED)


def test_two_rosters_for_two_hospitals_let_no_share_through(federation: Any) -> None:
    parties = federation(7, pin=False)
    other = parties.signed(parties.roster, threshold=6)
    shares, opening = {}, None
    for name in parties.names:
        roster = parties.roster if name == "hospital-0" else other
        parties.ask(name, parties.pin(name, **({} if name == "hospital-0" else {"threshold": 6})))
        opening = BatchOpening(
            roster=roster.digest.hex(), batch=0, batch_digest="cd" * 32, attempt=0, length=5, bits=32
        ).signed(parties.coordinator_identity)
        shares[name] = parties.ask(name, opening)
    # Its place is another one's in their roster: a complaint there would open what it sealed here.
    request = MaskRequest(
        **{**opening.head, "roster": parties.roster.digest.hex()},
        party="hospital-0",
        sharers=np.arange(7, dtype=np.int64),
        pinned=b"".join(reply.pinned for reply in shares.values()),
        dealt=b"".join(reply.digest for reply in shares.values()),
        commitments=b"".join(reply.commitments[:32] for reply in shares.values()),
        sealed=b"".join(reply.sealed[:84] for reply in shares.values()),
    )
    parties.refused("hospital-0", parties.signed(request), SumRefusal.DEALT, VALUES[0])


def test_every_near_sharer_must_have_pinned_the_roster(seven: Any) -> None:
    requests = seven.until("share", VALUES).mask_requests()
    for place, name in enumerate(seven.names):
        pinned = bytearray(requests[name].pinned)
        pinned[64 * ((place + 1) % 7)] ^= 1
        seven.refused(name, seven.signed(requests[name], pinned=bytes(pinned)), SumRefusal.DEALT, VALUES[0])


def test_a_message_of_an_earlier_batch_draws_out_no_key(seven: Any) -> None:
    """The key of a pair opens what the two sealed for each other in every batch of the study."""
    before, finished = {}, seven.open(5)
    for name in seven.names:
        before[name] = seven.ask(name, finished.opening)
    request = seven.until("share", VALUES).mask_requests()["hospital-0"]
    old = before["hospital-1"]
    dealt, sealed, commitments = (
        bytearray(request.dealt),
        bytearray(request.sealed),
        bytearray(request.commitments),
    )
    dealt[32:64] = old.digest
    part = old.part(0)
    sealed[len(part[0]) : 2 * len(part[0])], commitments[len(part[1]) : 2 * len(part[1])] = part
    changes = {"dealt": bytes(dealt), "sealed": bytes(sealed), "commitments": bytes(commitments)}
    doubt = seven.ask("hospital-0", seven.signed(request, **changes), VALUES[0])
    assert (doubt.kind, doubt.doubted) == ("sum.doubt", 1)
    evidence = ShareEvidence(**doubt.head, party="hospital-0", message=old.to_bytes())
    seven.refused("hospital-0", seven.signed(evidence), SumRefusal.DEALT)


def test_a_batch_before_the_roster_is_refused(federation: Any, seven: Any) -> None:
    parties = federation(7, pin=False)
    parties.refused("hospital-0", seven.open(5).opening, SumRefusal.ROSTER_STALE)


def test_a_batch_is_opened_once_by_number_and_by_digest(seven: Any) -> None:
    batch = seven.until("share", VALUES)
    for changes in ({"batch": 99}, {"batch_digest": "cd" * 32}, {"length": 6}):
        request = seven.signed(batch.opening, **changes)
        seven.refused("hospital-0", request, SumRefusal.BATCH_REPEATED)


def test_another_digest_voids_the_batch(seven: Any) -> None:
    batch = seven.until("mask", VALUES)
    notice = batch.survivor_notice()
    other = seven.signed(notice, batch_digest="cd" * 32)
    seven.refused("hospital-0", other, SumRefusal.BATCH_CHANGED)
    seven.refused("hospital-0", notice, SumRefusal.BATCH_VOID)


def test_an_unknown_batch_and_a_stale_roster_are_refused(seven: Any, federation: Any) -> None:
    notice = seven.until("mask", VALUES).survivor_notice()
    seven.refused("hospital-0", seven.signed(notice, batch=77), SumRefusal.BATCH_UNKNOWN)
    seven.refused("hospital-0", seven.signed(notice, roster="cd" * 32), SumRefusal.ROSTER_STALE)
    federation(7).refused("hospital-0", notice, SumRefusal.ROSTER_STALE)


def test_a_refusal_is_signed_and_from_the_fixed_list(seven: Any) -> None:
    refusal = seven.hospitals["hospital-0"].refuse(SumRefusal.CONSENT)
    assert seven.coordinator.read_refusal(refusal) is SumRefusal.CONSENT
    with pytest.raises(IntegrityError, match="hospital-1 is not signed"):
        seven.coordinator.read_refusal(replace(refusal, party="hospital-1"))
    unknown = replace(refusal, code="MY_PATIENT_IS_ANN").signed(seven.identities["hospital-0"])
    assert seven.coordinator.read_refusal(unknown) is SumRefusal.FAULT

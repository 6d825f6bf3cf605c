"""Dealing: sealed shares of fresh secrets, and which of them a hospital opens."""

from __future__ import annotations

import hashlib
import secrets
import struct
from typing import Any, cast

import numpy as np
import pytest

from pate_fed.secure_sum import SumRefusal, dealing
from pate_fed.secure_sum.keys import ExchangeKey


def test_sealed_shares_and_commitments_differ_between_batches_and_runs(federation: Any) -> None:
    seen: list[bytes] = []
    for _run in range(2):
        parties = federation(4)
        for _batch in range(2):
            for name, request in dict.fromkeys(parties.names, parties.open(4).opening).items():
                reply = parties.ask(name, request)
                size = len(reply.sealed) // 4
                rows = [reply.sealed[at : at + size] for at in range(0, 4 * size, size)]
                seen += [row for row in rows if row != bytes(size)]
                seen += [reply.commitment, reply.seeds]
    assert len(set(seen)) == len(seen) == 2 * 2 * 4 * 5


VALUES = np.arange(35, dtype=np.int64).reshape(7, 5)


@pytest.mark.parametrize("sharers", [[0, 1, 2, 3], [1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 9]])
def test_sharers_must_be_enough_and_members(sharers: Any, seven: Any) -> None:
    batch = seven.until("share", VALUES)
    good = batch.mask_requests()["hospital-0"]
    cut = {
        name: getattr(good, name)[: len(getattr(good, name)) // 7 * len(sharers)]
        for name in ("sealed", "commitments", "dealt")
    }
    request = seven.signed(good, sharers=np.array(sharers, dtype=np.int64), **cut)
    seven.refused("hospital-0", request, SumRefusal.SHARERS, VALUES[0])
    seven.refused("hospital-0", good, SumRefusal.BATCH_VOID, VALUES[0])


def test_a_share_that_the_coordinator_forged_names_nobody(seven: Any) -> None:
    """Its sender has signed another one, which opens: the coordinator broke the protocol, and is left."""
    batch = seven.until("share", VALUES)
    good = batch.mask_requests()["hospital-0"]
    size = len(good.sealed) // 7
    changed = bytearray(good.sealed)
    changed[3 * size] ^= 1
    doubt = seven.ask("hospital-0", seven.signed(good, sealed=bytes(changed)))
    assert (doubt.kind, doubt.doubted) == ("sum.doubt", 3)
    batch.take(doubt)
    evidence = batch.evidence()["hospital-0"]
    seven.refused("hospital-0", evidence, SumRefusal.DEALT)
    seven.refused("hospital-0", good, SumRefusal.BATCH_VOID, VALUES[0])
    assert not batch.verdicts


def test_a_share_outside_the_field_is_of_no_use(seven: Any) -> None:
    seat = seven.hospitals["hospital-3"]._state.seat
    head = seven.open(5).opening.head
    opener = dealing.ShareOpener(seat.members, head, 0)
    shares = bytes(66) + b"\xff\xff"  # 34 bytes each of both secrets; the last limb is 65535
    commit = dealing.batch_label(seat.members, head).commit_shares()
    places = np.array([[3, 0, 0], [3, 0, 1]])
    with pytest.raises(dealing.UnusableShareError):
        opener.check_all([3], [shares], commit(places, shares))
    opener.check_all([3], [bytes(68)], commit(places, bytes(68)))


def test_commitments_in_bulk_are_those_of_single_shares(seven: Any) -> None:
    members = seven.hospitals["hospital-3"]._state.seat.members
    commit = dealing.batch_label(members, seven.open(6).opening.head).commit_shares()
    [head] = cast(Any, commit).args
    places, shares = np.array([[3, 0, 0], [70_000, 258, 1], [0, 6, 1]]), secrets.token_bytes(3 * 34)
    each = [
        hashlib.sha256(struct.pack(">32sIIB", head, *place) + shares[34 * row : 34 * row + 34])
        for row, place in enumerate(places.tolist())
    ]
    assert commit(places, shares) == b"".join(hash_.digest()[:16] for hash_ in each)


def test_of_many_shares_the_first_that_is_of_no_use_is_named(seven: Any) -> None:
    seat = seven.hospitals["hospital-3"]._state.seat
    opener = dealing.ShareOpener(seat.members, seven.open(7).opening.head, 0)
    senders, shares = [1, 2, 4], [bytes([number]) * 68 for number in range(3)]
    commitments = opener._commit(dealing._places(senders, [0]), b"".join(shares))
    opener.check_all(senders, shares, commitments)
    for row, sender in enumerate(senders):
        for wrong in (b"\xff" * 68, bytes(67), bytes(66) + b"ab"):
            others = [wrong if place >= row else share for place, share in enumerate(shares)]
            with pytest.raises(dealing.UnusableShareError) as raised:
                opener.check_all(senders, others, commitments)
            assert raised.value.sender == sender
    with pytest.raises(dealing.UnusableShareError):
        opener.check_all(senders, shares, commitments[:-1])


def test_shares_of_another_batch_or_for_another_hospital_are_not_used(seven: Any) -> None:
    first, second = seven.until("share", VALUES), seven.until("share", VALUES)
    one, two = first.mask_requests(), second.mask_requests()
    stale = seven.signed(one["hospital-0"], sealed=two["hospital-0"].sealed)
    swapped = seven.signed(two["hospital-0"], sealed=two["hospital-1"].sealed)
    for request in (stale, swapped):
        assert seven.ask("hospital-0", request).kind == "sum.doubt"
    seven.refused("hospital-0", one["hospital-1"], SumRefusal.SHARERS, VALUES[0])


def _sit(parties: Any, names: list[str], played: dealing.PlayedSeats) -> list[dealing.Seat]:
    """The seats of some hospitals that take them in this order; what each agreed on by itself is the same."""
    seats = []
    for name in names:
        machine = parties.hospitals[name]
        members, own = parties.coordinator.members, machine._state.exchange_key
        place, sealing, request = members.positions[name], machine._state.sealing, parties.pin(name)
        machine.pin(request, played=played)
        column = dealing.sealing_column(members, place, request)
        alone, seat = dealing.take_seat(members, place, own, sealing, column), machine._state.seat
        assert (seat.secrets, seat.seals) == (alone.secrets, alone.seals)
        seats.append(seat)
    return seats


def test_hospitals_of_one_process_agree_once_and_on_the_same(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties, played, count = federation(5, pin=False), dealing.PlayedSeats(), list[bytes]()
    agree = ExchangeKey.agree
    monkeypatch.setattr(
        ExchangeKey, "agree", lambda key, other, **named: count.append(other) or agree(key, other, **named)
    )
    _sit(parties, parties.names[::-1], played)
    assert len(count) == 2 * (5 * 4 + 5 * 4 // 2)  # by themselves, for the comparison; and together
    assert not played._waiting  # all sit: nothing is kept


def test_of_two_rosters_one_is_kept_and_no_secret_is_shown(federation: Any) -> None:
    first, second, played = federation(4, pin=False), federation(3, pin=False), dealing.PlayedSeats()
    _sit(first, first.names[:2], played)
    assert sorted(played.of(first.coordinator.members, 2)) == [0, 1]
    assert not played.of(first.coordinator.members, 2)  # once
    _sit(second, second.names[:1], played)
    assert list(played.of(second.coordinator.members, 1)) == [0]
    _sit(first, first.names[2:], played)  # as if it were alone
    assert repr(played) == "PlayedSeats(2 of one roster, secrets=<hidden>)"

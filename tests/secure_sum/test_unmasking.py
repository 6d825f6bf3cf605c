"""Unmasking: one set of survivors, one share a hospital, and no second sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import Demands, Identity, RefusedError, SumRefusal
from pate_fed.secure_sum.messages import (
    UnmaskRequest,
    consent_digest,
    sharing_view,
)

FOUR = np.arange(20, dtype=np.int64).reshape(4, 5)


def test_wrong_shares_are_thrown_away_with_their_senders_name(federation: Any) -> None:
    for lost in ([], [4]):
        parties = federation(5 + bool(lost))
        values = np.arange(5 * len(parties.names), dtype=np.int64).reshape(-1, 5)
        batch = parties.until("consent", values, drop={"mask": lost})
        request = batch.unmask_request()
        present = [name for i, name in enumerate(parties.names) if i not in lost]
        for name in present:
            reply = parties.ask(name, request)
            if name != "hospital-0":
                batch.take(reply)
                continue
            wrong = bytearray(reply.shares)
            wrong[34 * 4 if lost else 0] ^= 1
            with pytest.raises(IntegrityError, match="hospital-0 sent shares that are not those it was"):
                batch.take(parties.lie(reply, shares=bytes(wrong)))
        np.testing.assert_array_equal(batch.total(), values.sum(axis=0) - values[lost].sum(axis=0))


@pytest.mark.parametrize(("lost", "field", "what"), [([], "commitment", "self-mask"), ([3], "seeds", "pair")])
def test_who_deals_shares_of_no_one_secret_is_named_and_ends_the_batch(
    lost: list[int], field: str, what: str, federation: Any
) -> None:
    parties = federation(4)
    batch = parties.open(5)
    for name in parties.names:
        reply = parties.ask(name, batch.opening)
        wrong = {field: bytes(len(getattr(reply, field)))}
        batch.take(parties.lie(reply, **wrong) if name == "hospital-3" else reply)
        parties.hospitals[name]._batches[0].own = batch._dealt[parties.names.index(name)].digest
    for step in ("mask", "consent", "unmask"):
        present = [name for i, name in enumerate(parties.names) if i not in lost]
        requests = parties.requests(batch, step, present)
        for name in present:
            batch.take(parties.ask(name, requests[name], FOUR[0]))
    with pytest.raises(IntegrityError, match=f"hospital-3 dealt shares of its {what}.*nothing is unmasked"):
        batch.total()
    with pytest.raises(IntegrityError, match="VOID"):
        batch.total()


VALUES = np.arange(35, dtype=np.int64).reshape(7, 5)


def _swap(data: bytes, size: int) -> bytes:
    return data[size : 2 * size] + data[:size] + data[2 * size :]


def test_a_batch_is_never_unmasked_again(seven: Any) -> None:
    batch = seven.until("consent", VALUES)
    request = batch.unmask_request()
    for name in seven.names:
        batch.take(seven.ask(name, request))
    np.testing.assert_array_equal(batch.total(), VALUES.sum(axis=0))
    fewer = seven.signed(request, consenting=request.consenting[:-1], consents=request.consents[:-64])
    seven.refused("hospital-0", fewer, SumRefusal.UNMASKED)
    seven.refused("hospital-0", batch.opening, SumRefusal.BATCH_REPEATED)


def test_a_second_set_of_survivors_voids_the_batch(seven: Any) -> None:
    """The sums over a set and over the set without one hospital would give that hospital's vector."""
    batch = seven.until("mask", VALUES)
    notice = batch.survivor_notice()
    smaller = seven.signed(notice, survivors=np.array([0, 1, 2, 3, 4], dtype=np.int64))
    first = seven.ask("hospital-0", notice)
    batch.take(first)
    seven.repeated("hospital-0", notice, first)
    seven.refused("hospital-0", smaller, SumRefusal.EQUIVOCATION)
    seven.refused("hospital-0", smaller, SumRefusal.BATCH_VOID)


def test_two_sets_for_two_groups_unmask_nothing(seven: Any) -> None:
    """Equivocation: half of the hospitals sign one set, half another; neither has enough signatures."""
    batch = seven.until("mask", VALUES)
    full = batch.survivor_notice()
    smaller = seven.signed(full, survivors=np.arange(6, dtype=np.int64))
    halves = [(name, full) for name in seven.names[:3]] + [(name, smaller) for name in seven.names[3:6]]
    consents = b"".join(seven.ask(name, notice).signature for name, notice in halves)
    request = UnmaskRequest(**batch.opening.head, consenting=np.arange(6, dtype=np.int64), consents=consents)
    for name in seven.names[:6]:
        seven.refused(name, seven.signed(request), SumRefusal.CONSENT)
        seven.refused(name, seven.signed(request), SumRefusal.BATCH_VOID)


@pytest.mark.parametrize(
    "case", ["too few", "a stranger's", "one twice", "swapped", "no survivor's", "short"]
)
def test_unmasking_needs_the_survivors_own_signatures(case: str, federation: Any) -> None:
    parties = federation(7)
    batch = parties.until("consent", VALUES, drop={"mask": [6]})
    good = batch.unmask_request()
    signers, consents = good.consenting, good.consents
    stranger = Identity.generate().sign(b"x" * 32)
    bad = {
        "too few": (signers[:4], consents[: 4 * 64]),
        "a stranger's": (signers, consents[:-64] + stranger),
        "one twice": (signers, consents[:-64] + consents[:64]),
        "swapped": (signers, _swap(consents, 64)),
        "no survivor's": (np.append(signers, 6), consents + consents[:64]),
        "short": (signers, consents[:-64]),
    }[case]
    request = parties.signed(good, consenting=bad[0], consents=bad[1])
    parties.refused("hospital-0", request, SumRefusal.CONSENT)
    parties.refused("hospital-0", good, SumRefusal.BATCH_VOID)


def _split(parties: Any, colluders: int) -> tuple[list[str], list[str]]:
    """Who gives shares when the coordinator shows two sets of survivors to two groups of honest hospitals.

    The last `colluders` sign whatever they are asked to; hospital-0 is in one set and not in the other.
    """
    names, batch = parties.names, parties.until("mask", VALUES)
    dealt = b"".join(batch._dealt[n].digest for n in range(7))
    full = batch.survivor_notice()
    smaller = parties.signed(full, survivors=np.arange(1, 7, dtype=np.int64))
    honest, helpful = [[], []], ([], [])  # type: ignore[var-annotated]
    for number, name in enumerate(names[: 7 - colluders]):
        honest[number % 2].append(name)
    sharers = np.arange(7, dtype=np.int64)
    for side, notice in enumerate((full, smaller)):
        text = consent_digest(sharing_view(batch.opening, sharers, dealt), notice.survivors)
        signed = {names.index(name): parties.ask(name, notice).signature for name in honest[side]}
        signed |= {n: parties.identities[names[n]].sign(text) for n in range(7 - colluders, 7)}
        request = UnmaskRequest(
            **batch.opening.head,
            consenting=np.array(sorted(signed), dtype=np.int64),
            consents=b"".join(signed[number] for number in sorted(signed)),
        )
        for name in honest[side]:
            try:
                parties.ask(name, parties.signed(request))
                helpful[side].append(name)
            except RefusedError as error:
                assert error.reason is SumRefusal.CONSENT
    return helpful


def test_few_colluders_do_not_get_two_sums(federation: Any) -> None:
    """Seven hospitals, five must sign: fewer than 2 * 5 - 7 = 3 colluders get one sum at most."""
    for colluders in range(3):
        helpful = _split(federation(7), colluders)
        assert not (helpful[0] and helpful[1])


def test_the_bound_on_colluders_is_tight_and_every_signature_lifts_it(federation: Any) -> None:
    helpful = _split(federation(7), 3)
    assert helpful[0] and helpful[1]
    for colluders in range(6):
        helpful = _split(federation(7, demands=Demands(every_signature=True)), colluders)
        assert not (helpful[0] and helpful[1])


def test_one_share_a_hospital_and_never_both(federation: Any) -> None:
    parties = federation(7)
    batch = parties.until("consent", VALUES, drop={"mask": [2]})
    held = parties.hospitals["hospital-0"]._batches[0].held.copy()
    reply = parties.ask("hospital-0", batch.unmask_request())
    revealed = np.frombuffer(reply.shares, dtype="<u2").reshape(7, -1)
    for row in range(7):
        kind = 1 if row == 2 else 0
        np.testing.assert_array_equal(revealed[row], held[row, kind])
        assert held[row, 1 - kind].astype("<u2").tobytes() not in reply.shares


def test_every_signature_may_be_demanded(federation: Any) -> None:
    demands = Demands(every_signature=True)
    parties = federation(7, demands=demands)
    np.testing.assert_array_equal(parties.total(VALUES, drop={"mask": [2]}), VALUES.sum(0) - VALUES[2])
    with pytest.raises(RefusedError) as caught:
        parties.total(VALUES, drop={"consent": [2]})
    assert caught.value.reason is SumRefusal.CONSENT


@pytest.mark.parametrize(
    ("survivors", "drop"),
    [([0, 1, 2, 3], []), ([1, 2, 3, 4, 5, 6], []), ([0, 1, 2, 3, 4, 6], [6]), ([0, 1, 2, 3, 4, 9], [])],
)
def test_survivors_must_be_enough_and_have_shared(survivors: Any, drop: Any, seven: Any) -> None:
    batch = seven.until("mask", VALUES, drop={"share": drop})
    notice = batch.survivor_notice()
    request = seven.signed(notice, survivors=np.array(survivors, dtype=np.int64))
    seven.refused("hospital-0", request, SumRefusal.SURVIVORS)
    seven.refused("hospital-0", notice, SumRefusal.BATCH_VOID)

"""Blame that is true: everyone comes to the same name, and no attempt follows another one for nothing."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.secure_sum import RefusedError, SumRange, SumRefusal
from pate_fed.secure_sum.blame import Proof, SignedKey, judge, pack_proofs, read_proofs
from pate_fed.secure_sum.dealing import ShareOpener, UnusableShareError, agree_seal
from pate_fed.secure_sum.keys import ExchangeKey, HashTree, unpack
from pate_fed.secure_sum.messages import SEALED_BYTES, Complaint, ShareDoubt, UnmaskRequest

N, LIAR = 5, 3
VALUES = np.arange(5 * N, dtype=np.int64).reshape(N, 5)
DIGEST = "ef" * 32


def _open(parties: Any, attempt: int = 0, proof: bytes = b"") -> Any:
    return parties.coordinator.open_batch(
        batch=0, batch_digest=DIGEST, length=5, sum_range=SumRange.noisy(), attempt=attempt, proof=proof
    )


def _wrong_seal(reply: Any, *victims: int) -> dict[str, bytes]:
    sealed = bytearray(reply.sealed)
    for victim in victims:
        sealed[SEALED_BYTES * victim] ^= 1
    return {"sealed": bytes(sealed)}


def _share(parties: Any, batch: Any, *victims: int) -> None:
    """All share; the liar seals wrongly for the victims."""
    for number, name in enumerate(parties.names):
        if name in batch.invited:
            reply = parties.ask(name, batch.opening)
            if number == LIAR and victims:
                reply = parties.lie(reply, **_wrong_seal(reply, *victims))
                parties.hospitals[name]._batches[0].own = reply.digest
            batch.take(reply)


def _given_up(parties: Any, *victims: int) -> Any:
    """The first attempt, which the liar broke."""
    batch = _open(parties)
    _share(parties, batch, *victims)
    for name, request in batch.mask_requests().items():
        batch.take(parties.ask(name, request, VALUES[parties.names.index(name)]))
    for name, request in batch.evidence().items():
        batch.take(parties.ask(name, request))
    return batch


def _finish(parties: Any, batch: Any) -> Any:
    for requests in batch.rounds():
        for name, request in requests.items():
            batch.take(parties.ask(name, request, VALUES[parties.names.index(name)]))
    return batch.total()


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("victims", [(0,), (1, 2), (0, 1, 2, 4)])
def test_who_seals_wrong_shares_is_named_by_all_and_the_others_go_on(
    victims: tuple[int, ...], restart: bool, federation: Any
) -> None:
    parties = federation(N, restart=restart)
    first = _given_up(parties, *victims)
    assert set(first.verdicts) == {parties.names[LIAR]}
    proof = first.proof
    with pytest.raises(IntegrityError, match=r"hospital-3 broke the protocol"):
        first.survivor_notice()
    with pytest.raises(IntegrityError, match="VOID"):
        first.unmask_request()
    total = _finish(parties, _open(parties, 1, proof))
    np.testing.assert_array_equal(total, VALUES.sum(axis=0) - VALUES[LIAR])
    for name in parties.names:
        if name != parties.names[LIAR]:
            assert parties.hospitals[name].shown_wrong(0) == (parties.names[LIAR],)


def test_masks_and_secrets_of_another_attempt_are_new(federation: Any) -> None:
    parties = federation(N)
    first, vectors = _open(parties), {}
    _share(parties, first, 0)
    for name, request in first.mask_requests().items():
        vectors[name] = parties.ask(name, request, VALUES[parties.names.index(name)])
        first.take(vectors[name])
    for name, request in first.evidence().items():
        first.take(parties.ask(name, request))
    second = _open(parties, 1, first.proof)
    _share(parties, second)
    again = parties.ask("hospital-1", second.mask_requests()["hospital-1"], VALUES[1])
    assert not np.intersect1d(vectors["hospital-1"].vector, again.vector).size
    old, new = first._dealt[1], second._dealt[1]
    assert {old.commitment, old.seeds, old.commitments} & {
        new.commitment,
        new.seeds,
        new.commitments,
    } == set()


def _accusation(parties: Any, batch: Any, accused: int, **changes: Any) -> Complaint:
    """The liar doubts and complains of an honest hospital, though it could open its share."""
    name = parties.names[LIAR]
    head, shares = batch.opening.head, batch._dealt[accused]
    doubt = ShareDoubt(**head, party=name, view=batch._view, doubted=accused)
    batch.take(doubt.signed(parties.identities[name]))
    said = {
        "accused": shares.party,
        "about": shares.digest,
        "key": parties.hospitals[name]._state.sealing.key(accused).to_bytes(),
    }
    complaint = Complaint(**head, party=name, view=batch._view, **{**said, **changes})
    return complaint.signed(parties.identities[name])


def test_a_false_accuser_is_named_whatever_key_it_shows(federation: Any) -> None:
    for key in (None, bytes(range(32)), ExchangeKey.generate().to_bytes()):
        parties = federation(N)
        batch = _open(parties)
        _share(parties, batch)
        batch.mask_requests()
        batch.take(_accusation(parties, batch, 1, **({} if key is None else {"key": key})))
        assert set(batch.verdicts) == {parties.names[LIAR]}
        total = _finish(parties, _open(parties, 1, batch.proof))
        np.testing.assert_array_equal(total, VALUES.sum(axis=0) - VALUES[LIAR])


def test_a_sealing_key_of_no_use_is_its_owners_fault(federation: Any) -> None:
    """A point of low order: its owner signed it, and what it seals under it opens for nobody."""
    parties = federation(N)
    batch = _given_up(parties, 0)
    [proof] = read_proofs(batch.proof)
    members = parties.coordinator.members
    row = bytearray(parties.hospitals[parties.names[LIAR]].enrolment.sealing_keys)
    row[:32] = bytes(32)
    tree = HashTree(bytes(row))
    roots = tuple(tree.root if at == LIAR else root for at, root in enumerate(members.sealings))
    weak = replace(proof, accused_key=SignedKey(bytes(32), tree.path(0)))
    assert judge(replace(members, sealings=roots), weak).liar == LIAR


def test_a_complaints_key_opens_one_pairs_shares_and_no_mask(federation: Any) -> None:
    parties = federation(N)
    batch = _given_up(parties, 0)
    [proof] = read_proofs(batch.proof)
    members, head = parties.coordinator.members, batch.opening.head
    key = ExchangeKey(proof.complaint.key)
    assert key.public not in members.exchange_keys
    mine = parties.hospitals["hospital-0"]._state.seat
    known = {key.to_bytes()}
    for other in range(1, N):
        public = parties.coordinator.sealing_key(other, 0).key
        found = agree_seal(members, 0, other, key, public)
        known.add(found)
        opener, shares = ShareOpener(members, head, 0), batch._dealt[other]
        with pytest.raises(UnusableShareError):
            opener.open(found, other, *shares.part(0))
        assert (found == mine.seal(other)) == (other == LIAR)
    assert not known & set(map(mine.secret, range(N)))


def test_whatever_is_changed_in_a_proof_no_honest_hospital_is_named(federation: Any) -> None:
    parties = federation(N)
    batch = _given_up(parties, 0)
    [proof], members, tried = read_proofs(batch.proof), parties.coordinator.members, 0
    for part in ("complaint", "shares"):
        message = getattr(proof, part)
        for entry in fields(message):
            value = getattr(message, entry.name)
            other = (
                value + 1
                if isinstance(value, int)
                else value[:-1] + type(value)(b"\x01" if isinstance(value, bytes) else "0")
            )
            for signer in (None, *parties.identities.values()):
                changed = replace(message, **{entry.name: other})
                if signer is not None and entry.name != "signature":
                    changed = changed.signed(signer)
                tried += 1
                try:
                    verdict = judge(members, replace(proof, **{part: changed}))
                except RefusedError as error:
                    assert error.reason is SumRefusal.PROOF
                else:  # the accuser itself signed another key, or the liar other shares
                    assert verdict.liar == LIAR or (part, entry.name) == ("complaint", "key")
    assert tried > 100
    for name in ("accuser_key", "accused_key"):
        for bad in (SignedKey(bytes(32), getattr(proof, name).path), SignedKey(b"", b"")):
            with pytest.raises(RefusedError):
                judge(members, replace(proof, **{name: bad}))


def test_a_failure_that_is_only_pretended_is_refused(federation: Any) -> None:
    parties = federation(N)
    other = federation(N)
    batch = _open(parties)
    _share(parties, batch)
    for name, request in batch.mask_requests().items():
        batch.take(parties.ask(name, request, VALUES[parties.names.index(name)]))
    foreign = _given_up(other, 0).proof
    opening = batch.opening
    for proof in (b"", pack_proofs([]), b"junk", foreign):
        parties.refused("hospital-0", parties.signed(opening, attempt=1, proof=proof), SumRefusal.PROOF)
    notice = batch.survivor_notice()
    for name in parties.names:  # none of it has changed anything
        batch.take(parties.ask(name, notice))
    request = batch.unmask_request()
    for name in parties.names:
        batch.take(parties.ask(name, request))
    np.testing.assert_array_equal(batch.total(), VALUES.sum(axis=0))


def _two_totals(parties: Any) -> tuple[Any, Any]:
    """An attempt that could be unmasked, and proof that it was broken: coordinator and liar in league."""
    batch = _open(parties)
    _share(parties, batch)
    for name, request in batch.mask_requests().items():
        batch.take(parties.ask(name, request, VALUES[parties.names.index(name)]))
    shares = batch._dealt[LIAR]
    wrong = parties.lie(shares, **_wrong_seal(shares, 4))
    complaint = Complaint(
        **shares.head,
        party="hospital-4",
        view=bytes(32),
        accused=shares.party,
        about=wrong.digest,
        key=parties.hospitals["hospital-4"]._state.sealing.key(LIAR).to_bytes(),
    ).signed(parties.identities["hospital-4"])
    keys = parties.coordinator.sealing_key(4, LIAR), parties.coordinator.sealing_key(LIAR, 4)
    return batch, parties.signed(
        batch.opening, attempt=1, proof=pack_proofs([Proof(complaint, wrong, *keys)])
    )


@pytest.mark.parametrize("restart", [False, True])
def test_who_revealed_a_share_masks_that_batch_no_more(restart: bool, federation: Any) -> None:
    parties = federation(N, restart=restart)
    batch, again = _two_totals(parties)
    notice = batch.survivor_notice()
    for name in parties.names:
        batch.take(parties.ask(name, notice))
    request = batch.unmask_request()
    parties.ask("hospital-0", request)
    parties.refused("hospital-0", again, SumRefusal.UNMASKED)
    parties.refused("hospital-1", again, SumRefusal.UNMASKED)  # it signs one set of survivors of a batch
    parties.ask("hospital-1", request)
    parties.refused("hospital-1", parties.signed(batch.opening), SumRefusal.BATCH_REPEATED)


def test_who_is_shown_to_be_wrong_is_in_no_later_attempt(federation: Any) -> None:
    parties = federation(N)
    batch = _given_up(parties, 0)
    second = _open(parties, 1, batch.proof)
    _share(parties, second)
    good = second.mask_requests()["hospital-0"]
    request = parties.signed(good, sharers=np.array([0, 1, 2, 3], dtype=np.int64))
    parties.refused("hospital-0", request, SumRefusal.SHARERS)
    assert parties.names[LIAR] not in parties.open(5, batch=1).invited  # nor in a later batch


def test_below_the_threshold_nothing_is_opened_and_the_name_is_told(federation: Any) -> None:
    parties = federation(4, threshold=4)
    batch = parties.open(5, batch=0)
    for number, name in enumerate(parties.names):
        reply = parties.ask(name, batch.opening)
        if number == LIAR:
            reply = parties.lie(reply, **_wrong_seal(reply, 0))
            parties.hospitals[name]._batches[0].own = reply.digest
        batch.take(reply)
    for name, request in batch.mask_requests().items():
        batch.take(parties.ask(name, request, VALUES[0]))
    for name, request in batch.evidence().items():
        batch.take(parties.ask(name, request))
    parties.coordinator.leave_out(batch.verdicts)
    with pytest.raises(QuorumError, match="3 of 4 hospitals are left without hospital-3; the threshold is 4"):
        parties.coordinator.open_batch(
            batch=0,
            batch_digest=batch.opening.batch_digest,
            length=5,
            sum_range=SumRange.noisy(),
            attempt=1,
            proof=batch.proof,
        )


def test_different_views_meet_no_common_signature(federation: Any) -> None:
    """One hospital is shown another one's other shares; both views are signed, and neither has enough."""
    parties = federation(N)
    batch = _open(parties)
    _share(parties, batch)
    requests = batch.mask_requests()
    dealt = bytearray(requests["hospital-0"].dealt)
    dealt[32 * 1] ^= 1
    for name in parties.names:
        request = requests[name]
        if name == "hospital-0":
            request = parties.signed(request, dealt=bytes(dealt))
        reply = parties.ask(name, request, VALUES[parties.names.index(name)])
        if name == "hospital-0":
            with pytest.raises(IntegrityError, match="answered something else than what it was shown"):
                batch.take(reply)
        else:
            batch.take(reply)
    everyone = parties.signed(batch.survivor_notice(), survivors=np.arange(N, dtype=np.int64))
    consents = {name: parties.ask(name, everyone).signature for name in parties.names}
    request = UnmaskRequest(
        **batch.opening.head, consenting=np.arange(N, dtype=np.int64), consents=b"".join(consents.values())
    )
    for name in parties.names:
        parties.refused(name, parties.signed(request), SumRefusal.CONSENT)
        parties.refused(name, parties.signed(request), SumRefusal.BATCH_VOID)


def test_each_hospital_finds_its_own_shares_in_what_is_passed_on(federation: Any) -> None:
    parties = federation(N)
    batch = _open(parties)
    _share(parties, batch)
    request = batch.mask_requests()["hospital-1"]
    dealt = bytearray(request.dealt)
    dealt[32 * 1] ^= 1
    parties.refused("hospital-1", parties.signed(request, dealt=bytes(dealt)), SumRefusal.DEALT, VALUES[1])


def test_keys_that_the_coordinator_makes_up_are_not_sealed_under(federation: Any) -> None:
    parties = federation(N, pin=False)
    good = parties.pin("hospital-0")
    for changes in (
        {"sealing_keys": good.sealing_keys[:-32] + ExchangeKey.generate().public},
        {"sealing_keys": good.sealing_keys[32:] + good.sealing_keys[:32]},
        {"paths": bytes(len(good.paths))},
        {"paths": b""},
    ):
        parties.refused("hospital-0", parties.signed(good, **changes), SumRefusal.ROSTER_MEMBER)
    parties.refused("hospital-0", parties.signed(good, party="hospital-1"), SumRefusal.ROSTER_SELF)
    short = parties.signed(good, sealing_keys=good.sealing_keys[32:])
    parties.refused("hospital-0", short, SumRefusal.MALFORMED)
    parties.ask("hospital-0", good)


def test_proofs_survive_their_bytes(federation: Any) -> None:
    batch = _given_up(federation(N), 0, 1)
    proofs = read_proofs(batch.proof)
    assert len(proofs) == 2 and pack_proofs(proofs) == batch.proof
    assert all(isinstance(value, bytes) for value in unpack(batch.proof).values())

"""Who broke the protocol, shown to anyone: a complaint, the message that it is about, and the keys to both.

A hospital that cannot use what another sealed for it reveals the one private key with which these two seal
for each other. With it anybody opens the one share that the accused signed, and sees whether it is what the
accused committed to: then the accuser is wrong, else the accused. The coordinator and all hospitals judge by
themselves, and come to the same name. What the key opens are shares that the wrong one of the two knew
already; no mask follows from it. It is the key of a place: by another roster that place may be an honest
one's, so a hospital masks only where those near it have pinned its own (docs/proofs/neighbours.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum.dealing import ShareOpener, UnusableShareError, agree_seal
from pate_fed.secure_sum.keys import KEY_BYTES, ExchangeKey, HashTree, pack, unpack
from pate_fed.secure_sum.messages import BatchOpening, BatchShares, Complaint
from pate_fed.secure_sum.refusals import RefusedError, SumRefusal
from pate_fed.secure_sum.roster import Members


@dataclass(frozen=True, slots=True, repr=False)
class SignedKey:
    """A member's sealing key for another one, with the path that shows that it signed it."""

    key: bytes
    path: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Proof:
    """A complaint, the shares that it is about, and the sealing keys that accuser and accused have signed."""

    complaint: Complaint
    shares: BatchShares
    accuser_key: SignedKey
    accused_key: SignedKey


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is wrong, by position in the roster, and why in words."""

    liar: int
    reason: str


def pack_proofs(proofs: Iterable[Proof]) -> bytes:
    """Proofs as they travel with the opening of the next attempt."""
    return pack({f"{number:05d}": _pack(proof) for number, proof in enumerate(proofs)})


def read_proofs(data: bytes) -> list[Proof]:
    """The proofs in such bytes; IntegrityError where damaged, or no proofs."""
    return [_read(value) for value in unpack(data).values()]


def judge(members: Members, proof: Proof) -> Verdict:
    """Who of accuser and accused is wrong.

    Raises:
        RefusedError: it proves nothing, as something in it is not signed by whom it is said to be from.
    """
    complaint, shares = proof.complaint, proof.shares
    accuser, accused = (members.positions.get(name) for name in (complaint.party, shares.party))
    if accuser is None or accused is None or accuser == accused or complaint.accused != shares.party:
        raise _no_proof("a complaint of nobody about nobody")
    if complaint.head != shares.head or complaint.about != shares.digest:
        raise _no_proof("the complaint is about another message")
    signed = complaint.signed_by(members.identities[accuser]) and shares.signed_by(
        members.identities[accused]
    )
    if not signed or shares.roster != members.digest:
        raise _no_proof("not signed by accuser and accused in this roster")
    slot = members.graph.slot
    if slot(accuser, accused) >= members.graph.size:
        raise _no_proof("a complaint about somebody who deals nothing to the accuser")
    for owner, other, held in ((accuser, accused, proof.accuser_key), (accused, accuser, proof.accused_key)):
        if not HashTree.shows(members.sealings[owner], slot(owner, other), held.key, held.path):
            raise _no_proof("a sealing key that its owner did not sign")
    key = ExchangeKey(complaint.key)
    if key.public != proof.accuser_key.key:
        return Verdict(
            accuser, f"accused {shares.party} of wrong shares and showed a key that is not its own"
        )
    opener, (sealed, commitments) = (
        ShareOpener(members, shares.head, accuser),
        shares.part(slot(accused, accuser)),
    )
    try:
        secret = agree_seal(members, accuser, accused, key, proof.accused_key.key)
        opener.open(secret, accused, sealed, commitments)
    except (IntegrityError, UnusableShareError):
        return Verdict(accused, f"sealed shares for {complaint.party} that do not open or do not fit")
    return Verdict(accuser, f"accused {shares.party} of wrong shares, which are right")


def judged(members: Members, opening: BatchOpening) -> dict[int, Verdict]:
    """Who is out of an attempt, by position: whom the proofs of the attempts before it show to be wrong.

    Raises:
        RefusedError: nothing shows why the last attempt was given up, or something in it proves nothing.
    """
    if opening.attempt == 0 and not opening.proof:
        return {}
    try:
        proofs = read_proofs(opening.proof)
    except RefusedError:
        raise
    except IntegrityError as error:
        raise _no_proof("damaged") from error
    attempts = {proof.complaint.attempt for proof in proofs}
    if not proofs or opening.attempt == 0 or max(attempts) != opening.attempt - 1:
        raise _no_proof("nothing about the last attempt")
    for proof in proofs:
        if (proof.complaint.batch, proof.complaint.batch_digest) != (opening.batch, opening.batch_digest):
            raise _no_proof("about another batch")
    verdicts = [judge(members, proof) for proof in proofs]
    return {verdict.liar: verdict for verdict in verdicts}


def _pack(proof: Proof) -> bytes:
    return pack(
        {
            "complaint": proof.complaint.to_bytes(),
            "shares": proof.shares.to_bytes(),
            "accuser": proof.accuser_key.key + proof.accuser_key.path,
            "accused": proof.accused_key.key + proof.accused_key.path,
        }
    )


def _read(value: object) -> Proof:
    record = unpack(value) if isinstance(value, bytes) else {}
    parts = [record.get(name) for name in ("complaint", "shares", "accuser", "accused")]
    complaint, shares, accuser, accused = (part if isinstance(part, bytes) else b"" for part in parts)
    return Proof(
        Complaint.from_bytes(complaint),
        BatchShares.from_bytes(shares),
        SignedKey(accuser[:KEY_BYTES], accuser[KEY_BYTES:]),
        SignedKey(accused[:KEY_BYTES], accused[KEY_BYTES:]),
    )


def _no_proof(detail: str) -> RefusedError:
    return RefusedError(SumRefusal.PROOF, detail)

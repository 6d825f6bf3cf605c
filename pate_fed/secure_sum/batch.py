"""The coordinator's side of one batch: four steps, each closed once, and a sum at the end or none.

Guarantee: below the threshold at any step there is no output (QuorumError), and the batch is void. It is
tried again on a smaller set only before any share is revealed, with new masks and without those whom a
complaint has shown to be wrong; the hospitals see to that too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives import constant_time
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.secure_sum import shamir
from pate_fed.secure_sum.blame import Proof, SignedKey, Verdict, judge, pack_proofs, read_proofs
from pate_fed.secure_sum.dealing import SEEDS, SELF_MASK, batch_label
from pate_fed.secure_sum.keys import COMMITMENT_BYTES, KEY_BYTES, TAG_BYTES, Identity, unseal, verify
from pate_fed.secure_sum.masks import Masker, SumRange, Vector
from pate_fed.secure_sum.messages import (
    PAIR_BYTES,
    SEALED_BYTES,
    BatchOpening,
    BatchReply,
    BatchRequest,
    BatchShares,
    Complaint,
    Head,
    MaskedVector,
    MaskRequest,
    Positions,
    ShareDoubt,
    ShareEvidence,
    SurvivorConsent,
    SurvivorNotice,
    UnmaskRequest,
    UnmaskShares,
    consent_digest,
    sharing_view,
)
from pate_fed.secure_sum.roster import Members, roster_pinned

K = TypeVar("K")
V = TypeVar("V", covariant=True)


class _Step(IntEnum):
    SHARING = 0
    MASKING = 1
    CONSENTING = 2
    UNMASKING = 3
    SUMMED = 4
    VOID = 5


_STEPS: dict[type[BatchReply], _Step] = {
    BatchShares: _Step.SHARING,
    MaskedVector: _Step.MASKING,
    ShareDoubt: _Step.MASKING,
    Complaint: _Step.MASKING,
    SurvivorConsent: _Step.CONSENTING,
    UnmaskShares: _Step.UNMASKING,
}


class SumBatch:
    """One batch: go through `rounds`, `take` every reply, then ask for the `total`.

    Who does not reply within a round has dropped out. `rounds` goes through what may also be called one by
    one: `opening`, `mask_requests`, `survivor_notice`, `unmask_request`. Each closes the step before it:
    QuorumError where too few have replied, IntegrityError where it is not the next.

    After masking, send the `evidence` to who doubts and take what they say. Where there are `verdicts` then,
    the attempt is over; `proof` opens the next one. `sealing_key` is `CoordinatorSum.sealing_key`.
    """

    def __init__(
        self,
        identity: Identity,
        members: Members,
        opening: BatchOpening,
        sum_range: SumRange,
        invited: frozenset[str],
        *,
        sealing_key: Callable[[int, int], SignedKey],
    ) -> None:
        self._sealing_key = sealing_key
        self.verdicts: dict[str, Verdict] = {}
        self._proofs: list[Proof] = []
        self._doubts: dict[int, ShareDoubt] = {}
        self._view = opening.digest
        # of each sharer's secret that is revealed: which, and commitments to its shares by slot
        self._lost = np.empty(0, dtype=np.bool_)
        self._known = np.empty((0, 0, COMMITMENT_BYTES), dtype=np.uint8)
        self.opening = opening
        self.invited = invited
        self._identity, self._members, self._range = identity, members, sum_range
        self._step = _Step.SHARING
        self._label = batch_label(members, opening.head)
        self._commit = self._label.commit_shares()
        self._masker = Masker(opening.length, opening.bits)
        # no single vector is kept once it is in here
        self._sum: Vector = np.zeros(opening.length, dtype=self._masker.dtype)
        self._dealt: dict[int, BatchShares] = {}
        self._masked: set[int] = set()
        self._consents: dict[int, bytes] = {}
        self._shares: dict[int, bytes] = {}
        self._sharers = self._survivors = np.empty(0, dtype=np.int64)

    @property
    def survivors(self) -> tuple[str, ...]:
        """Names of the hospitals whose vectors are in the sum, once that is fixed."""
        return self._names(self._survivors)

    def rounds(self) -> Iterator[Mapping[str, BatchRequest]]:
        """The four rounds: each time whom to send what. Take the replies before asking for the next."""
        yield dict.fromkeys(sorted(self.invited), self.opening)
        yield self.mask_requests()
        notice = self.survivor_notice()
        yield dict.fromkeys(self.survivors, notice)
        request = self.unmask_request()
        yield dict.fromkeys(self.consenting, request)

    def take(self, reply: BatchReply) -> None:
        """Take one hospital's reply to the current step.

        Raises:
            IntegrityError: which hospital sent what is wrong with it; the batch is as if nothing had come.
        """
        position = self._position(reply)
        match reply:
            case BatchShares():
                self._take_shares(position, reply)
            case MaskedVector():
                self._take_vector(position, reply)
            case ShareDoubt():
                self._take_doubt(position, reply)
            case Complaint():
                self._take_complaint(position, reply)
            case SurvivorConsent():
                self._take_consent(position, reply)
            case UnmaskShares():
                self._take_unmasking(position, reply)

    def withdraw(self, vector: MaskedVector) -> None:
        """Take a party's vector out again, before the survivors are named: as if it had never come.

        It stays masked: what survivors give of a party that is not among them takes away the masks that it
        shares with them, not its own.

        Raises:
            IntegrityError: the step is over, or it is not the vector that was taken.
        """
        position = self._position(vector)
        self._expect(vector, position in self._masked, "no vector that could be withdrawn")
        np.subtract(self._sum, vector.vector, out=self._sum)  # wraps as the addition did
        self._masked.remove(position)

    def mask_requests(self) -> Mapping[str, MaskRequest]:
        """Close the sharing: for each hospital that shared, what to send it, made when it is asked for."""
        self._sharers = self._close(_Step.SHARING, self._dealt, "shared their secrets")
        messages = [self._dealt[sender] for sender in self._sharers.tolist()]
        dealt = b"".join(message.digest for message in messages)
        self._view = sharing_view(self.opening, self._sharers, dealt)

        def request(party: str) -> MaskRequest:
            place = self._members.positions[party]
            near = self._members.graph.among(place, self._sharers)
            slots = self._members.graph.slots(near, place).tolist()
            parts = (self._dealt[at].part(slot) for at, slot in zip(near.tolist(), slots, strict=True))
            sealed, commitments = zip(*parts, strict=True)
            return MaskRequest(
                **self.opening.head,
                party=party,
                sharers=self._sharers,
                pinned=b"".join(self._dealt[at].pinned for at in near.tolist()),
                dealt=dealt,
                commitments=b"".join(commitments),
                sealed=b"".join(sealed),
            ).signed(self._identity)

        return Made(self._names(self._sharers), request)

    def evidence(self) -> dict[str, ShareEvidence]:
        """For each hospital that doubts another one's shares what that one signed."""
        return {
            doubt.party: ShareEvidence(
                **self.opening.head, party=doubt.party, message=self._dealt[doubt.doubted].to_bytes()
            ).signed(self._identity)
            for _, doubt in sorted(self._doubts.items())
        }

    @property
    def proof(self) -> bytes:
        """What shows to all who broke the protocol in this attempt and those before."""
        return pack_proofs([*read_proofs(self.opening.proof), *self._proofs])

    def survivor_notice(self) -> SurvivorNotice:
        """Close the masking: the set of those whose vectors came, for each of them."""
        if self.verdicts:
            self._step = _Step.VOID
            raise IntegrityError(
                f"{', '.join(sorted(self.verdicts))} broke the protocol: the attempt is over"
            )
        self._survivors = self._close(_Step.MASKING, self._masked, "sent their masked vectors")
        self._view = consent_digest(self._view, self._survivors)
        self._lost = ~np.isin(self._sharers, self._survivors)  # of these the pair seeds' secret is revealed
        known = (np.frombuffer(self._dealt[at].commitments, dtype=np.uint8) for at in self._sharers.tolist())
        halves = (each.reshape(-1, 2, COMMITMENT_BYTES) for each in known)
        self._known = np.stack([each[:, int(out)] for each, out in zip(halves, self._lost, strict=True)])
        for at, message in self._dealt.items():  # of what they dealt nothing else is of use any more
            self._dealt[at] = replace(message, sealed=b"", commitments=b"")
        return SurvivorNotice(**self.opening.head, survivors=self._survivors).signed(self._identity)

    def unmask_request(self) -> UnmaskRequest:
        """Close the consenting: the survivors' signatures, for each of those who signed (`consenting`)."""
        signers = self._close(_Step.CONSENTING, self._consents, "signed the set of survivors")
        consents = b"".join(self._consents[signer] for signer in signers.tolist())
        return UnmaskRequest(**self.opening.head, consenting=signers, consents=consents).signed(
            self._identity
        )

    @property
    def consenting(self) -> tuple[str, ...]:
        """Names of the hospitals that have signed the set of survivors."""
        return self._names(np.array(sorted(self._consents), dtype=np.int64))

    def total(self) -> NDArray[np.int64]:
        """The exact sum of the survivors' vectors: int64 (length,), once.

        Raises:
            QuorumError: too few have revealed their shares.
            IntegrityError: shares or seeds that do not fit what was committed to; the batch is void.
        """
        self._close(_Step.UNMASKING, self._shares, "revealed their shares")
        try:
            self._remove_masks()
        except IntegrityError:
            self._step = _Step.VOID
            raise
        return self._range.lift(self._sum)

    def _take_shares(self, position: int, reply: BatchShares) -> None:
        count = self._members.graph.size
        self._expect(reply, len(reply.sealed) == SEALED_BYTES * count, "shares of another number")
        fits = len(reply.commitments) == PAIR_BYTES * count
        self._expect(reply, fits, "commitments of another number")
        self._expect(reply, len(reply.seeds) == KEY_BYTES * count + TAG_BYTES, "seeds of another number")
        pinned = roster_pinned(self._members, position, reply.pinned)
        self._expect(reply, pinned, "no signature that it has pinned the roster")
        self._once(reply, position in self._dealt)
        self._dealt[position] = reply

    def _take_vector(self, position: int, reply: MaskedVector) -> None:
        vector = reply.vector
        fits = len(vector) == self._masker.length and vector.dtype == self._masker.dtype
        self._expect(reply, position in self._dealt, "a vector without having shared its secrets")
        self._expect(reply, fits, "a vector of another length or type")
        self._once(reply, position in self._masked or position in self._doubts)
        np.add(self._sum, vector, out=self._sum)  # mod 2^bits: unsigned addition wraps
        self._masked.add(position)

    def _take_doubt(self, position: int, reply: ShareDoubt) -> None:
        shared = position in self._dealt and reply.doubted in self._dealt and reply.doubted != position
        shared = shared and self._members.graph.slot(position, reply.doubted) < self._members.graph.size
        self._expect(reply, shared, "a doubt about nobody who has shared with it")
        self._once(reply, position in self._masked or position in self._doubts)
        self._doubts[position] = reply

    def _take_complaint(self, position: int, reply: Complaint) -> None:
        doubt = self._doubts.get(position)
        self._expect(reply, doubt is not None, "a complaint without having doubted")
        assert doubt is not None
        shares = self._dealt[doubt.doubted]
        fits = (reply.accused, reply.about) == (shares.party, shares.digest)
        self._expect(reply, fits, "a complaint about another message than the one it doubted")
        keys = self._sealing_key(position, doubt.doubted), self._sealing_key(doubt.doubted, position)
        proof = Proof(reply, shares, *keys)
        verdict = judge(self._members, proof)
        del self._doubts[position]
        self._proofs.append(proof)
        self.verdicts.setdefault(self._members.names[verdict.liar], verdict)

    def _take_consent(self, position: int, reply: SurvivorConsent) -> None:
        self._expect(reply, position in self._masked, "a signature without being a survivor")
        self._once(reply, position in self._consents)
        self._consents[position] = reply.signature

    def _take_unmasking(self, position: int, reply: UnmaskShares) -> None:
        near = self._members.graph.among(position, self._sharers)
        fits = len(reply.shares) == shamir.SECRET_BYTES * len(near)
        self._expect(reply, position in self._consents, "shares without having signed the set of survivors")
        self._expect(reply, fits, "shares of another number")
        self._once(reply, position in self._shares)
        self._expect(reply, self._fit(position, reply.shares), "shares that are not those it was dealt")
        self._shares[position] = reply.shares

    def _fit(self, holder: int, shares: bytes) -> bool:
        """Whether each share is the one that its dealer committed to: of a survivor the self-mask's."""
        owners, rows, slots = self._held(holder)
        places = np.stack([owners, np.full_like(owners, holder), self._lost[rows]], axis=1)
        known: bytes = self._known[rows, slots].tobytes()
        return self._commit(places, shares) == known

    def _held(self, holder: int) -> tuple[Positions, Positions, Positions]:
        """Of which sharers a hospital holds shares, their rows among all sharers, and its slots there."""
        graph = self._members.graph
        owners = graph.among(holder, self._sharers)
        return owners, np.searchsorted(self._sharers, owners), graph.slots(owners, holder)

    def _position(self, reply: BatchReply) -> int:
        """The sender's position, once the reply is known to be its own, of this batch and of this step."""
        position = self._members.positions.get(reply.party)
        if position is None:
            raise IntegrityError(f"{reply.party} is not in the roster")
        if reply.roster != self.opening.roster:
            raise IntegrityError(f"{reply.party} answered under another roster")
        if _batch_of(reply.head) != _batch_of(self.opening.head):
            raise IntegrityError(f"{reply.party} answered another batch")
        step = _STEPS[type(reply)]
        if self._step != step:
            when = "after that step was closed" if self._step > step else "before that step was opened"
            raise IntegrityError(f"{reply.party} sent a message {reply.kind!r} {when}")
        if reply.view != self._view:
            raise IntegrityError(f"{reply.party} answered something else than what it was shown")
        public = self._members.identities[position]
        # A consent's signature is on the set itself, so that it convinces the other hospitals too.
        consent = isinstance(reply, SurvivorConsent)
        if not (verify(public, reply.signature, self._view) if consent else reply.signed_by(public)):
            raise IntegrityError(f"{reply.party} did not sign its message {reply.kind!r}")
        return position

    def _close(self, step: _Step, came: Collection[int], what: str) -> Positions:
        """End a step with those that came, by position: enough in all, and enough near each sharer."""
        if self._step != step:
            raise IntegrityError(
                f"batch {self.opening.batch}: this step is not the next one ({self._step.name})"
            )
        graph, present = self._members.graph, np.array(sorted(came), dtype=np.int64)
        count = len(present)
        if count < self._members.threshold:  # fewer shares open no secret, fewer signatures convince nobody
            self._step = _Step.VOID
            raise QuorumError(
                f"{count} of {len(self._members)} hospitals {what}; the threshold is "
                f"{self._members.threshold}, so nothing of batch {self.opening.batch} is unmasked"
            )
        fewest = graph.fewest(present if step == _Step.SHARING else self._sharers, present)
        if fewest < graph.least:
            self._step = _Step.VOID
            raise QuorumError(
                f"{count} of {len(self._members)} hospitals {what}, and near one of them {fewest} of "
                f"{graph.size}; {graph.least} are needed, so nothing is unmasked"
            )
        self._step = _Step(step + 1)
        return present

    @staticmethod
    def _expect(reply: BatchReply, holds: bool, what: str) -> None:
        if not holds:
            raise IntegrityError(f"{reply.party} sent {what}")

    @staticmethod
    def _once(reply: BatchReply, again: bool) -> None:
        if again:
            raise IntegrityError(f"{reply.party} sent a second message {reply.kind!r}")

    def _names(self, positions: Positions) -> tuple[str, ...]:
        return tuple(self._members.names[position] for position in positions.tolist())

    # Taking the masks off, with the shares that the survivors revealed: of a survivor only its self-mask's
    # secret is recovered, of a hospital that dropped out only the batch's pair seeds; the secrets of other
    # batches and of the study are not derivable from either.

    def _remove_masks(self) -> None:
        """Take every mask that does not cancel off the sum, in place."""
        for position, secret in self._combined().items():
            if position in self._survivors:
                self._remove_self_mask(position, secret)
            else:
                self._remove_pair_masks(position, secret)

    def _combined(self) -> dict[int, bytes]:
        """One secret a sharer, by position."""
        graph, rows = self._members.graph, len(self._sharers)
        shares = np.zeros((rows, graph.size, shamir.LIMBS), dtype=np.uint16)
        came = np.zeros((rows, graph.size), dtype=np.bool_)
        for helper, revealed in self._shares.items():
            _, at, slots = self._held(helper)
            try:
                shares[at, slots] = shamir.from_bytes(revealed)
            except IntegrityError as error:
                raise IntegrityError(f"{self._members.names[helper]} revealed a share of no field") from error
            came[at, slots] = True
        secrets = dict[int, bytes]()
        for row, position in enumerate(self._sharers.tolist()):
            # any so many shares fix the polynomial, more give the same; slot 0 is the point 1, and so on
            slots = np.flatnonzero(came[row])[: graph.least]
            secrets[position] = shamir.to_bytes(shamir.combine(slots + 1, shares[row, slots]))
        return secrets

    def _remove_self_mask(self, position: int, secret: bytes) -> None:
        expected = self._dealt[position].commitment
        if not constant_time.bytes_eq(self._label.commit(secret, position), expected):
            raise self._misfit(position, "self-mask")
        self._masker.take(self._sum, self._label.key(secret, SELF_MASK, position, position))

    def _remove_pair_masks(self, position: int, secret: bytes) -> None:
        """Undo what each survivor did with its mask for a hospital that dropped out."""
        key = self._label.key(secret, SEEDS, position, position)
        try:
            seeds = unseal(key, self._dealt[position].seeds)
        except IntegrityError as error:
            raise self._misfit(position, "pair seeds") from error
        graph = self._members.graph
        for survivor in graph.among(position, self._survivors).tolist():
            slot = graph.slot(position, survivor)
            seed = seeds[slot * KEY_BYTES : (slot + 1) * KEY_BYTES]
            if position < survivor:  # the survivor, higher, had added it (`dealing.mask`)
                self._masker.take(self._sum, seed)
            else:
                self._masker.add(self._sum, seed)

    def _misfit(self, position: int, what: str) -> IntegrityError:
        return IntegrityError(
            f"{self._members.names[position]} dealt shares of its {what} that give another secret than it "
            "committed to, and nothing is unmasked"
        )


class Made(Mapping[K, V]):
    """Values that are made when they are asked for, each time anew, so that not all are in memory at once."""

    def __init__(self, keys: Iterable[K], make: Callable[[K], V]) -> None:
        self._keys, self._make = {key: key for key in keys}, make

    def __getitem__(self, key: K) -> V:
        return self._make(self._keys[key])

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def _batch_of(head: Head) -> tuple[int, str, int]:
    return head["batch"], head["batch_digest"], head["attempt"]

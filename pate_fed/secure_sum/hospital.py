"""The hospital's side of a secure summation, as a state machine: a request in, a reply or a refusal out.

What the coordinator learns from a hospital that follows this machine: of each batch one sum over one set of
at least `threshold` hospitals, and nothing else, as long as fewer than `threshold` hospitals pool their
shares with it (their own vectors it then knows and can subtract). That this holds against a coordinator that
breaks the protocol needs fewer than 2 threshold - n such hospitals, or `Demands.every_signature`; where not
all mask with all, no more than `in_league`. The machine
relies on nothing that the coordinator says about others: it checks who signed what.

A new process may serve every message. Its state is two byte strings, for the hospital's own disk:
`study_state` changes with `enrol` and `pin`; `progress_state` changes with every call, also with one that was
refused. Save first, then send the reply: the reply to the last request of a batch is part of the state. The
identical request gets the identical reply again, also from a process that took over, and never another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.secure_sum import dealing
from pate_fed.secure_sum.blame import judged
from pate_fed.secure_sum.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    ExchangeKey,
    Identity,
    SealingKeys,
    fingerprint,
    verify,
)
from pate_fed.secure_sum.messages import (
    PAIR_BYTES,
    SEALED_BYTES,
    BatchOpening,
    BatchRequest,
    BatchShares,
    Complaint,
    Enrolment,
    EnrolRequest,
    MaskedVector,
    MaskRequest,
    PinRequest,
    Positions,
    Reply,
    ReplyHead,
    Request,
    RosterPinned,
    ShareDoubt,
    ShareEvidence,
    SumRefused,
    SurvivorConsent,
    SurvivorNotice,
    UnmaskRequest,
    UnmaskShares,
    consent_digest,
    read_reply,
    sharing_view,
)
from pate_fed.secure_sum.refusals import RefusedError, SumRefusal
from pate_fed.secure_sum.roster import (
    Demands,
    check_demands,
    check_roster,
    enough_confirmed,
    roster_pinned,
    unpack_roster,
)
from pate_fed.secure_sum.state import (
    BatchProgress,
    Stage,
    StudyState,
    load_batches,
    load_study,
    save_batches,
    save_study,
)
from pate_fed.structure import PARTY_NAME, PARTY_NAME_IS

Votes = Callable[[], NDArray[np.int64]]
_DOUBTING = (Stage.DOUBTED, Stage.COMPLAINED)


class HospitalSum:
    """One hospital in one study. Build it with `enrol`, or with `restore` from its saved state."""

    __slots__ = ("_batches", "_demands", "_identity", "_saved", "_state")

    def __init__(
        self, identity: Identity, demands: Demands, state: StudyState, batches: dict[int, BatchProgress]
    ) -> None:
        self._identity, self._demands, self._state, self._batches = identity, demands, state, batches
        self._saved: tuple[StudyState, bytes] | None = None  # one state, and its bytes

    @classmethod
    def enrol(
        cls,
        identity: Identity,
        request: EnrolRequest,
        *,
        party: str,
        study: str,
        coordinator: bytes | None = None,
        demands: Demands | None = None,
    ) -> HospitalSum:
        """Join the study that this hospital agreed to; `enrolment` then holds the reply.

        `coordinator` is the coordinator's public key where the hospital knows it; without it the key of the
        first request is kept for the whole study.

        Raises:
            RefusedError: another study, or not signed by the coordinator.
            InputError: a party's name that no message can carry.
        """
        if not PARTY_NAME.fullmatch(party):
            raise InputError(f"party={party!r}: {PARTY_NAME_IS} are meant")
        known = request.coordinator if coordinator is None else coordinator
        if request.coordinator != known or not request.signed_by(known):
            raise RefusedError(SumRefusal.COORDINATOR)
        if request.study != study:
            raise RefusedError(SumRefusal.STUDY)
        exchange, sealing = ExchangeKey.generate(), SealingKeys.generate()
        enrolment = Enrolment(
            study=study,
            party=party,
            identity=identity.public,
            exchange_key=exchange.public,
            sealing_keys=sealing.public(request.places),
        ).signed(identity)
        state = StudyState(coordinator=known, enrolment=enrolment, sealing=sealing, exchange=exchange)
        return cls(identity, demands or Demands(), state, {})

    @classmethod
    def restore(
        cls, identity: Identity, *, study_state: bytes, progress_state: bytes, demands: Demands | None = None
    ) -> HospitalSum:
        """The machine as it was saved; IntegrityError where its state is damaged, or of another identity."""
        state = load_study(study_state, identity.public)
        machine = cls(identity, demands or Demands(), state, load_batches(progress_state))
        machine._saved = state, study_state
        return machine

    def study_state(self) -> bytes:
        """What `enrol` and `pin` made, with secrets: for a file that the hospital alone can read."""
        if self._saved is None or self._saved[0] is not self._state:
            self._saved = self._state, save_study(self._state)
        return self._saved[1]

    def progress_state(self) -> bytes:
        """All batches so far, with the secrets of those under way: for the same kind of file."""
        return save_batches(self._batches)

    def __repr__(self) -> str:
        return f"HospitalSum(party={self.enrolment.party!r}, batches={len(self._batches)}, secrets=<hidden>)"

    @property
    def roster(self) -> dict[str, str]:
        """Fingerprints by name, the coordinator's first; empty before a roster is pinned. All public."""
        seat = self._state.seat
        if seat is None:
            return {}
        prints = map(fingerprint, seat.members.identities)
        named = dict(zip(seat.members.names, prints, strict=True))
        return {"(coordinator)": fingerprint(self._state.coordinator), **named}

    @property
    def coordinator(self) -> bytes:
        """The public key of the coordinator that it follows."""
        return self._state.coordinator

    @property
    def enrolment(self) -> Enrolment:
        """The reply to the coordinator's first request; the same however often it asks."""
        return self._state.enrolment

    def begun(self, batch: int) -> bool:
        """Whether this hospital has shared secrets for the batch of this number."""
        return batch in self._batches

    def shown_wrong(self, batch: int) -> tuple[str, ...]:
        """Who was shown to have broken the protocol in the attempts at a batch, by name."""
        progress, seat = self._batches.get(batch), self._state.seat
        if progress is None or seat is None:
            return ()
        return tuple(seat.members.names[position] for position in progress.out.tolist())

    def refuse(self, reason: SumRefusal) -> SumRefused:
        """A signed refusal from the fixed list."""
        own = self.enrolment
        return SumRefused(study=own.study, party=own.party, code=reason.name).signed(self._identity)

    def answer(self, request: Request, votes: Votes) -> Reply:
        """The reply to any request after the first; see the method for each, which refuses by RefusedError.

        A batch's last request, sent again, gets the very same reply: a coordinator that died knows no other
        way to go on, and two copies tell no more than one. Any other request is a step of its own.

        Raises:
            RefusedError: why there is no reply; `refuse` makes the message.
        """
        match request:
            case EnrolRequest():
                return self._enrol_again(request)
            case PinRequest():
                return self.pin(request)
        kept = self._kept_reply(request)
        if kept is not None:
            return kept
        reply = self._next_step(request, votes)
        self._batches[request.batch].reply = reply.to_bytes()
        return reply

    def forget_replies(self) -> None:
        """Forget what was kept to be sent again; nothing is repeated from then on."""
        for progress in self._batches.values():
            progress.reply = b""

    def _kept_reply(self, request: BatchRequest) -> Reply | None:
        """The reply to this very request, where it was the last one of its batch."""
        progress = self._batches.get(request.batch)
        if progress is None or not progress.reply or progress.handled[-1] != request.digest:
            return None
        self._authentic(request)
        return read_reply(progress.reply)

    def _next_step(self, request: BatchRequest, votes: Votes) -> Reply:
        match request:
            case BatchOpening():
                return self.share(request)
            case MaskRequest():
                return self.mask(request, votes)
            case ShareEvidence():
                return self.complain(request)
            case SurvivorNotice():
                return self.consent(request)
            case UnmaskRequest():
                return self.unmask(request)

    def pin(self, request: PinRequest, *, played: dealing.PlayedSeats | None = None) -> RosterPinned:
        """Check the roster and keep it for the whole study; agree on secrets with every member.

        `played` are hospitals that the same process plays, in a simulation.

        Raises:
            RefusedError: the roster fails a check or a demand, or another one is pinned.
        """
        own = self.enrolment
        if not request.signed_by(self._state.coordinator):
            raise RefusedError(SumRefusal.COORDINATOR)
        if request.party != own.party:
            raise RefusedError(SumRefusal.ROSTER_SELF, "the request is for another hospital")
        roster = unpack_roster(request.listed)
        if self._state.roster is None:
            members = check_roster(roster, own, self._state.coordinator, self._demands)
            position = members.positions[own.party]
            column = dealing.sealing_column(members, position, request)
            exchange, sealing = self._state.exchange_key, self._state.sealing
            seat = dealing.take_seat(members, position, exchange, sealing, column, played)
            self._state = self._state.pinned(roster, seat)
        elif not roster.signed_by(self._state.coordinator):
            raise RefusedError(SumRefusal.COORDINATOR)
        elif roster.digest != self._state.roster.digest:
            raise RefusedError(SumRefusal.ROSTER_CHANGED)
        return self._pinned(roster.digest.hex())

    def _pinned(self, roster: str) -> RosterPinned:
        return RosterPinned(roster=roster, party=self.enrolment.party).signed(self._identity)

    def share(self, opening: BatchOpening) -> BatchShares:
        """Open a batch: draw its two secrets, and share both with every member under seal.

        Another attempt at the batch needs proof of who broke the one before, and that this hospital has
        revealed nothing of any: from then on it never reveals anything of the earlier ones.
        """
        seat = self._authentic(opening)
        self._check_new(opening)
        out = judged(seat.members, opening)
        if seat.position in out:
            raise RefusedError(SumRefusal.PROOF, "it is about this hospital")
        self.forget_replies()  # a coordinator that opens the next batch has the sum of the one before
        held, dealt = dealing.deal(seat, opening)
        reply = replace(dealt, pinned=self._pinned(opening.roster).signature).signed(self._identity)
        # Kept before the reply exists: a number that was opened is never opened again, whatever dies here.
        self._batches[opening.batch] = BatchProgress(
            opening=opening,
            held=held,
            own=reply.digest,
            view=opening.digest,
            out=np.array(sorted(out), dtype=np.int64),
            handled=[opening.digest],
        )
        return reply

    def _check_new(self, opening: BatchOpening) -> None:
        """Refuse a batch that was opened before, but for another attempt of which nothing was revealed."""
        before = self._batches.get(opening.batch)
        others = (batch for number, batch in self._batches.items() if number != opening.batch)
        if opening.batch_digest in {progress.opening.batch_digest for progress in others}:
            raise RefusedError(SumRefusal.BATCH_REPEATED)
        if before is None:
            return
        last = before.opening
        if opening.attempt == 0:
            raise RefusedError(SumRefusal.BATCH_REPEATED)
        if before.stage == Stage.VOID:
            raise RefusedError(SumRefusal.BATCH_VOID)
        if before.stage in (Stage.CONSENTED, Stage.UNMASKED):  # it signs one set of survivors of a batch
            raise RefusedError(SumRefusal.UNMASKED)
        same = (last.batch_digest, last.length, last.bits)
        if same != (opening.batch_digest, opening.length, opening.bits):
            raise self._void(before, SumRefusal.BATCH_CHANGED)
        if opening.attempt <= last.attempt:
            raise RefusedError(SumRefusal.ATTEMPT)

    def mask(self, request: MaskRequest, votes: Votes) -> MaskedVector | ShareDoubt:
        """Mask this hospital's vector, once an attempt. `votes` is called only when every check has passed.

        Where a share cannot be used, no vector is made: the reply is a doubt about its sender.

        Shapes: `votes` gives int64 values of any shape with the batch's length as size, noise included.

        Raises:
            RefusedError: a check failed.
            InputError: the vector does not belong into this sum; nothing has changed.
        """
        seat = self._authentic(request)
        if request.party != self.enrolment.party:
            raise RefusedError(SumRefusal.SHARERS, "the request is for another hospital")
        progress = self._expect(request, Stage.SHARED)
        sharers, opening = request.sharers, progress.opening
        among = np.setdiff1d(np.arange(len(seat.members)), progress.out)
        if not self._fits(seat, request) or not self._is_quorum(seat, sharers, among=among, near=True):
            raise self._void(progress, SumRefusal.SHARERS)
        if _digest_of(request, seat.position) != progress.own or not self._pinned_by_near(seat, request):
            raise self._void(progress, SumRefusal.DEALT)
        secrets, own = progress.held
        view = sharing_view(opening, sharers, request.dealt)
        try:
            held = dealing.open_shares(seat, request, own)
        except dealing.UnusableShareError as error:
            return self._doubt(progress, request, view, error.sender)
        values = votes()  # last of all: votes are read and noise is drawn when every check has passed
        dealing.check_vector(values, opening)
        vector = dealing.mask(seat, opening, sharers, secrets[0], values)
        progress.stage, progress.held, progress.sharers, progress.view = Stage.MASKED, held, sharers, view
        progress.handled.append(request.digest)
        return MaskedVector(**self._told(progress), vector=vector).signed(self._identity)

    def _doubt(self, progress: BatchProgress, request: MaskRequest, view: bytes, sender: int) -> ShareDoubt:
        progress.finish(Stage.DOUBTED)  # it never masks in this attempt
        progress.doubted, progress.doubt, progress.view = sender, _digest_of(request, sender), view
        progress.handled.append(request.digest)
        return ShareDoubt(**self._told(progress), doubted=sender).signed(self._identity)

    def complain(self, evidence: ShareEvidence) -> Complaint:
        """Hold what the doubted hospital signed against what came of it, and show to all that it is wrong.

        Raises:
            RefusedError: it signed something else, or for another attempt, than the coordinator passed on.
        """
        seat = self._authentic(evidence)
        if evidence.party != self.enrolment.party:
            raise RefusedError(SumRefusal.DEALT, "the request is for another hospital")
        progress = self._expect(evidence, Stage.DOUBTED)
        accused, place = progress.doubted, seat.position
        name, public = seat.members.names[accused], seat.members.identities[accused]
        shares = BatchShares.from_bytes(evidence.message)
        # What an honest one sealed for another batch does not open either; the key would open all of it.
        same = shares.head == progress.opening.head and shares.digest == progress.doubt
        if not same or shares.party != name or not shares.signed_by(public):
            raise self._void(progress, SumRefusal.DEALT)
        opener, graph = dealing.ShareOpener(seat.members, progress.opening.head, place), seat.members.graph
        try:
            opener.open(seat.seal(seat.slot(accused)), accused, *shares.part(graph.slot(accused, place)))
        except dealing.UnusableShareError:
            progress.stage = Stage.COMPLAINED
            progress.handled.append(evidence.digest)
            key = self._state.sealing.key(seat.slot(accused)).to_bytes()
            complaint = Complaint(**self._told(progress), accused=name, about=progress.doubt, key=key)
            return complaint.signed(self._identity)
        raise self._void(progress, SumRefusal.DEALT)

    def consent(self, notice: SurvivorNotice) -> SurvivorConsent:
        """Sign the one set of survivors that this hospital will help to unmask."""
        seat = self._authentic(notice)
        progress = self._expect(notice, Stage.MASKED)
        survivors, graph = notice.survivors, seat.members.graph
        enough = self._is_quorum(seat, survivors, among=progress.sharers)
        # Near everyone, not near this hospital alone: else a sum falls into parts (`graph.py`).
        if not enough or graph.fewest(progress.sharers, survivors) < graph.least:
            raise self._void(progress, SumRefusal.SURVIVORS)
        progress.stage, progress.survivors = Stage.CONSENTED, survivors
        progress.handled.append(notice.digest)
        text = progress.view = consent_digest(progress.view, survivors)
        return SurvivorConsent(**self._told(progress), signature=self._identity.sign(text))

    def unmask(self, request: UnmaskRequest) -> UnmaskShares:
        """Reveal one share a sharer, once a batch, and forget the batch's secrets.

        Raises:
            RefusedError: too few survivors have signed the set that this hospital signed.
        """
        seat = self._authentic(request)
        progress = self._expect(request, Stage.CONSENTED)
        if not self._is_signed(seat, progress, request):
            raise self._void(progress, SumRefusal.CONSENT)
        near = seat.members.graph.among(seat.position, progress.sharers)
        shares = dealing.reveal(near, progress.survivors, progress.held)
        progress.finish(Stage.UNMASKED)  # what was not sent is forgotten: this batch is never opened again
        progress.handled.append(request.digest)
        return UnmaskShares(**self._told(progress), shares=shares).signed(self._identity)

    def _enrol_again(self, request: EnrolRequest) -> Enrolment:
        if request.coordinator != self._state.coordinator or not request.signed_by(request.coordinator):
            raise RefusedError(SumRefusal.COORDINATOR)
        if request.study != self.enrolment.study:
            raise RefusedError(SumRefusal.STUDY)
        return self.enrolment

    def _authentic(self, request: BatchRequest) -> dealing.Seat:
        """The seat, once the request is known to be the coordinator's and about the pinned roster.

        The roster is held to the demands of now: who is in it is known, and can be asked after by telephone,
        only since it was pinned.
        """
        seat = self._state.seat
        if seat is None or request.roster != seat.members.digest:
            raise RefusedError(SumRefusal.ROSTER_STALE)
        if not request.signed_by(self._state.coordinator):
            raise RefusedError(SumRefusal.COORDINATOR)
        check_demands(seat.members, self.enrolment.party, self._demands)
        return seat

    def _expect(
        self, request: MaskRequest | ShareEvidence | SurvivorNotice | UnmaskRequest, stage: Stage
    ) -> BatchProgress:
        """The batch, where this request is the next step of it.

        A request that only comes late, early or twice leaves the batch as it is: networks do that. One that
        contradicts an earlier one is the coordinator's doing, since it signed both: the batch is void.
        """
        progress = self._batches.get(request.batch)
        if progress is None:
            raise RefusedError(SumRefusal.BATCH_UNKNOWN)
        if request.digest in progress.handled:
            raise RefusedError(SumRefusal.REPEATED)
        if progress.stage == Stage.VOID:
            raise RefusedError(SumRefusal.BATCH_VOID)
        if request.batch_digest != progress.opening.batch_digest:
            raise self._void(progress, SumRefusal.BATCH_CHANGED)
        if request.attempt < progress.opening.attempt:
            raise RefusedError(SumRefusal.ATTEMPT)
        if progress.stage == Stage.UNMASKED:
            raise RefusedError(SumRefusal.UNMASKED)
        aside = stage != Stage.SHARED and progress.stage in _DOUBTING and progress.stage != stage
        if request.attempt > progress.opening.attempt or progress.stage < stage or aside:
            raise RefusedError(SumRefusal.OUT_OF_ORDER)
        if progress.stage > stage:
            raise self._void(progress, SumRefusal.EQUIVOCATION)
        return progress

    def _told(self, progress: BatchProgress) -> ReplyHead:
        return ReplyHead(**progress.opening.head, party=self.enrolment.party, view=progress.view)

    @staticmethod
    def _void(progress: BatchProgress, reason: SumRefusal) -> RefusedError:
        if progress.stage != Stage.UNMASKED:
            progress.finish(Stage.VOID)
        return RefusedError(reason)

    @staticmethod
    def _fits(seat: dealing.Seat, request: MaskRequest) -> bool:
        """Whether there is as much of everything as there are sharers, and near ones."""
        if request.sharers.max(initial=0) >= len(seat.members):
            return False
        count = len(seat.members.graph.among(seat.position, request.sharers))
        sizes = len(request.sealed), len(request.commitments), len(request.dealt), len(request.pinned)
        every = KEY_BYTES * len(request.sharers)
        return sizes == (SEALED_BYTES * count, PAIR_BYTES * count, every, SIGNATURE_BYTES * count)

    @staticmethod
    def _pinned_by_near(seat: dealing.Seat, request: MaskRequest) -> bool:
        """Whether all near sharers have pinned this roster.

        Else the key that one of them gives away in a complaint, under another roster, where its place is a
        liar's, would open what this hospital sealed for it.
        """
        near = seat.members.graph.among(seat.position, request.sharers).tolist()
        size, given = SIGNATURE_BYTES, request.pinned
        return all(
            roster_pinned(seat.members, at, given[size * row : size * (row + 1)])
            for row, at in enumerate(near)
        )

    def _is_quorum(
        self, seat: dealing.Seat, chosen: Positions, *, among: Positions, near: bool = False
    ) -> bool:
        """Whether a sum may be over the chosen; with `near` enough of them are near this hospital, too."""
        if len(chosen) < seat.members.threshold or seat.position not in chosen:
            return False
        if not np.isin(chosen, among).all():
            return False
        graph = seat.members.graph
        if near and len(graph.among(seat.position, chosen)) < graph.least:
            return False
        return enough_confirmed(seat.members, self.enrolment.party, self._demands, chosen)

    def _is_signed(self, seat: dealing.Seat, progress: BatchProgress, request: UnmaskRequest) -> bool:
        """Whether enough in all, and near each near sharer, signed the same as it; no more is verified."""
        needed = len(progress.survivors) if self._demands.every_signature else seat.members.threshold
        signers, graph, consents = request.consenting, seat.members.graph, request.consents
        if len(signers) < needed or not np.isin(signers, progress.survivors).all():
            return False
        rows = graph.nearest(seat.position, signers, needed)
        few = graph.fewest(graph.among(seat.position, progress.sharers), signers[rows]) < graph.least
        if few or len(consents) != SIGNATURE_BYTES * len(signers):
            return False
        signatures = (consents[row * SIGNATURE_BYTES : (row + 1) * SIGNATURE_BYTES] for row in rows.tolist())
        publics = (seat.members.identities[signer] for signer in signers[rows].tolist())
        return all(map(verify, publics, signatures, repeat(progress.view)))


def _digest_of(request: MaskRequest, sharer: int) -> bytes:
    """The digest that is passed on of a sharer's message."""
    row = int(np.searchsorted(request.sharers, sharer))
    return request.dealt[row * KEY_BYTES : (row + 1) * KEY_BYTES]

"""What a hospital is in every study: agreed terms, claims, a log, fixed refusals, its part in masked sums."""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clients.account import state_id
from clients.journal import Journal
from clients.kinds import HospitalSide, side_of
from clients.leave import erase, has_left, turn_to_answer
from clients.log import HospitalLog, keep_receipt, keep_student
from clients.site import Objection, Site
from clients.state_dir import OLD_LABELS, TERMS_FILE, agreed_terms
from clients.trail import Trail
from pate_fed.data.dataset import release_memory
from pate_fed.disk import write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.identity.keys import KEY_FILE
from pate_fed.kinds.terms import Terms
from pate_fed.protocol.messages import Question, Refusal, RefusalReply, Reply, SumReply, SumRequest
from pate_fed.secure_sum import (
    HospitalSum,
    PlayedSeats,
    PlayedStore,
    RefusedError,
    SumRange,
    SumRefusal,
    SumStore,
    messages,
    read_request,
    threshold_for,
)
from pate_fed.secure_sum import messages as steps
from pate_fed.structure.faults import keep

R = TypeVar("R", bound=Reply)
A = TypeVar("A", bound=NDArray[Any])


def _refusal_for(error: IntegrityError) -> Refusal:
    """What the coordinator is told where a hospital does not enrol."""
    if not isinstance(error, RefusedError):
        return Refusal.FAULT
    known = {SumRefusal.VERSION: Refusal.VERSION, SumRefusal.COORDINATOR: Refusal.COORDINATOR}
    return known.get(error.reason, Refusal.MALFORMED)


SUM_FOLDER = "secure_sum"  # in the hospital's folder: its machine

_PLAYED = PlayedSeats()  # of simulated hospitals; a real one is alone in its process
_MACHINES = dict[Path, HospitalSum]()  # of a simulation that is this process alone
_TURNS = count()  # of theirs; now and then what lies free between what they keep goes back to the system

Ints = NDArray[np.int64]


def is_sound(terms: Terms) -> bool:
    """Whether the terms hide what they say: enough hospitals in a sum, and enough noise of each."""
    if not terms.secure_sum:
        return not terms.adds_noise
    if terms.least_clients < threshold_for(terms.num_clients):
        return False
    return not terms.adds_noise or terms.asks.hides_enough(terms)


def forget_replies(site: Site, folder: Path) -> None:
    """Forget the replies that a hospital's secure summation in a folder keeps to send again.

    Raises:
        IntegrityError: the saved state is damaged.
    """
    _MACHINES.pop(folder / SUM_FOLDER, None)  # a simulation's, which nobody asks any more
    SumStore(folder / SUM_FOLDER, durable=site.durable, key=site.sum_key).forget_replies()


class _Declined(Exception):
    """A vector that is not made, for a reason of the hospital's own."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.value)
        self.reason = reason


class SummingHospital(ABC):
    """One hospital's side of a study; whatever goes out is made in a class that extends it.

    A new process may serve every message, so nothing is kept in memory between them: agreed terms, answered
    questions and the state of sums lie in the site's state directory.
    """

    def __init__(self, site: Site) -> None:
        self._site, self._party, self._folder = site, site.party, site.state_dir
        durable = site.durable
        self.journal = Journal(site.state_dir, durable=durable)
        key = None if site.identity is None else site.identity / KEY_FILE
        self.log = HospitalLog(site.state_dir, key=key, durable=durable)

    @property
    def simulated(self) -> bool:
        """Whether this process only plays a hospital."""
        return self._site.simulated

    @property
    def left(self) -> bool:
        """Whether this hospital has left the study: it answers nothing any more."""
        return has_left(self._site.state_dir)

    def turn_to_answer(self) -> AbstractContextManager[None]:
        """While it is held `pate-fed hospital leave` waits; a simulated hospital has nobody to wait."""
        return nullcontext() if self.simulated else turn_to_answer(self._site.state_dir)

    def forget(self) -> None:
        """Erase what answers are made of, once this hospital has left."""
        erase(self._site.state_dir)

    def refuse(self, reason: Refusal) -> RefusalReply:
        """A refusal from the fixed list, noted in the hospital's own log."""
        self.log.note("refused", reason=reason.name)
        return RefusalReply(party=self._party, code=reason.name)

    def unusable(self, error: InputError) -> RefusalReply:
        """The hospital's own data do not do; why is for its own eyes."""
        self.fault(error, "data")
        return self.refuse(Refusal.DATA)

    def fault(self, error: BaseException, event: str = "fault") -> None:
        """Something went wrong here; what, is for the hospital's own eyes, or for who simulates it."""
        self.log.fault(error, event)
        keep(error)

    def _agreed(self) -> Terms | None:
        """The terms that this hospital agreed to; None before."""
        return agreed_terms(self._folder)

    def _bound(self, terms: Terms) -> Refusal | None:
        """No to other terms than those that this hospital answers under, but for ones of the same answer."""
        agreed, where, once = self._agreed(), self._folder, terms.asks.once_for_all
        if once and (where / OLD_LABELS).exists():
            where /= OLD_LABELS
        elif agreed is None or agreed.answer_digest == terms.answer_digest:
            return None
        if not once:
            return Refusal.TERMS
        sentence = (
            f"they and the answer are in {where}: without it this hospital would answer anew, and what both "
            "answers cost would add up"
        )
        return self._objects((Refusal.ANSWERED, sentence))

    def _agree(self, terms: Terms) -> Refusal | None:
        """Bind this hospital to the terms; why it is bound to others, that came at the same time."""
        with self.journal.turn():
            reason = self._bound(terms)
            if reason is None and self._agreed() != terms:
                content = terms.to_json().encode()
                write_private(self._folder / TERMS_FILE, content, durable=self._site.durable)
        return reason

    def _objects(self, found: Objection | None) -> Refusal | None:
        """The reason of an objection, if there is one; its sentence is for the hospital's own eyes."""
        if found is None:
            return None
        reason, sentence = found
        self.log.note("policy", reason=reason.name, sentence=f"{reason.value}: {sentence}")
        return reason

    def _over_account(self, terms: Terms, *, asked: bool) -> Refusal | None:
        """Write the study on the hospital's account over all its studies, once; why it may not be, or None.

        It counts there once it is `asked` for what follows from the hospital's records.
        """
        site = self._site
        if site.account is None:
            return None
        data, state = "" if site.settings is None else Path(site.settings.data).name, state_id(site.state_dir)
        try:
            booked = site.account.book(terms, state=state, data=data, policy=site.policy, asked=asked)
        except InputError as error:
            self.fault(error, "data")
            return Refusal.DATA
        return self._objects(booked)

    def _old_copy(self, question: Question, *, run: bytes, asks: bool = True) -> Refusal | None:
        """Whether this hospital, or whoever asks, was put back from a backup, by the heads that are shown."""
        if self.simulated:
            return None
        return self._objects(self._trail.objection(question, run=run, asks=asks))

    def _stated(self, answer: bytes, terms: Terms) -> bytes:
        """What goes with an answer once the trail has it, on the disk; empty of a simulated hospital."""
        if self.simulated:
            return b""
        return self._trail.add(hashlib.sha256(answer).digest(), terms_digest=terms.digest)

    @property
    def _trail(self) -> Trail:
        return Trail(self._site.state_dir, party=self._party, key=self._site.sum_key)

    def _keep_receipt(self, receipt: str) -> None:
        """Keep the coordinator's receipt of what came from this hospital, if it is one."""
        try:
            if self._site.identity is None:
                raise IntegrityError("a receipt came, and this hospital has no identity to check it with")
            keep_receipt(self._site.state_dir, receipt, self._site.identity)
            self.log.note("receipt", kept=hashlib.sha256(receipt.encode()).hexdigest())
        except (InputError, IntegrityError, OSError) as error:
            self.log.note("receipt refused", why=str(error))

    def _keep_student(self, content: bytes) -> None:
        """Keep the study's student, if it is one that its coordinator signed."""
        try:
            if self._site.identity is None:
                raise IntegrityError("a student came, and this hospital has no identity to check it with")
            found = keep_student(self._site.state_dir, content, self._site.identity)
            self.log.note("student", kept=found.digest, bytes=len(content))
        except (InputError, IntegrityError) as error:  # a full disk may pass: then it is sent again
            self.log.note("student refused", why=str(error))

    def _answered(self, answer: Callable[[], R]) -> R | RefusalReply:
        """The answer, or a refusal where the hospital's own data or what came cannot be used."""
        try:
            return answer()
        except InputError as error:
            return self.unusable(error)
        except IntegrityError as error:
            self.fault(error)
            return self.refuse(_refusal_for(error))

    # Its steps in a secure summation: what it checks about a batch, its noise, its masks.
    #
    # The protocol itself is `pate_fed.secure_sum`; here its batches are tied to the questions that this
    # hospital agreed to answer: a masked vector is the answer to one question, named by its digest, and to no
    # other.

    @abstractmethod
    def _step_refusal(self, terms: Terms | None, question: Question) -> Refusal | None:
        """Why nothing is answered on this question, which names no places in the last two steps; or None."""

    def _side(self, terms: Terms) -> HospitalSide:
        return side_of(self._site, terms, self.log)

    def _count(self, terms: Terms, question: Question, count: Callable[[Question], A]) -> A:
        """What this hospital says of the places in a question; its log tells of it."""
        answer, asks = count(question), terms.asks.kind
        size = {"rows": len(answer), "bytes": answer.nbytes}
        self.log.record("answered", asks=asks, **size, question=question.digest)
        return answer

    def sum_step(self, request: SumRequest) -> SumReply | RefusalReply:
        """One step of a batch's secure summation; nothing leaves this hospital but under all its masks.

        Noise, where the terms say so, is added before the masks; a question is claimed and answered once.
        State and reply are on the disk when this returns: the identical step gets the identical reply again.

        Raises:
            IntegrityError: this hospital has not enrolled, or its state is damaged.
        """
        terms = self._agreed()
        gives = terms is not None and terms.asks.gives and len(request.index) > 0
        if request.given and not gives:  # no answer of the kind rests on what comes with a question
            return self.refuse(Refusal.MALFORMED)
        reason = self._step_refusal(terms, request.question)
        if reason is not None:
            return self.refuse(reason)
        if terms is None or not terms.secure_sum or request.terms_digest != terms.digest:
            return self.refuse(Refusal.TERMS)
        with self._store(terms).machine() as machine:
            try:
                reply = self._step_reply(machine, terms, request)
            except RefusedError as error:
                self.log.note("refused", reason=f"{error.reason.name} in secure summation")
                if error.reason is SumRefusal.CONFIRMED:
                    self._objects((Refusal.POLICY_CONFIRMED, str(error)))
                    return self.refuse(Refusal.POLICY_CONFIRMED)
                reply = machine.refuse(error.reason)
            except _Declined as error:
                return self.refuse(error.reason)
            except InputError as error:
                return self.unusable(error)
        # Only now: a claim says that a vector may have left, and this one is on the disk to be sent again.
        if isinstance(reply, steps.MaskedVector) and not self.journal.claim(request.question):
            return self.refuse(Refusal.REPEATED)
        if isinstance(reply, steps.UnmaskShares):
            self.journal.note_revealed(reply.batch_digest)
        packed = reply.to_bytes()
        stated = b"" if isinstance(reply, steps.SumRefused) else self._stated(packed, terms)
        return SumReply(party=self._party, step=packed, statement=stated)

    def _enrol(self, terms: Terms, request: bytes) -> bytes:
        """The packed enrolment under the agreed terms; empty where nothing is masked."""
        if not terms.secure_sum:
            if request:
                raise RefusedError(SumRefusal.STUDY)
            return b""
        message = read_request(request)
        if not isinstance(message, steps.EnrolRequest):
            raise RefusedError(SumRefusal.MALFORMED)
        return self._store(terms).enrol(message, party=self._party, study=terms.digest)

    def _store(self, terms: Terms) -> SumStore | PlayedStore:
        """This hospital's machine in the study's secure summation."""
        site, folder = self._site, self._folder / SUM_FOLDER
        if site.simulated and site.alone:
            if next(_TURNS) % 32 == 0:
                release_memory()
            return PlayedStore(_MACHINES, folder, site.demands(terms))
        return SumStore(folder, site.demands(terms), durable=site.durable, key=site.sum_key)

    def _step_reply(self, machine: HospitalSum, terms: Terms, request: SumRequest) -> messages.Reply:
        if request.roster:
            roster = read_request(request.roster)
            if not isinstance(roster, steps.PinRequest):
                raise RefusedError(SumRefusal.MALFORMED)
            before = machine.roster
            machine.pin(roster, played=_PLAYED if self._site.simulated else None)
            if not before:
                self._show_unconfirmed(machine, terms)
        step = read_request(request.step)
        asks = isinstance(step, steps.BatchOpening | steps.MaskRequest)
        if isinstance(step, steps.BatchOpening | steps.MaskRequest):
            self._check(step, terms, request.question, begun=machine.begun(step.batch))
        if (reason := self._old_copy(request.question, run=machine.coordinator, asks=asks)) is not None:
            raise _Declined(reason)
        again = isinstance(step, steps.MaskRequest) and step.attempt > 0
        reply = machine.answer(step, lambda: self._vector(terms, request.question, again=again))
        if isinstance(step, steps.BatchOpening) and (wrong := machine.shown_wrong(step.batch)):
            self.log.note("shown wrong", hospitals=", ".join(wrong))
        if (
            isinstance(step, steps.SurvivorNotice)
            and isinstance(reply, steps.SurvivorConsent)
            and not self.simulated
        ):
            members = list(machine.roster)[1:]  # the first is the coordinator
            names, run = [members[place] for place in step.survivors.tolist()], machine.coordinator
            self._trail.note_survivors(step.batch_digest, names, terms_digest=terms.digest, run=run)
        return reply

    def _show_unconfirmed(self, machine: HospitalSum, terms: Terms) -> None:
        """Show whom the roster has beside those who are confirmed here; they count as made up."""
        if not (trusted := self._site.demands(terms).trusted):
            return
        members = list(machine.roster.items())[1:]  # the first is the coordinator
        others = [f"{name}={words}" for name, words in members if name != self._party and name not in trusted]
        if others:
            told = f"takes part, not confirmed here: {', '.join(others)}"
            print(f"{self._party}: {told}", file=sys.stderr, flush=True)
            self.log.note("not confirmed", hospitals=", ".join(others))

    def _check(
        self, step: steps.BatchOpening | steps.MaskRequest, terms: Terms, question: Question, *, begun: bool
    ) -> None:
        """Hold the batch against the question that it is said to answer; `begun` has secrets of its own."""
        if (step.batch, step.batch_digest) != (question.batch, question.digest):
            raise RefusedError(SumRefusal.BATCH_CHANGED)
        if isinstance(step, steps.BatchOpening):
            # Another attempt is one at a batch under way, of which nothing was revealed.
            again = begun and step.attempt > 0
            if self.journal.revealed(question.digest):
                raise RefusedError(SumRefusal.UNMASKED)
            if not again and self.journal.claimed(question.content_digest):
                raise RefusedError(SumRefusal.BATCH_REPEATED)
            most = terms.bounds.largest(terms.num_clients)
            bits = (SumRange.noisy() if most is None else SumRange.votes(most)).bits
            if (step.length, step.bits) != (len(question.index) * terms.bounds.columns, bits):
                raise RefusedError(SumRefusal.MALFORMED)

    def _vector(self, terms: Terms, question: Question, *, again: bool = False) -> Ints:
        """What is masked, with this hospital's share of the noise; made once an attempt, after every check.

        With `again` an earlier attempt's vector may be on its way, which nobody can unmask any more.
        """
        if self.journal.overlaps(question.index, but=question if again else None):
            raise RefusedError(SumRefusal.BATCH_REPEATED)
        if (reason := self._over_account(terms, asked=True)) is not None:
            raise _Declined(reason)
        side = self._side(terms)
        counts = self._count(terms, question, side.answer)
        if not terms.adds_noise:
            return counts
        return side.add_noise(counts, self._site.noise(question.batch))

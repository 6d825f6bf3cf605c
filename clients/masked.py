"""A hospital's steps in a secure summation: what it checks about a batch, its noise, its masks.

The protocol itself is `pate_fed.secure_sum`; here its batches are tied to the questions that this hospital
agreed to answer: a masked vector is the answer to one question, named by its digest, and to no other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.base import BaseHospital
from clients.site import BaseSite
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import NoiseSource
from pate_fed.protocol.messages import Question, RefusalReply, SumReply, SumRequest
from pate_fed.protocol.refusals import Refusal
from pate_fed.secure_sum import (
    HospitalSum,
    PlayedSeats,
    PlayedStore,
    RefusedError,
    SumRange,
    SumRefusal,
    SumStore,
    read_request,
    threshold_for,
)
from pate_fed.secure_sum.messages import (
    BatchOpening,
    EnrolRequest,
    MaskedVector,
    MaskRequest,
    Reply,
    Roster,
)

SUM_FOLDER = "secure_sum"  # in the hospital's folder: its machine

_PLAYED = PlayedSeats()  # of simulated hospitals; a real one is alone in its process
_MACHINES = dict[Path, HospitalSum]()  # of a simulation that is this process alone
_MOST_IN_MEMORY = 512  # hospitals of such a simulation: their shares take some 130 MB

Ints = NDArray[np.int64]


def is_sound(terms: Terms) -> bool:
    """Whether the terms hide what they say: enough hospitals in a sum, and enough noise of each."""
    if not terms.secure_sum:
        return not terms.adds_noise
    if terms.least_clients < threshold_for(terms.num_clients):
        return False
    return not terms.adds_noise or terms.asks.hides_enough(terms)


def forget_replies(site: BaseSite, folder: Path) -> None:
    """Forget the replies that a hospital's secure summation in a folder keeps to send again.

    Raises:
        IntegrityError: the saved state is damaged.
    """
    _MACHINES.pop(folder / SUM_FOLDER, None)  # a simulation's, which nobody asks any more
    SumStore(folder / SUM_FOLDER, durable=site.durable, key=site.sum_key).forget_replies()


class SummingHospital(BaseHospital, ABC):
    """A hospital whose votes, counts or sums leave it under masks, where the terms say so."""

    @abstractmethod
    def _step_refusal(self, terms: Terms | None, question: Question) -> Refusal | None:
        """Why nothing is answered on this question, which names no places in the last two steps; or None."""

    @abstractmethod
    def _count(self, terms: Terms, question: Question) -> Ints:
        """What this hospital says of the places that a question names: int64 (queries, classes)."""

    @abstractmethod
    def _with_share(self, terms: Terms, counts: Ints, source: NoiseSource) -> Ints:
        """What is said with this hospital's share of the noise."""

    @abstractmethod
    def _noise(self, terms: Terms, batch: int) -> NoiseSource:
        """The source of this hospital's share of a batch's noise, where the terms want one."""

    def sum_step(self, request: SumRequest) -> SumReply | RefusalReply:
        """One step of a batch's secure summation; nothing leaves this hospital but under all its masks.

        Noise, where the terms say so, is added before the masks; a question is claimed and answered once.
        State and reply are on the disk when this returns: the identical step gets the identical reply again.

        Raises:
            IntegrityError: this hospital has not enrolled, or its state is damaged.
        """
        terms = self._agreed()
        if request.given:  # no kind's answer rests on what comes with a question
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
                reply = machine.refuse(error.reason)
        # Only now: a claim says that a vector may have left, and this one is on the disk to be sent again.
        if isinstance(reply, MaskedVector) and not self.journal.claim(request.question):
            return self.refuse(Refusal.REPEATED)
        return SumReply(party=self._party, step=reply.to_bytes())

    def _enrol(self, terms: Terms, request: bytes) -> bytes:
        """The packed enrolment under the agreed terms; empty where nothing is masked.

        Raises:
            RefusedError: a request that does not go with the terms, or that this hospital refuses.
            IntegrityError: damaged bytes or state.
        """
        if not terms.secure_sum:
            if request:
                raise RefusedError(SumRefusal.STUDY)
            return b""
        message = read_request(request)
        if not isinstance(message, EnrolRequest):
            raise RefusedError(SumRefusal.MALFORMED)
        return self._store(terms).enrol(message, party=self._party, study=terms.digest)

    def _store(self, terms: Terms) -> SumStore | PlayedStore:
        """This hospital's machine in the study's secure summation."""
        site, folder = self._site, self._folder / SUM_FOLDER
        if site.simulated and site.alone and terms.num_clients <= _MOST_IN_MEMORY:
            return PlayedStore(_MACHINES, folder, site.demands(terms))
        return SumStore(folder, site.demands(terms), durable=site.durable, key=site.sum_key)

    def _step_reply(self, machine: HospitalSum, terms: Terms, request: SumRequest) -> Reply:
        if request.roster:
            roster = read_request(request.roster)
            if not isinstance(roster, Roster):
                raise RefusedError(SumRefusal.MALFORMED)
            machine.pin(roster, played=_PLAYED if self._site.simulated else None)
        step = read_request(request.step)
        if isinstance(step, BatchOpening | MaskRequest):
            self._check(step, terms, request.question)
        return machine.answer(step, lambda: self._vector(terms, request.question))

    def _check(self, step: BatchOpening | MaskRequest, terms: Terms, question: Question) -> None:
        """Hold the batch against the question that it is said to answer."""
        if (step.batch, step.batch_digest) != (question.batch, question.digest):
            raise RefusedError(SumRefusal.BATCH_CHANGED)
        if isinstance(step, BatchOpening):
            if self.journal.claimed(question.content_digest):
                raise RefusedError(SumRefusal.BATCH_REPEATED)
            most = terms.bounds.largest(terms.num_clients)
            bits = (SumRange.noisy() if most is None else SumRange.votes(most)).bits
            if (step.length, step.bits) != (len(question.index) * terms.bounds.columns, bits):
                raise RefusedError(SumRefusal.MALFORMED)

    def _vector(self, terms: Terms, question: Question) -> Ints:
        """What is masked, with this hospital's share of the noise; made once a batch, after every check."""
        if self.journal.overlaps(question.index):
            raise RefusedError(SumRefusal.BATCH_REPEATED)
        counts = self._count(terms, question)
        if not terms.adds_noise:
            return counts
        return self._with_share(terms, counts, self._noise(terms, question.batch))

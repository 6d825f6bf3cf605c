"""A hospital's steps in a secure summation: what it checks about a batch, its noise, its masks.

The protocol itself is `pate_fed.secure_sum`; here its batches are tied to the questions that this hospital
agreed to answer: a masked vector is the answer to one question, named by its digest, and to no other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from clients.journal import Journal
from clients.policy import Agreement
from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy import NoiseSource, hospital_noise, party_sigma
from pate_fed.protocol.messages import Refusal, SumRequest, Terms
from pate_fed.secure_sum import (
    HospitalSum,
    RefusedError,
    SumRange,
    SumRefusal,
    SumStore,
    add_noise_share,
    read_request,
    threshold_for,
)
from pate_fed.secure_sum.messages import BatchOpening, EnrolRequest, MaskRequest, Reply, Roster

__all__ = ["SUM_FOLDER", "MaskedStep", "enrol", "is_sound", "refusal_for"]

SUM_FOLDER = "secure_sum"
"""In a hospital's state directory: its machine."""

CountVotes = Callable[[NDArray[np.int64]], NDArray[np.int64]]


def is_sound(terms: Terms) -> bool:
    """Whether the terms hide what they say: enough hospitals in a sum, and enough noise of each."""
    if not terms.secure_sum:
        return not terms.adds_noise
    if terms.least_clients < threshold_for(terms.num_clients):
        return False
    if not terms.adds_noise:
        return True
    try:
        least = party_sigma(terms.sigma2, parties=terms.least_clients, dropouts=0, colluders=terms.colluders)
        hospital_noise(sigma_party=terms.sigma_party or 0.0, survivors=terms.least_clients)
    except InputError:
        return False
    return terms.sigma_party is not None and terms.sigma_party >= least


def enrol(store: SumStore, terms: Agreement, request: bytes, *, party: str) -> bytes:
    """The packed enrolment under the agreed terms; empty where votes are not masked.

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
    return store.enrol(message, party=party, study=terms.digest)


def refusal_for(error: IntegrityError) -> Refusal:
    """What the coordinator is told where a hospital does not enrol."""
    if not isinstance(error, RefusedError):
        return Refusal.FAULT
    known = {SumRefusal.VERSION: Refusal.VERSION, SumRefusal.COORDINATOR: Refusal.COORDINATOR}
    return known.get(error.reason, Refusal.MALFORMED)


class MaskedStep:
    """Answers one step of a sum that lies in `sum_range`.

    `count_votes` gives int64 (queries, classes) for the places that a question names, `noise` the source of
    this hospital's share for a batch, where the terms want one.
    """

    def __init__(
        self,
        store: SumStore,
        terms: Agreement,
        journal: Journal,
        count_votes: CountVotes,
        noise: Callable[[int], NoiseSource],
        *,
        sum_range: SumRange,
    ) -> None:
        self._store, self._terms, self._journal = store, terms, journal
        self._count_votes, self._noise, self._range = count_votes, noise, sum_range

    def answer(self, request: SumRequest) -> bytes:
        """The packed reply, or a packed and signed refusal; the state is on the disk when this returns.

        Raises:
            IntegrityError: this hospital has not enrolled, or its state is damaged.
        """
        with self._store.machine() as machine:
            try:
                reply: Reply = self._reply(machine, request)
            except RefusedError as error:
                self._journal.note("refused", reason=f"{error.reason.name} in secure summation")
                reply = machine.refuse(error.reason)
        return reply.to_bytes()

    def _reply(self, machine: HospitalSum, request: SumRequest) -> Reply:
        if request.roster:
            roster = read_request(request.roster)
            if not isinstance(roster, Roster):
                raise RefusedError(SumRefusal.MALFORMED)
            machine.pin(roster)
        step = read_request(request.step)
        if isinstance(step, BatchOpening | MaskRequest):
            self._check(step, request)
        return machine.answer(step, lambda: self._vector(request))

    def _check(self, step: BatchOpening | MaskRequest, request: SumRequest) -> None:
        """Hold the batch against the question that it is said to answer."""
        question = request.question
        if (step.batch, step.batch_digest) != (question.batch, question.digest):
            raise RefusedError(SumRefusal.BATCH_CHANGED)
        if isinstance(step, BatchOpening):
            if self._journal.claimed(question.content_digest):
                raise RefusedError(SumRefusal.BATCH_REPEATED)
            length = len(question.index) * self._terms.num_classes
            if (step.length, step.bits) != (length, self._range.bits):
                raise RefusedError(SumRefusal.MALFORMED)

    def _vector(self, request: SumRequest) -> NDArray[np.int64]:
        """This hospital's votes with its share of the noise; called once a batch, after every check."""
        question = request.question
        if not self._journal.claim(question.content_digest, question.index):
            raise RefusedError(SumRefusal.BATCH_REPEATED)
        votes = self._count_votes(question.index)
        if not self._terms.adds_noise:
            return votes
        source = self._noise(question.batch)
        return add_noise_share(votes, source.discrete_gaussian, sigma_party=self._terms.sigma_party or 0.0)

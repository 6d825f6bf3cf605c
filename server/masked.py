"""A batch under masks: the coordinator's rounds of a secure summation, over the parties of a study.

The coordinator gets masked vectors and, where enough parties go along with all four steps, their sum. Who
falls silent on the way is out of the sum or, later, recovered from. Each step is on the disk before its first
message, and each reply before the step is closed: a coordinator that died, or had too few hospitals, goes on
with the very same batch, over the same hospitals, to the same sum. Only a batch that can never come to one is
void, and never asked again. Where a complaint shows who sealed wrong shares, or complained of right ones,
that one is left out of the study, and the batch begins again before anything is unmasked of it or charged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Set
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import DamagedFileError, as_written
from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.kinds.terms import Terms
from pate_fed.protocol import messages as wire
from pate_fed.protocol.heads import Head, Statement, read_heads
from pate_fed.secure_sum import CoordinatorSum, SumBatch, SumRange, SumRefusal, read_reply
from pate_fed.secure_sum.batch import Made
from pate_fed.secure_sum.messages import (
    BatchOpening,
    BatchReply,
    BatchRequest,
    BatchShares,
    Complaint,
    Enrolment,
    MaskedVector,
    MaskRequest,
    ShareDoubt,
    SumRefused,
    SurvivorConsent,
    UnmaskShares,
)
from server.exchange import Answer
from server.state import ROSTER, CoordinatorState, OpenBatch, Totals

Ask = Callable[[str, Mapping[int, wire.Record], Callable[[Answer], None]], Counter[str]]
"""Sends messages of one type to nodes, has each answer taken, and counts why others were left out."""

ROUNDS = 4
"""Messages that each party gets about one batch."""

# What another try may mend: a full disk, say, or an older program. Any other refusal is the batch's for good.
_MENDED = frozenset({SumRefusal.FAULT, SumRefusal.VERSION})
_MASKING = 1  # the step, counted from 0, whose requests ask for votes
_NO_INDEX: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class MaskedRounds:
    """One study's secure summation at the coordinator.

    `expected` are the hospitals' public keys by name, where they were admitted with one; no others join, and
    who is not in it any more is left out of a sum of which the survivors are not named yet. `wrong` is told
    who has broken the protocol, and how.
    Another process goes on with the keys and the roster in `state`.
    """

    def __init__(
        self,
        terms: Terms,
        state: CoordinatorState,
        *,
        expected: Mapping[str, bytes] | None = None,
        wrong: Callable[[str, str], None] = lambda party, reason: None,
    ) -> None:
        self._wrong = wrong
        self._expected = expected
        self._terms, self._state = terms, state
        self._row = terms.bounds.row  # the fewest and the most votes that a party has in each row
        identity, roster = state.identity(), state.roster
        self._closed = bool(roster)
        if roster:
            with as_written(state.path(ROSTER)):
                self._sum = CoordinatorSum.resume(identity, roster)
            self._sum.leave_out(state.shown_wrong)
            for party in state.shown_wrong:
                wrong(party, "broke the protocol of secure summation before")
        else:
            self._sum = CoordinatorSum(
                identity,
                study=terms.digest,
                expected=expected,
                places=terms.num_clients,
                threshold=terms.least_clients,
                colluders=terms.colluders,
            )
        # The batch under way: who is asked, names by node, what, and how.
        self._participants: Mapping[int, str]
        self._question: wire.Question
        self._ask: Ask
        self._pinned: set[str] = set()
        self._vectors: dict[str, MaskedVector] = {}  # of this step, so that one can be taken out again
        self._shown: dict[str, Head] = {}  # of the question's heads
        self._never: set[str] = set()  # whose answer to this batch can never fit
        self.spent = self.open = False

    @property
    def enrol_request(self) -> bytes:
        """What every party gets together with the terms."""
        return self._sum.enrol_request().to_bytes()

    def admit(self, reply: wire.JoinReply) -> None:
        """Take a party in that agreed to the terms.

        Raises:
            IntegrityError: its enrolment is damaged, not its own, or not acceptable.
        """
        enrolment = Enrolment.from_bytes(reply.enrolment)
        if enrolment.party != reply.party:
            raise IntegrityError(f"enrolled under the name of {enrolment.party}")
        if self._closed:
            self._require_known(enrolment)
        else:
            self._sum.admit(enrolment)

    def _require_known(self, enrolment: Enrolment) -> None:
        members = self._sum.members
        position = members.positions.get(enrolment.party)
        if position is None:
            raise IntegrityError("is not in the roster with which this study's secure summation was begun")
        known = (members.identities[position], members.exchange_keys[position])
        if known != (enrolment.identity, enrolment.exchange_key):
            raise IntegrityError("enrolled with other keys than before the coordinator was started again")

    def close(self) -> None:
        """Fix who takes part in the whole study, once all have enrolled; a roster that is fixed stays.

        Raises:
            QuorumError: fewer have enrolled than a sum needs.
        """
        if not self._closed:
            self._sum.close_roster()
            self._state.keep_roster(self._sum.to_bytes())
            self._closed = True

    def collect(self, participants: Mapping[int, str], question: wire.Question, ask: Ask) -> Totals:
        """Sum one batch over the participants, names by node, that go through all steps.

        A batch that another process began is gone on with: what was closed stays closed, with those replies.
        `spent` tells from the first request for votes on until the totals are there. `open` is a batch that
        was begun, and that may still come to its sum if this fails, as after a crash. One that is not must be
        charged if it is spent, and is never asked again.

        Raises:
            QuorumError: too few parties are left at some step, or without those who broke the protocol.
            IntegrityError: what was revealed does not fit, or the rows are none of honest votes.
        """
        asked, begun = set[str](), self._begun(question)
        self._participants, self._question, self._ask = participants, question, ask
        self._shown = read_heads(question.heads)
        self._never.clear()
        try:
            while True:
                came_to = self._attempt(asked, begun)
                if isinstance(came_to, Totals):
                    return came_to
                begun = came_to
        except QuorumError:
            able = asked - self._never
            if self._expected is not None:
                able &= set(self._expected)
            self.open = self.open and len(able) >= self._sum.members.threshold
            raise
        except IntegrityError as error:
            self.open = self.open and isinstance(error, DamagedFileError)
            raise

    def _attempt(self, asked: set[str], begun: OpenBatch | None) -> Totals | OpenBatch:
        """One attempt of `collect`, or the next one, where it was given up; nothing of it is ever unmasked.

        `asked` becomes who may answer at the step that it came to.
        """
        bounds, question = self._terms.bounds, self._question
        shape, each = (len(question.index), bounds.columns), self._row
        most = bounds.largest(self._terms.num_clients)
        self.open, self.spent = begun is not None, begun is not None and begun.asked
        attempt = 0 if begun is None else begun.attempt
        self._vectors.clear()
        sum_range = SumRange.noisy() if most is None else SumRange.votes(most)
        batch = self._sum.open_batch(
            batch=question.batch,
            batch_digest=question.digest,
            length=shape[0] * shape[1],
            sum_range=sum_range,
            roster_rides=True,
            attempt=attempt,
            proof=b"" if begun is None else begun.proof,
        )
        if attempt:  # also where a process died between the note of this attempt and the list of names
            self._state.keep_wrong(self._sum.wrong)
        # The rounds fix who is in the sum, and have each of them sign it, before anything is unmasked.
        for step, requests in enumerate(batch.rounds()):
            asked.clear()
            asked.update(requests)
            if begun is None or step > begun.step:
                # On the disk before the first message: from masking on votes may be on their way.
                self.spent = step >= _MASKING
                proof = batch.opening.proof
                self._state.begin_batch(question, asked=self.spent, step=step, attempt=attempt, proof=proof)
                self.open = True
            closed = begun is not None and step < begun.step
            came = self._take_kept(batch, step, closed=closed)
            if closed:
                self._vectors.clear()
                continue  # closed before, and stays so: whoever is not among those that came is out
            self._ask(
                wire.SUM,
                self._records(requests, but=came),
                partial(self._take, batch, step, self._participants),
            )
            self._sum.forget_trees()  # the roster rode with the first step
            if step == _MASKING:
                # Show who cannot use what another one sealed what that one signed, and take their complaints.
                if evidence := self._records(batch.evidence()):
                    self._ask(wire.SUM, evidence, partial(self._take, batch, None, self._participants))
                if batch.verdicts:
                    return self._next_attempt(batch)
            self._withdraw_revoked(batch, step)
        totals = batch.total().reshape(shape)
        voters = len(batch.survivors)
        if each is not None:
            _check_rows(totals, voters, each, modulus=2**sum_range.bits)
            totals = sum_range.fold(totals)
        self.open = self.spent = False
        return Totals(question.index, totals, voters)

    def _next_attempt(self, batch: SumBatch) -> OpenBatch:
        """Leave out who broke the protocol, for good, and begin the next attempt: on the disk, then told.

        No share was revealed, and none will be: what was masked of this attempt is charged to nobody.
        """
        attempt, wrong, question = batch.opening.attempt + 1, batch.verdicts, self._question
        self._state.begin_batch(question, asked=False, attempt=attempt, proof=batch.proof)
        self._sum.leave_out(wrong)
        self._state.keep_wrong(self._sum.wrong)
        self._never.update(wrong)
        self.spent = False
        for party, verdict in wrong.items():
            self._wrong(party, verdict.reason)
        return OpenBatch(question, question.digest, asked=False, attempt=attempt, proof=batch.proof)

    def _begun(self, question: wire.Question) -> OpenBatch | None:
        """How far another process came with this very batch; None where it is new."""
        last = self._state.last_batch
        return last if last is not None and last.digest == question.digest else None

    def _take_kept(self, batch: SumBatch, step: int, *, closed: bool) -> set[str]:
        """Take the replies that another process got to a step; who sent them.

        Of a step that is not closed whoever sent a damaged one is asked again, and gives the same.
        """
        came = set[str]()
        for path in self._state.sum_replies(step, attempt=batch.opening.attempt):
            try:
                reply = _batch_reply(path.read_bytes())
                self._take_reply(batch, reply)
            except IntegrityError:
                if closed:
                    with as_written(path):
                        raise
            else:
                came.add(reply.party)
        return came

    def _take_reply(self, batch: SumBatch, reply: BatchReply) -> None:
        batch.take(reply)
        if self._expected is not None and isinstance(reply, MaskedVector):
            self._vectors[reply.party] = reply

    def _withdraw_revoked(self, batch: SumBatch, step: int) -> None:
        """Take the vectors out again of whoever was revoked while the others were still asked."""
        for party, vector in self._vectors.items():
            if self._expected is not None and party not in self._expected:
                batch.withdraw(vector)
                attempt = batch.opening.attempt
                # Before the step is closed without it.
                self._state.forget_sum_reply(step, party, attempt=attempt)
        self._vectors.clear()

    def _records(
        self, requests: Mapping[str, BatchRequest], *, but: Set[str] = frozenset()
    ) -> Mapping[int, wire.Record]:
        """What goes to each node, made when it is sent; after a restart some of the roster may be gone."""
        nodes = {party: node for node, party in self._participants.items()}
        names = {nodes[party]: party for party in requests if party in nodes and party not in but}
        return Made(names, lambda node: self._record(names[node], requests[names[node]]))

    def _record(self, party: str, step: BatchRequest) -> wire.Record:
        question, asks = self._question, isinstance(step, BatchOpening | MaskRequest)
        return wire.SumRequest(
            terms_digest=question.terms_digest,
            batch=question.batch,
            index=question.index if asks else _NO_INDEX,
            measured=question.measured if asks else 0,
            given=question.given if asks else b"",
            heads=question.heads if asks else "",
            roster=b"" if party in self._pinned else self._sum.pin_request(party).to_bytes(),
            step=step.to_bytes(),
        ).to_record()

    def _take(
        self, batch: SumBatch, step: int | None, participants: Mapping[int, str], answer: Answer
    ) -> None:
        """Take one answer; without a `step` it is not kept, as it is asked for again after a crash."""
        sender, said = participants[answer.node], answer.reply
        if isinstance(said, wire.RefusalReply) and said.refusal is wire.Refusal.REPEATED:
            self._never.add(sender)
        packed = answer.require(wire.SumReply).step
        reply = read_reply(packed)
        if reply.party != sender:
            raise IntegrityError("answered under another name")
        if isinstance(reply, MaskedVector) and self._expected is not None and self._shown:
            _require_counted(answer.require(wire.SumReply).statement, self._shown.get(sender))
        if isinstance(reply, SumRefused):
            refusal = self._sum.read_refusal(reply)
            if refusal not in _MENDED:
                self._never.add(sender)
            raise IntegrityError(f"refused: {refusal.value}")
        try:
            self._take_reply(batch, _batch_reply(packed))
        except IntegrityError:
            if isinstance(reply, UnmaskShares):  # before, nothing is revealed: it may yet say what is right
                self._never.add(sender)
            raise
        if step is not None:
            self._state.keep_sum_reply(step, sender, packed, attempt=batch.opening.attempt)
        self._pinned.add(sender)


def _batch_reply(packed: bytes) -> BatchReply:
    reply = read_reply(packed)
    kinds = BatchShares | MaskedVector | ShareDoubt | Complaint | SurvivorConsent | UnmaskShares
    if not isinstance(reply, kinds):
        raise IntegrityError("sent a reply to another request")
    return reply


def _require_counted(statement: bytes, shown: Head | None) -> None:
    """Hold that a hospital counts its shares and its vector: the others ask for it with the next question."""
    before = 0 if shown is None else shown.count
    if not statement or Statement.read(statement).head.count < before + 2:
        raise IntegrityError("does not count the answers that it gives")


def _check_rows(totals: NDArray[np.int64], voters: int, each: tuple[int, int], *, modulus: int) -> None:
    """Every party votes with all its teachers on every query: a cheap alarm, no proof.

    The sum of a row says nothing of honest votes, as each honest row has the same. Single totals do: a party
    that takes votes away from a class would learn from an alarm how many others gave to it, without noise.
    """
    sums = totals.sum(axis=1) % modulus
    least, most = (voters * votes for votes in each)
    if (sums != sums[:1]).any() or not least <= int(sums[0]) <= most:
        raise IntegrityError(
            f"the totals of {voters} parties are none of honest votes: some party masked other than its "
            "votes; the batch is void and nothing of it is released"
        )

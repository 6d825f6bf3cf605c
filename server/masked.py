"""A batch under masks: the coordinator's rounds of a secure summation, over the parties of a study.

The coordinator gets masked vectors and, where enough parties go along with all four steps, their sum. Who
falls silent on the way is out of the sum or, later, recovered from; a batch that fails is void and is never
asked again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.protocol.label_terms import LabelTerms
from pate_fed.protocol.messages import (
    SUM,
    LabelReply,
    Record,
    SumReply,
    SumRequest,
    TeachReply,
    Terms,
    VoteRequest,
)
from pate_fed.secure_sum import CoordinatorSum, SumBatch, SumRange, read_reply
from pate_fed.secure_sum.batch import BatchRequest
from pate_fed.secure_sum.messages import (
    BatchOpening,
    BatchShares,
    Enrolment,
    MaskedVector,
    MaskRequest,
    Roster,
    SumRefused,
    SurvivorConsent,
    UnmaskShares,
)
from server.exchange import Answer
from server.state import CoordinatorState, Totals

__all__ = ["ROUNDS", "Ask", "MaskedRounds"]

Ask = Callable[[str, Mapping[int, Record], Callable[[Answer], None]], Counter[str]]
"""Sends messages of one type to nodes, has each answer taken, and counts why others were left out."""

ROUNDS = 4
"""Messages that each party gets about one batch."""

_NO_INDEX: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class MaskedRounds:
    """One study's secure summation at the coordinator, asked for with messages of `message_type`.

    `expected` are the hospitals' public keys by name, where they were admitted with one; no others join, and
    who is not in it any more is left out of a sum of which the survivors are not named yet.
    Another process goes on with the keys and the roster in `state`.
    """

    def __init__(
        self,
        terms: Terms | LabelTerms,
        state: CoordinatorState,
        *,
        expected: Mapping[str, bytes] | None = None,
        message_type: str = SUM,
    ) -> None:
        self._expected = expected
        self._terms, self._state, self._message_type = terms, state, message_type
        # The fewest and the most votes that a party has in each row, where no noise hides it.
        self._votes_each: tuple[int, int] | None = None
        if not isinstance(terms, LabelTerms) and not terms.adds_noise:
            self._votes_each = (terms.least_teachers, terms.teachers_per_client)
        identity, self._roster = state.identity(), state.roster
        if self._roster:
            self._sum = CoordinatorSum.resume(identity, Roster.from_bytes(self._roster))
        else:
            self._sum = CoordinatorSum(identity, study=terms.digest, expected=expected)
        self._pinned: set[str] = set()
        self._vectors: dict[str, MaskedVector] = {}  # of this step, so that one can be taken out again
        self.spent = False

    @property
    def enrol_request(self) -> bytes:
        """What every party gets together with the terms."""
        return self._sum.enrol_request().to_bytes()

    def admit(self, reply: TeachReply | LabelReply) -> None:
        """Take a party in that agreed to the terms.

        Raises:
            IntegrityError: its enrolment is damaged, not its own, or not acceptable.
        """
        enrolment = Enrolment.from_bytes(reply.enrolment)
        if enrolment.party != reply.party:
            raise IntegrityError(f"enrolled under the name of {enrolment.party}")
        if self._roster:
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
        if not self._roster:
            self._roster = self._sum.close_roster(threshold=self._terms.least_clients).to_bytes()
            self._state.keep_roster(self._roster)

    def collect(self, participants: Mapping[int, str], question: VoteRequest, ask: Ask) -> Totals:
        """Sum one batch over the participants, names by node, that go through all steps.

        `spent` tells from the first request for votes on until the totals are there: a batch that fails
        meanwhile is void and must be charged.

        Raises:
            QuorumError: too few parties are left at some step.
            IntegrityError: what was revealed does not fit, or the rows are none of honest votes.
        """
        shape = (len(question.index), self._terms.num_classes)
        each, self.spent = self._votes_each, False
        self._vectors.clear()
        sum_range = SumRange.noisy() if each is None else SumRange.votes(self._terms.num_clients * each[1])
        self._state.begin_batch(question, asked=False)
        batch = self._sum.open_batch(
            batch=question.batch,
            batch_digest=question.digest,
            length=shape[0] * shape[1],
            sum_range=sum_range,
            roster_rides=True,
        )
        nodes = {party: node for node, party in participants.items()}
        # The rounds fix who is in the sum, and have each of them sign it, before anything is unmasked.
        for requests in batch.rounds():
            if not self.spent and any(isinstance(step, MaskRequest) for step in requests.values()):
                # On the disk before the first vote can be on its way: after a death the batch is void.
                self._state.begin_batch(question, asked=True)
                self.spent = True
            sent = {
                nodes[party]: self._record(question, party, step)
                for party, step in requests.items()
                if party in nodes  # after a restart some of the roster may be gone
            }
            ask(self._message_type, sent, lambda answer: self._take(batch, answer, participants[answer.node]))
            for party, vector in self._vectors.items():
                if self._expected is not None and party not in self._expected:
                    batch.withdraw(vector)  # revoked while the others were still asked
            self._vectors.clear()
        totals = batch.total().reshape(shape)
        voters = len(batch.survivors)
        if each is not None:
            _check_rows(totals, voters, each, modulus=2**sum_range.bits)
            totals = sum_range.fold(totals)
        self.spent = False
        return Totals(question.index, totals, voters)

    def _record(self, question: VoteRequest, party: str, step: BatchRequest) -> Record:
        asks = isinstance(step, BatchOpening | MaskRequest)
        return SumRequest(
            terms_digest=question.terms_digest,
            batch=question.batch,
            purpose=question.purpose,
            index=question.index if asks else _NO_INDEX,
            roster=b"" if party in self._pinned else self._roster,
            step=step.to_bytes(),
        ).to_record()

    def _take(self, batch: SumBatch, answer: Answer, sender: str) -> None:
        reply = read_reply(answer.require(SumReply).step)
        if reply.party != sender:
            raise IntegrityError("answered under another name")
        if isinstance(reply, SumRefused):
            raise IntegrityError(f"refused: {self._sum.read_refusal(reply).value}")
        if not isinstance(reply, BatchShares | MaskedVector | SurvivorConsent | UnmaskShares):
            raise IntegrityError("sent a reply to another request")
        batch.take(reply)
        if self._expected is not None and isinstance(reply, MaskedVector):
            self._vectors[sender] = reply
        self._pinned.add(sender)


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

"""A batch in plain: the coordinator sees every hospital's votes, and sums them."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.protocol.messages import VOTES, Terms, VoteReply, VoteRequest, check_votes
from server.participants import (
    Ask,
    LeaveOut,
    Participants,
    printable_name,
    require_quorum,
    require_reply,
    sender_name,
)
from server.state import CoordinatorState, Totals

__all__ = ["collect_votes"]


def collect_votes(
    participants: Participants,
    terms: Terms,
    question: VoteRequest,
    state: CoordinatorState,
    *,
    ask: Ask,
    leave_out: LeaveOut,
) -> Totals:
    """Sum one batch over the participants that answer rightly and in time.

    `state` keeps each hospital's votes until the batch is charged: a coordinator that is started again asks
    nobody for what is there.

    Raises:
        QuorumError: fewer than `terms.least_clients` answered; nothing may be released.
    """
    total = np.zeros((len(question.index), terms.num_classes), dtype=np.int64)
    state.begin_batch(question, asked=True)
    kept, reasons = state.votes(), Counter[str]()
    for votes in kept.values():
        _check(votes, total, terms)
        total += votes
    voters = len(kept)
    asked = [node for node, party in participants.items() if party not in kept]
    for answer in ask(VOTES, dict.fromkeys(asked, question.to_record())):
        try:
            reply, party = require_reply(answer, VoteReply), participants[answer.node]
            if reply.party != party:
                raise IntegrityError(f"answered under the name of {printable_name(reply.party)}")
            if reply.batch_digest != question.digest:
                raise IntegrityError("answered another batch")
            _check(reply.votes, total, terms)
            state.keep_votes(party, reply.votes)
            total += reply.votes
            voters += 1
        except IntegrityError as error:
            reasons[str(error)] += 1
            leave_out(sender_name(answer, participants), str(error))
    require_quorum(voters, terms, "answered the batch", reasons)
    return Totals(total, voters)


def _check(votes: NDArray[np.int64], total: NDArray[np.int64], terms: Terms) -> None:
    queries, classes = total.shape
    check_votes(votes, queries=queries, classes=classes, num_teachers=terms.teachers_per_client)

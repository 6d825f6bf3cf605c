"""The two rounds with the parties: teach, and vote on a batch. Every reply is checked; a bad one is left out.

The quorum decides: below it nothing is released.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.protocol import (
    TEACH,
    VOTES,
    RefusalReply,
    Reply,
    TeachReply,
    TeachRequest,
    Terms,
    VoteReply,
    VoteRequest,
    check_votes,
)
from server.exchange import Answer, exchange

R = TypeVar("R", TeachReply, VoteReply)

__all__ = ["Member", "Trouble", "collect_votes", "teach"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Trouble = Callable[[str, str], None]
"""Told who was left out and why."""


@dataclass(frozen=True, slots=True)
class Member:
    """A party that agreed to the terms and has its teachers ready."""

    party: str
    num_teachers: int


def teach(
    grid: Grid,
    nodes: list[int],
    terms: Terms,
    *,
    timeout_s: float,
    window: int | None,
    stop: threading.Event,
    arrived: Callable[[], None],
    trouble: Trouble,
) -> dict[int, Member]:
    """Have every node agree to the terms and train; the members by node id.

    Raises:
        QuorumError: fewer than `terms.least_clients` are ready.
    """
    request = TeachRequest(terms=terms.to_json()).to_record()
    members: dict[int, Member] = {}
    reasons = Counter[str]()
    for answer in exchange(
        grid,
        dict.fromkeys(nodes, request),
        message_type=TEACH,
        timeout_s=timeout_s,
        stop=stop,
        window=window,
    ):
        arrived()
        try:
            members[answer.node] = _admit(_expect(answer, TeachReply), terms, members)
        except IntegrityError as error:
            reasons[str(error)] += 1
            trouble(_name(answer, {}), str(error))
    _require_quorum(len(members), terms, "trained their teachers", reasons)
    return members


def collect_votes(
    grid: Grid,
    members: Mapping[int, Member],
    terms: Terms,
    request: VoteRequest,
    *,
    timeout_s: float,
    window: int | None,
    stop: threading.Event,
    arrived: Callable[[], None],
    trouble: Trouble,
) -> tuple[NDArray[np.int64], int]:
    """The totals of one batch over the members that answered rightly and in time, and their number.

    Shapes: int64 (queries, classes).

    Raises:
        QuorumError: fewer than `terms.least_clients` answered; nothing may be released.
    """
    totals = np.zeros((len(request.index), terms.num_classes), dtype=np.int64)
    digest, voters, reasons = request.digest, 0, Counter[str]()
    sent = dict.fromkeys(members, request.to_record())
    for answer in exchange(grid, sent, message_type=VOTES, timeout_s=timeout_s, stop=stop, window=window):
        arrived()
        try:
            totals += _votes(_expect(answer, VoteReply), members[answer.node], digest, totals.shape)
            voters += 1
        except IntegrityError as error:
            reasons[str(error)] += 1
            trouble(_name(answer, members), str(error))
    _require_quorum(voters, terms, "answered the batch", reasons)
    return totals, voters


def _votes(reply: VoteReply, member: Member, digest: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    if reply.party != member.party:
        raise IntegrityError(f"answered under the name of {_printable(reply.party)}")
    if reply.batch_digest != digest:
        raise IntegrityError("answered another batch")
    check_votes(reply.votes, queries=shape[0], classes=shape[1], num_teachers=member.num_teachers)
    return reply.votes


def _admit(reply: TeachReply, terms: Terms, members: Mapping[int, Member]) -> Member:
    if not _NAME.fullmatch(reply.party):
        raise IntegrityError("has a name that is not 1 to 64 letters, digits, dots, dashes")
    if any(member.party == reply.party for member in members.values()):
        raise IntegrityError(f"another party is already called {reply.party}")
    if len(members) == terms.num_clients:
        raise IntegrityError(f"the study has its {terms.num_clients} parties already")
    if reply.terms_digest != terms.digest:
        raise IntegrityError("agreed to other terms")
    if reply.num_teachers != terms.teachers_per_client:
        raise IntegrityError(f"has {reply.num_teachers} teachers, not {terms.teachers_per_client}")
    return Member(reply.party, reply.num_teachers)


def _expect(answer: Answer, kind: type[R]) -> R:
    if answer.reply is None:
        raise IntegrityError(answer.trouble)
    if isinstance(answer.reply, RefusalReply):
        raise IntegrityError(f"refused: {answer.reply.refusal.value}")
    if not isinstance(answer.reply, kind):
        raise IntegrityError("sent a reply to another request")
    return answer.reply


def _name(answer: Answer, members: Mapping[int, Member]) -> str:
    if answer.node in members:
        return members[answer.node].party
    reply: Reply | None = answer.reply
    return _printable(reply.party) if reply is not None else f"node {answer.node}"


def _printable(name: str) -> str:
    return name if _NAME.fullmatch(name) else "a party with an unprintable name"


def _require_quorum(count: int, terms: Terms, what: str, reasons: Counter[str]) -> None:
    if count < terms.least_clients:
        common = "".join(f" ({number} parties: {reason})" for reason, number in reasons.most_common(1))
        raise QuorumError(
            f"{count} of {terms.num_clients} parties {what}; the quorum is {terms.least_clients}, so nothing "
            f"more is released{common}"
        )

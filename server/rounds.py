"""The two rounds with the parties: teach, and vote on a batch. Every reply is checked; a bad one is left out.

The quorum decides: below it nothing is released.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.protocol.label_terms import LabelTerms
from pate_fed.protocol.messages import (
    TEACH,
    VOTES,
    LabelReply,
    Record,
    Refusal,
    RefusalReply,
    Reply,
    SumReply,
    TeachReply,
    TeachRequest,
    Terms,
    VoteReply,
    VoteRequest,
    check_votes,
)
from pate_fed.structure import PARTY_NAME, PARTY_NAME_IS
from server.exchange import Answer, exchange
from server.inflight import InFlight

R = TypeVar("R", TeachReply, VoteReply, SumReply, LabelReply)

__all__ = [
    "Agreement",
    "Ask",
    "Member",
    "Trouble",
    "admit_party",
    "collect_votes",
    "expect",
    "name_of",
    "require_quorum",
    "teach",
]

Agreement = Terms | LabelTerms
"""What hospitals agree to, in studies with votes and in studies of private labels."""


_SMALL_POOL = 4 * 1024**2  # bytes

Ask = Callable[[str, Mapping[int, Record]], Iterator[Answer]]
"""Sends messages of one type to nodes and yields one answer a node; see `server.exchange`."""

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
    enrol: bytes = b"",
    encoder: bytes = b"",
    pool: Callable[[], bytes] | None = None,
    admitted: Callable[[TeachReply], None] | None = None,
    names: Mapping[int, str] | None = None,
) -> dict[int, Member]:
    """Have every node agree to the terms and train; the members by node id.

    Where nodes have keys, `names` says whose each is; a reply under another name is left out. `pool` gives
    the public inputs as a file for those that have no copy of them; a small one goes to all at once, as a
    round trip takes seconds, and for a large one those are asked twice. Where votes will be
    masked, `enrol` is what every party gets for it and `admitted` takes its enrolment. `encoder` is the file
    of the public encoder that the terms name, if any.

    Raises:
        QuorumError: fewer than `terms.least_clients` are ready.
    """
    request = TeachRequest(terms=terms.to_json(), enrol=enrol, encoder=encoder)
    if pool is not None and len(inputs := pool()) <= _SMALL_POOL:
        request = replace(request, pool=inputs)
    members, reasons = dict[int, Member](), Counter[str]()

    def ask(some: list[int], request: TeachRequest) -> Iterator[Answer]:
        return exchange(
            grid,
            dict.fromkeys(some, request.to_record()),
            message_type=TEACH,
            timeout_s=timeout_s,
            stop=stop,
            window=window,
        )

    def take(answers: Iterable[Answer]) -> None:
        for answer in answers:
            arrived()
            try:
                reply = expect(answer, TeachReply)
                known = None if names is None else names.get(answer.node, "nobody")
                member = _admit(reply, terms, members, known)
                if admitted is not None:
                    admitted(reply)
                members[answer.node] = member
            except IntegrityError as error:
                reasons[str(error)] += 1
                trouble(name_of(answer, {}), str(error))

    asked: set[int] = set()
    while nodes:
        asked.update(nodes)
        without: list[int] = []
        take(_except_without_pool(ask(nodes, request), without if pool else None))
        if without and pool:
            take(ask(without, replace(request, pool=pool())))
        # Without keys a hospital that was started again comes back as another node.
        nodes = [node for node in grid.get_node_ids() if node not in asked]
    require_quorum(len(members), terms, "trained their teachers", reasons)
    return members


def _except_without_pool(answers: Iterable[Answer], nodes: list[int] | None) -> Iterator[Answer]:
    """The answers, but hospitals that still want the public pool go on the list instead."""
    for answer in answers:
        reply = answer.reply
        if nodes is not None and isinstance(reply, RefusalReply) and reply.refusal is Refusal.NO_POOL:
            nodes.append(answer.node)
        else:
            yield answer


def collect_votes(
    members: Mapping[int, Member],
    terms: Terms,
    question: VoteRequest,
    *,
    ask: Ask,
    trouble: Trouble,
    inflight: InFlight | None = None,
) -> tuple[NDArray[np.int64], int]:
    """The totals of one batch over the members that answered rightly and in time, and how many they are.

    `inflight` keeps votes until the release: those that are there already are not asked for again.

    Shapes: int64 (queries, classes).

    Raises:
        QuorumError: fewer than `terms.least_clients` answered; nothing may be released.
    """
    totals = np.zeros((len(question.index), terms.num_classes), dtype=np.int64)
    digest, reasons = question.digest, Counter[str]()
    kept = {} if inflight is None else inflight.begin(digest)
    for votes in kept.values():
        check_votes(
            votes,
            queries=totals.shape[0],
            classes=totals.shape[1],
            num_teachers=terms.teachers_per_client,
        )
        totals += votes
    voters = len(kept)
    asked = [node for node, member in members.items() if member.party not in kept]
    for answer in ask(VOTES, dict.fromkeys(asked, question.to_record())):
        try:
            votes = _votes(expect(answer, VoteReply), members[answer.node], digest, totals.shape)
            if inflight is not None:
                inflight.keep(members[answer.node].party, votes)
            totals += votes
            voters += 1
        except IntegrityError as error:
            reasons[str(error)] += 1
            trouble(name_of(answer, members), str(error))
    require_quorum(voters, terms, "answered the batch", reasons)
    return totals, voters


def _votes(reply: VoteReply, member: Member, digest: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    if reply.party != member.party:
        raise IntegrityError(f"answered under the name of {_printable(reply.party)}")
    if reply.batch_digest != digest:
        raise IntegrityError("answered another batch")
    check_votes(reply.votes, queries=shape[0], classes=shape[1], num_teachers=member.num_teachers)
    return reply.votes


def _admit(reply: TeachReply, terms: Terms, members: Mapping[int, Member], known: str | None) -> Member:
    admit_party(reply, terms, (member.party for member in members.values()), known)
    if reply.num_teachers != terms.teachers_per_client:
        raise IntegrityError(f"has {reply.num_teachers} teachers, not {terms.teachers_per_client}")
    return Member(reply.party, reply.num_teachers)


def admit_party(
    reply: TeachReply | LabelReply, terms: Agreement, parties: Iterable[str], known: str | None
) -> None:
    """Refuse whoever is none of the study's parties; `known` is the name that its key has, if it has one.

    Raises:
        IntegrityError: an unprintable name, another's, one too many, or other terms.
    """
    there = list(parties)
    if not PARTY_NAME.fullmatch(reply.party):
        raise IntegrityError(f"has a name that is not {PARTY_NAME_IS}")
    if known is not None and reply.party != known:
        raise IntegrityError(f"answered under the name of {reply.party}, but with the key of {known}")
    if reply.party in there:
        raise IntegrityError(f"another party is already called {reply.party}")
    if len(there) == terms.num_clients:
        raise IntegrityError(f"the study has its {terms.num_clients} parties already")
    if reply.terms_digest != terms.digest:
        raise IntegrityError("agreed to other terms")


def expect(answer: Answer, kind: type[R]) -> R:
    """The reply of the kind that was asked for.

    Raises:
        IntegrityError: there is none, a refusal, or another kind.
    """
    if answer.reply is None:
        raise IntegrityError(answer.trouble)
    if isinstance(answer.reply, RefusalReply):
        raise IntegrityError(answer.reply.refusal.sentence)
    if not isinstance(answer.reply, kind):
        raise IntegrityError("sent a reply to another request")
    return answer.reply


def name_of(answer: Answer, members: Mapping[int, Member]) -> str:
    """A printable name for whoever sent an answer."""
    if answer.node in members:
        return members[answer.node].party
    reply: Reply | None = answer.reply
    return _printable(reply.party) if reply is not None else f"node {answer.node}"


def _printable(name: str) -> str:
    return name if PARTY_NAME.fullmatch(name) else "a party with an unprintable name"


def require_quorum(count: int, terms: Agreement, what: str, reasons: Counter[str]) -> None:
    """Go on only with as many parties as the terms say; `reasons` are why the others are out.

    Raises:
        QuorumError: there are fewer.
    """
    if count < terms.least_clients:
        common = "".join(f" ({number} parties: {reason})" for reason, number in reasons.most_common(1))
        raise QuorumError(
            f"{count} of {terms.num_clients} parties {what}; the quorum is {terms.least_clients}, so nothing "
            f"more is released{common}"
        )

"""Who takes part in a study: checks of a reply and its sender, and the quorum without which all ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.protocol.label_terms import LabelTerms
from pate_fed.protocol.messages import (
    LabelReply,
    Record,
    RefusalReply,
    SumReply,
    TeachReply,
    Terms,
    VoteReply,
)
from server.exchange import Answer

__all__ = [
    "AdmittedKeys",
    "Agreement",
    "Ask",
    "LeaveOut",
    "Participants",
    "check_sender",
    "printable_name",
    "require_quorum",
    "require_reply",
    "sender_name",
]

Agreement = Terms | LabelTerms
"""What hospitals agree to, in studies with votes and in studies of private labels."""

Ask = Callable[[str, Mapping[int, Record]], Iterator[Answer]]
"""Sends messages of one type to nodes and yields one answer a node; see `server.exchange`."""

Participants = Mapping[int, str]
"""Hospitals that agreed to the terms and are ready: their names, by the nodes that they were first."""

LeaveOut = Callable[[str, str], None]
"""Told which hospital was left out, and why."""

R = TypeVar("R", TeachReply, VoteReply, SumReply, LabelReply)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class AdmittedKeys:
    """Whose key each node has, and who signs secure sums with which; both grow while hospitals connect."""

    names: Mapping[int, str]
    sum_identities: Mapping[str, bytes]


def check_sender(
    answer: Answer,
    reply: TeachReply | LabelReply,
    terms: Agreement,
    *,
    participants: Participants,
    keys: AdmittedKeys | None,
) -> None:
    """Refuse whoever is none of the study's hospitals, beside those that take part already.

    Raises:
        IntegrityError: an unprintable name, another's, one too many, other terms or teachers.
    """
    owner = reply.party if keys is None else keys.names.get(answer.node, "nobody")
    if not _NAME.fullmatch(reply.party):
        raise IntegrityError("has a name that is not 1 to 64 letters, digits, dots, dashes")
    if reply.party != owner:
        raise IntegrityError(f"answered under the name of {reply.party}, but with the key of {owner}")
    if reply.party in participants.values():
        raise IntegrityError(f"another party is already called {reply.party}")
    if len(participants) == terms.num_clients:
        raise IntegrityError(f"the study has its {terms.num_clients} parties already")
    if reply.terms_digest != terms.digest:
        raise IntegrityError("agreed to other terms")
    if isinstance(terms, Terms) and isinstance(reply, TeachReply):
        if reply.num_teachers != terms.teachers_per_client:
            raise IntegrityError(f"has {reply.num_teachers} teachers, not {terms.teachers_per_client}")


def require_reply(answer: Answer, kind: type[R]) -> R:
    """The reply of the kind that was asked for.

    Raises:
        IntegrityError: there is none, a refusal, or another kind.
    """
    if answer.reply is None:
        raise IntegrityError(answer.failure)
    if isinstance(answer.reply, RefusalReply):
        raise IntegrityError(answer.reply.refusal.sentence)
    if not isinstance(answer.reply, kind):
        raise IntegrityError("sent a reply to another request")
    return answer.reply


def sender_name(answer: Answer, participants: Participants) -> str:
    """A printable name for whoever sent an answer."""
    if answer.node in participants:
        return participants[answer.node]
    return f"node {answer.node}" if answer.reply is None else printable_name(answer.reply.party)


def printable_name(name: str) -> str:
    """The name, or words in its place where it could steer a terminal."""
    return name if _NAME.fullmatch(name) else "a party with an unprintable name"


def require_quorum(count: int, terms: Agreement, what: str, reasons: Counter[str]) -> None:
    """Go on only with as many hospitals as the terms say; `reasons` are why the others are out.

    Raises:
        QuorumError: there are fewer.
    """
    if count < terms.least_clients:
        common = "".join(f" ({number} parties: {reason})" for reason, number in reasons.most_common(1))
        raise QuorumError(
            f"{count} of {terms.num_clients} parties {what}; the quorum is {terms.least_clients}, so nothing "
            f"more is released{common}"
        )

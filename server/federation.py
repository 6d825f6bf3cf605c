"""The hospitals of one study over one Grid: who takes part, what is asked of them, and what comes back.

Studies with votes and studies of private labels both go through here. Whoever answers wrongly or late is left
out by name; below the quorum nothing is released.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from flwr.serverapp import Grid

from pate_fed.errors import IntegrityError
from pate_fed.protocol.label_terms import LabelTerms
from pate_fed.protocol.messages import LabelReply, Record, RefusalReply, TeachReply, VoteRequest
from pate_fed.report import LeftOut, Progress
from server.exchange import Answer, exchange, wait_for_nodes
from server.masked import ROUNDS, MaskedRounds
from server.participants import (
    AdmittedKeys,
    Agreement,
    check_sender,
    require_quorum,
    require_reply,
    sender_name,
)
from server.plain import collect_votes
from server.returning import Returning
from server.state import CoordinatorState, Totals

__all__ = ["Channel", "Federation", "Invitation"]

E = TypeVar("E", TeachReply, LabelReply)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """How messages go over a Grid: up to `window` under way at once (None: all), until the user says `stop`.

    Hospitals that are not connected yet are waited for up to `connect_s` seconds; then each message has
    `answer_s` seconds to be answered.
    """

    grid: Grid
    stop: threading.Event
    progress: Progress
    window: int | None
    connect_s: float
    answer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation(Generic[E]):
    """How hospitals are asked to take part in a study, and have `answer_s` seconds to say yes.

    `accept` takes a reply's content, or raises IntegrityError where it is wrong. `again` gives the request
    with which a hospital that refused is asked once more, or None. `phase` and `task` are what this is called
    in the log and on the terminal, `done` what those did who are in.
    """

    message_type: str
    request: Record
    reply: type[E]
    accept: Callable[[E], None] = lambda reply: None
    again: Callable[[RefusalReply], Record | None] = lambda refusal: None
    answer_s: float
    phase: str
    task: str
    done: str


class Federation:
    """Admits the study's hospitals, asks them, and sums what they answer.

    `sum_type` is the type of messages that ask for masked vectors. `left_out` is told who is not counted.
    """

    def __init__(
        self,
        terms: Agreement,
        channel: Channel,
        state: CoordinatorState,
        *,
        sum_type: str,
        keys: AdmittedKeys | None,
        left_out: Callable[[LeftOut], None],
    ) -> None:
        self._terms, self._channel, self._state = terms, channel, state
        self._keys, self._left_out = keys, left_out
        expected = None if keys is None else keys.sum_identities
        self._masked = (
            MaskedRounds(terms, state, expected=expected, message_type=sum_type) if terms.secure_sum else None
        )
        self._returning: Returning | None = None
        self.participants: dict[int, str] = {}
        self._asked: set[int] = set()
        self._refusals = 0

    @property
    def enrol_request(self) -> bytes:
        """What every hospital gets with the terms where its vectors will be masked; else empty."""
        return b"" if self._masked is None else self._masked.enrol_request

    @property
    def spent(self) -> bool:
        """Whether hospitals were asked for masked vectors whose sum did not come: the batch is void."""
        return self._masked is not None and self._masked.spent

    @property
    def may_have_answered(self) -> bool:
        """Whether anyone who was invited may have said anything but no, heard or not."""
        return len(self._asked) > self._refusals

    def admit(self, invitation: Invitation[E]) -> None:
        """Invite all hospitals, and fix who takes part in the study.

        Raises:
            QuorumError: fewer than `terms.least_clients` are ready.
            Stopped: the user asked to stop.
        """
        channel, reasons = self._channel, Counter[str]()
        with channel.progress.phase(invitation.task, self._terms.num_clients) as bar:
            nodes = wait_for_nodes(
                channel.grid,
                count=self._terms.num_clients,
                timeout_s=channel.connect_s,
                stop=channel.stop,
            )
            requests = dict.fromkeys(nodes, invitation.request)
            while requests:
                self._asked |= requests.keys()
                repeated: dict[int, Record] = {}
                for answer in self._exchange(invitation.message_type, requests, invitation.answer_s):
                    second = _repeat(invitation, answer)
                    if second is not None and requests[answer.node] is invitation.request:
                        repeated[answer.node] = second
                        continue
                    bar.advance()
                    self._take_in(answer, invitation, reasons)
                # Without keys a hospital that was started again comes back as another node.
                new = [node for node in channel.grid.get_node_ids() if node not in self._asked]
                requests = repeated or dict.fromkeys(new, invitation.request)
            require_quorum(len(self.participants), self._terms, invitation.done, reasons)
            if self._masked is not None:
                self._masked.close()

    def _take_in(self, answer: Answer, invitation: Invitation[E], reasons: Counter[str]) -> None:
        self._refusals += isinstance(answer.reply, RefusalReply)
        try:
            reply = require_reply(answer, invitation.reply)
            check_sender(answer, reply, self._terms, participants=self.participants, keys=self._keys)
            invitation.accept(reply)
            if self._masked is not None:
                self._masked.admit(reply)
            self.participants[answer.node] = reply.party
        except IntegrityError as error:
            reasons[str(error)] += 1
            self._left_out(LeftOut(party=sender_name(answer, {}), phase=invitation.phase, reason=str(error)))

    def follow_restarts(self, request: Record) -> None:
        """From now on a hospital without a key may come back as another node, once it agrees to `request`."""
        self._returning = Returning(self._channel.grid, self.participants, request)

    def collect(self, question: VoteRequest, *, task: str) -> Totals:
        """Ask all participants one question and sum their answers, under masks where the terms say so.

        Raises:
            QuorumError: too few answered; nothing may be released.
            IntegrityError: what was revealed of a masked sum does not fit.
            Stopped: the user asked to stop.
        """
        rounds = 1 if self._masked is None else ROUNDS
        with self._channel.progress.phase(task, rounds * len(self.participants)) as bar:

            def ask(message_type: str, requests: Mapping[int, Record]) -> Iterator[Answer]:
                for answer in self._exchange(message_type, requests, self._channel.answer_s):
                    bar.advance()
                    yield answer

            def leave_out(party: str, reason: str) -> None:
                self._left_out(LeftOut(party=party, phase="vote", reason=reason))

            if self._masked is not None:
                return self._masked.collect(self.participants, question, ask=ask, leave_out=leave_out)
            if isinstance(self._terms, LabelTerms):
                raise TypeError("labels come with the admission; nothing else is asked without masks")
            return collect_votes(
                self.participants, self._terms, question, self._state, ask=ask, leave_out=leave_out
            )

    def _exchange(
        self, message_type: str, requests: Mapping[int, Record], answer_s: float
    ) -> Iterator[Answer]:
        channel = self._channel
        return exchange(
            channel.grid,
            requests,
            message_type=message_type,
            timeout_s=answer_s,
            stop=channel.stop,
            window=channel.window,
            returning=self._returning,
        )


def _repeat(invitation: Invitation[E], answer: Answer) -> Record | None:
    return invitation.again(answer.reply) if isinstance(answer.reply, RefusalReply) else None

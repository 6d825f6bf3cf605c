"""One message a phase to every hospital, and replies as they come: what fails or is late is left out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from pate_fed.config.backend import PROCESSES, RAY, cores
from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.protocol.messages import END, EndRequest, Record, RefusalReply, Reply, parse_reply
from pate_fed.structure import PARTY_NAME
from server.presence import PATIENCE_S, Presence

R = TypeVar("R", bound=Reply)

_UNAVAILABLE = ErrorCode.NODE_UNAVAILABLE
_EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
_LOST = ErrorCode.CLIENT_APP_CRASHED
_WINDOW_PER_CORE = 12
_CONNECT_S = 120.0  # until all simulated parties are there
TELL_S = 90.0
"""Seconds that hospitals have to connect again where they are only told how a study ended."""
_POLL_S = 0.1
_QUIET_POLL_S = 1.0
_REVOKED = "is revoked"
_GONE = f"is no longer connected (for {PATIENCE_S:.0f} s)"


class Stopped(Exception):
    """The user asked to stop; what is on the ledger stays there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came from one node: a reply, or the reason why there is none."""

    node: int
    reply: Reply | None
    failure: str = ""

    def require(self, kind: type[R]) -> R:
        """The reply of the kind that was asked for.

        Raises:
            IntegrityError: there is none, a refusal, or another kind.
        """
        if self.reply is None:
            raise IntegrityError(self.failure)
        if isinstance(self.reply, RefusalReply):
            raise IntegrityError(self.reply.refusal.sentence)
        if not isinstance(self.reply, kind):
            raise IntegrityError("sent a reply to another request")
        return self.reply

    @property
    def sender(self) -> str:
        """A printable name for whoever sent it."""
        return f"node {self.node}" if self.reply is None else printable_name(self.reply.party)


def printable_name(name: str) -> str:
    """The name, or words in its place where it could steer a terminal."""
    return name if PARTY_NAME.fullmatch(name) else "a party with an unprintable name"


def wait_for_nodes(grid: Grid, *, count: int, timeout_s: float, stop: threading.Event) -> list[int]:
    """Node ids of all parties, once `count` are connected or the time is over.

    Raises:
        QuorumError: nobody is connected after `timeout_s` seconds.
        Stopped: the user asked to stop.
    """
    end = time.monotonic() + timeout_s
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) >= count or time.monotonic() >= end:
            break
        _pause(stop)
    if stop.is_set():  # asked for before there was anything to wait for
        raise Stopped
    if not nodes:
        if not timeout_s:
            raise QuorumError(f"none of {count} hospitals is connected; --wait says how long they have")
        raise QuorumError(f"no party connected within {timeout_s:.0f} s")
    return nodes


def patience_for(backend: str) -> float:
    """Seconds to wait for all parties; separate hospitals were waited for before, by --wait."""
    return 0.0 if backend == PROCESSES else _CONNECT_S


def window_for(backend: str) -> int | None:
    """How many messages may be under way at once on a backend; see `exchange`."""
    return _WINDOW_PER_CORE * cores() if backend == RAY else None


def exchange(
    grid: Grid,
    requests: Mapping[int, Record],
    *,
    message_type: str,
    timeout_s: float,
    stop: threading.Event,
    window: int | None = None,
    presence: Presence | None = None,
    idle: Callable[[], None] = lambda: None,
) -> Iterator[Answer]:
    """Send every node its request, and yield one answer a node, in the order in which they arrive.

    A node that has not answered within `timeout_s` seconds yields an answer without a reply. `window` bounds
    the messages under way at once (None: all): Flower's simulation engine looks through all of them for every
    node, ten times a second, which with 250 nodes would cost more than half a core. `presence` knows over all
    exchanges who is away, who has come back as another node (answers bear the node that was asked for), and
    who is revoked: such a node gets nothing more, and nothing of it is taken. `idle` is called while nothing
    comes.

    Raises:
        Stopped: the user asked to stop.
    """
    watch, unanswered = presence or Presence(grid), _Unanswered(waiting=deque(requests))
    watch.begin()
    heard = time.monotonic()
    end = heard + timeout_s
    while unanswered.nodes and time.monotonic() < end:
        revoked = {node for node in unanswered.nodes if not watch.is_admitted(node)}
        unanswered.drop(revoked)
        yield from (Answer(node, None, _REVOKED) for node in sorted(revoked))
        nodes = unanswered.next(window)
        messages = [
            Message(to_flower(requests[node]), watch.node_of(node), message_type, ttl=timeout_s)
            for node in nodes
        ]
        unanswered.pending.update(zip(grid.push_messages(messages), nodes, strict=True))
        asked = time.monotonic()
        arrived = list(grid.pull_messages(list(unanswered.pending)))
        waited = time.monotonic() - asked
        yield from _answers(arrived, unanswered, watch, timeout_s)
        gone, back = watch.look({*unanswered.pending.values(), *unanswered.absent})
        # Flower delivers a message once: to a node that was away it is sent again, or never comes.
        unanswered.drop(gone | back)
        unanswered.waiting.extend(sorted(back))
        yield from (Answer(node, None, _GONE) for node in sorted(gone))
        heard = time.monotonic() if arrived else heard
        if not arrived or stop.is_set():
            idle()
            # A grid that waits by itself hears of a reply at once; it would not while this does.
            _pause(stop, max(0.0, _poll_s(time.monotonic() - heard) - waited))
    yield from (Answer(node, None, f"no answer within {timeout_s:.0f} s") for node in unanswered.nodes)


@dataclass(slots=True)
class _Unanswered:
    """The nodes of an exchange without an answer: not asked yet, asked (by the message's id), or away."""

    waiting: deque[int]
    pending: dict[str, int] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)

    @property
    def nodes(self) -> list[int]:
        """All of them."""
        return [*self.pending.values(), *self.absent, *self.waiting]

    def drop(self, nodes: Set[int]) -> None:
        """Nothing of these is waited for any more."""
        if nodes:
            self.waiting = deque(node for node in self.waiting if node not in nodes)
            self.pending = {key: node for key, node in self.pending.items() if node not in nodes}
            self.absent -= nodes

    def next(self, window: int | None) -> list[int]:
        """Those to ask now, with at most `window` under way at once; they are not waiting any more."""
        free = len(self.waiting)
        if window is not None:
            free = min(free, window - len(self.pending))
        return [self.waiting.popleft() for _ in range(free)]


def _answers(
    arrived: list[Message], unanswered: _Unanswered, watch: Presence, timeout_s: float
) -> Iterator[Answer]:
    """What came of nodes that are admitted; of those that were away it is noted, as they may come back."""
    for message in arrived:
        node = unanswered.pending.pop(message.metadata.reply_to_message_id, None)
        if node is None:
            continue
        if message.has_error() and message.error.code == _UNAVAILABLE:
            unanswered.absent.add(node)
            watch.miss(node)
        elif not watch.is_admitted(node):
            yield Answer(node, None, _REVOKED)
        else:
            yield _read(node, message, timeout_s)


def _poll_s(quiet_s: float) -> float:
    """Seconds until replies are asked for again; asking costs the SuperLink, and slow ones may wait one."""
    return min(_QUIET_POLL_S, _POLL_S + quiet_s / 20)


def _read(node: int, message: Message, timeout_s: float) -> Answer:
    if message.has_error() and message.error.code in _EXPIRED:
        return Answer(node, None, f"no answer within {timeout_s:.0f} s")
    if message.has_error() and message.error.code == _LOST:
        return Answer(node, None, "is lost, with its process or its node of the cluster")
    if message.has_error():
        return Answer(node, None, f"did not answer (Flower error {message.error.code})")
    try:
        return Answer(node, parse_reply(from_flower(message.content)))
    except IntegrityError as error:
        return Answer(node, None, f"sent a malformed reply: {error}")


def _pause(stop: threading.Event, seconds: float = _POLL_S) -> None:
    if stop.wait(seconds):
        raise Stopped


def send_shutdown_notice(
    grid: Grid,
    notice: EndRequest,
    *,
    receipt_of: Callable[[int], str] = lambda node: "",
    timeout_s: float = 30.0,
) -> int:
    """Tell every connected hospital how the study ended; how many heard it. No answer changes nothing.

    Without it their processes would wait.

    `receipt_of` gives each node its hospital's receipt; empty where there is none.
    """
    requests = {node: replace(notice, receipt=receipt_of(node)).to_record() for node in grid.get_node_ids()}
    answers = exchange(grid, requests, message_type=END, timeout_s=timeout_s, stop=threading.Event())
    return sum(answer.reply is not None for answer in answers)

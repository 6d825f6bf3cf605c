"""One message a phase to every hospital that is there; whoever fails or is late is left out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from pate_fed.errors import IntegrityError, QuorumError
from pate_fed.flower.records import from_flower, to_flower
from pate_fed.protocol.messages import JOIN, JoinReply, Record, Refusal, RefusalReply, Reply, parse_reply
from pate_fed.structure import PARTY_NAME

# Which of a study's nodes are connected and admitted, over all its exchanges; who comes back as which node.
#
# Where hospitals have keys, a node keeps its id. Without keys (one machine, rehearsals) one that was
# started again is another node to Flower: whoever connects while a member is away is asked for the terms
# once more; if it answers under the member's name, it is the member from then on. A name whose old node is
# still connected is not given away.

PATIENCE_S = 90.0
"""How long a node that is away may take to come back before the others go on without it.

Flower holds a lost node's seat for 20 s (`pate_fed.flower.guard`); starting again takes some more.
"""
_LOOK_S = 2.0
_ASK_S = 3600.0  # a hospital that lost its teachers trains them again first


class Presence:
    """Who is away, and since when; looked at every few seconds while answers are waited for.

    `returning` knows under which other node a party without a key has come back. `admitted` says of a node
    whether it may be asked and heard, at any time anew; None: all may. `stood_s` is how long this process
    stood still so far.
    """

    def __init__(
        self, grid: Grid, *, returning: Returning | None = None, admitted: Callable[[int], bool] | None = None
    ) -> None:
        self.returning, self._grid, self._admitted = returning, grid, admitted
        self._away: dict[int, float] = {}
        self._unable: dict[int, float] = {}
        self._next = self._looked = self.stood_s = 0.0

    def begin(self) -> None:
        """A new exchange begins: who has come back since the last one is not away.

        Who has been away for long stays so, and is not waited for each time anew.
        """
        self._looked = time.monotonic()
        self._next = self._looked + _LOOK_S
        self._unable.clear()
        if self._away:
            online = self._online()
            self._away = {node: since for node, since in self._away.items() if node not in online}

    def is_admitted(self, node: int) -> bool:
        """Whether a node may be asked and heard now."""
        return self._admitted is None or self._admitted(node)

    def node_of(self, node: int) -> int:
        """Under which node to reach who was first known as `node`."""
        return node if self.returning is None else self.returning.node_of(node)

    def waits(self, node: int) -> tuple[str, float] | None:
        """Why a node is waited for at most so many seconds more; None where it has all the time there is."""
        if (since := self._away.get(node)) is not None:
            return "out of reach", max(0.0, since + PATIENCE_S - time.monotonic())
        until = self._unable.get(node)
        return None if until is None else ("cannot do it now", max(0.0, until - time.monotonic()))

    def cannot(self, node: int, seconds: float) -> None:
        """Note that a node said that it cannot now, and is asked again for so long."""
        self._unable[node] = time.monotonic() + seconds

    def miss(self, node: int) -> None:
        """Note that a node is away, however short."""
        self._away.setdefault(node, time.monotonic())

    def look(self, asked: set[int]) -> tuple[set[int], set[int]]:
        """Of the nodes that were asked those that have been away for too long, and those that are back."""
        now = time.monotonic()
        if now < self._next:
            return set(), set()
        stood = max(0.0, now - self._looked - _STOOD_S)  # nobody counts as away in it
        self.stood_s += stood
        self._away = {node: since + stood for node, since in self._away.items()}
        self._looked, self._next = now, now + _LOOK_S
        online = self._online()
        for node in asked - online:
            self._away.setdefault(node, now)
        back = {node for node in self._away if node in online and node in asked}
        self._away = {node: since for node, since in self._away.items() if node not in online}
        gone = {node for node, since in self._away.items() if now - since > PATIENCE_S and node in asked}
        return gone, back

    def _online(self) -> set[int]:
        online = set(self._grid.get_node_ids())
        return online if self.returning is None else self.returning.online(online)


class Returning:
    """The members' nodes of now. `members` are names by the node that each was first; that stays their id."""

    def __init__(self, grid: Grid, members: Mapping[int, str], request: Record) -> None:
        self._grid, self._request = grid, request
        self._member = {name: node for node, name in members.items()}
        self._now = {node: node for node in members}
        self._asked: dict[str, int] = {}
        self._claims: dict[int, str] = {}
        self._seen = set(members)

    def node_of(self, member: int) -> int:
        """The node that plays a member now."""
        return self._now.get(member, member)

    def online(self, nodes: set[int]) -> set[int]:
        """Which members are among the connected `nodes`; those that are new are asked who they are."""
        away = {member for member, node in self._now.items() if node not in nodes}
        if away:
            self._ask(nodes - self._seen)
        self._hear()
        for node, name in self._claims.items():
            member = self._member.get(name)
            if node in nodes and member in away:
                self._now[member] = node
        # One that is back counts from the next look on, so that whoever watches has seen it away.
        return set(self._now) - away

    def _ask(self, nodes: set[int]) -> None:
        new = sorted(nodes)
        messages = [Message(to_flower(self._request), node, JOIN, ttl=_ASK_S) for node in new]
        self._asked.update(zip(self._grid.push_messages(messages), new, strict=True))
        self._seen |= nodes

    def _hear(self) -> None:
        for message in list(self._grid.pull_messages(list(self._asked))) if self._asked else ():
            node = self._asked.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                self._claims[node] = _name(message)


def _name(message: Message) -> str:
    """Under whose name a node agreed to the terms; empty where it did not."""
    try:
        reply = None if message.has_error() else parse_reply(from_flower(message.content))
    except IntegrityError:
        return ""
    return reply.party if isinstance(reply, JoinReply) else ""


R = TypeVar("R", bound=Reply)

_UNAVAILABLE = ErrorCode.NODE_UNAVAILABLE
_EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
_LOST = ErrorCode.CLIENT_APP_CRASHED
_POLL_S = 0.1
_QUIET_POLL_S = 1.0
_REVOKED = "is revoked"
AGAIN_S = 300.0
"""Seconds in which who says that it cannot now, as with a full disk, is asked again."""
_AGAIN_EVERY_S = 10.0
_PAUSE_S = 3600.0  # a message outlives a coordinator that stands still for so long
_STOOD_S = 30.0  # a look at what came takes less: this process stood still, and no patience counts that
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
        """The reply of the kind that was asked for; IntegrityError where it is none, or a refusal."""
        if self.reply is None:
            raise IntegrityError(self.failure)
        if isinstance(self.reply, RefusalReply):
            raise IntegrityError(self.reply.refusal.sentence)
        if not isinstance(self.reply, kind):
            raise IntegrityError("sent a reply to another request")
        return self.reply

    @property
    def may_pass(self) -> bool:
        """Whether it is a refusal that may pass."""
        return isinstance(self.reply, RefusalReply) and self.reply.refusal is Refusal.LATER

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


def exchange(
    grid: Grid,
    requests: Mapping[int, Record],
    *,
    message_type: str,
    timeout_s: float,
    stop: threading.Event,
    window: int | None = None,
    presence: Presence | None = None,
    again_s: float = 0.0,
    idle: Callable[[], None] = lambda: None,
) -> Iterator[Answer]:
    """Send every node its request, and yield one answer a node, in the order in which they arrive.

    A node that has not answered within `timeout_s` seconds yields an answer without a reply. `window` bounds
    the messages under way at once (None: all): Flower's simulation engine looks through all of them for every
    node, ten times a second, which with 250 nodes would cost more than half a core. `presence` knows over all
    exchanges who is away, who has come back as another node (answers bear the node that was asked for), and
    who is revoked: such a node gets nothing more, and nothing of it is taken. One that says that it cannot
    now is asked again for `again_s` seconds. `idle` is called while nothing comes. No time counts in which
    this process stood still, as with a laptop's lid closed.

    Raises:
        Stopped: the user asked to stop.
    """
    watch, unanswered = presence or Presence(grid), _Unanswered(waiting=deque(requests))
    watch.begin()
    heard = before = time.monotonic()
    spent, again_until = 0.0, dict[int, float]()
    while unanswered.nodes and spent < timeout_s:
        revoked = {node for node in unanswered.nodes if not watch.is_admitted(node)}
        unanswered.drop(revoked)
        yield from (Answer(node, None, _REVOKED) for node in sorted(revoked))
        nodes = unanswered.next(window)
        messages = [
            Message(to_flower(requests[node]), watch.node_of(node), message_type, ttl=timeout_s + _PAUSE_S)
            for node in nodes
        ]
        unanswered.pending.update(zip(grid.push_messages(messages), nodes, strict=True))
        asked = time.monotonic()
        arrived = list(grid.pull_messages(list(unanswered.pending)))
        waited = time.monotonic() - asked
        for answer in _answers(arrived, unanswered, watch, timeout_s):
            if answer.may_pass and spent < again_until.setdefault(answer.node, spent + again_s):
                watch.cannot(answer.node, again_until[answer.node] - spent)
                unanswered.later[answer.node] = time.monotonic() + _AGAIN_EVERY_S, answer
            else:
                yield answer
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
        now = time.monotonic()
        spent, before = spent + min(_STOOD_S, now - before), now
    for node in unanswered.nodes:
        late = Answer(node, None, f"no answer within {timeout_s:.0f} s")
        yield unanswered.later.get(node, (0.0, late))[1]


@dataclass(slots=True)
class _Unanswered:
    """The nodes of an exchange without an answer: not asked yet, asked (by the message's id), or away.

    `later` are those that could not answer: when they are asked again, and what they said.
    """

    waiting: deque[int]
    pending: dict[str, int] = field(default_factory=dict)
    absent: set[int] = field(default_factory=set)
    later: dict[int, tuple[float, Answer]] = field(default_factory=dict)

    @property
    def nodes(self) -> list[int]:
        """All of them."""
        return [*self.pending.values(), *self.absent, *self.waiting, *self.later]

    def drop(self, nodes: Set[int]) -> None:
        """Nothing of these is waited for any more."""
        if nodes:
            self.waiting = deque(node for node in self.waiting if node not in nodes)
            self.pending = {key: node for key, node in self.pending.items() if node not in nodes}
            self.absent -= nodes
            self.later = {node: said for node, said in self.later.items() if node not in nodes}

    def next(self, window: int | None) -> list[int]:
        """Those to ask now, with at most `window` under way at once; they are not waiting any more."""
        due = [node for node, (when, _) in self.later.items() if when <= time.monotonic()]
        self.drop(set(due))
        self.waiting.extend(due)
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

"""Which process on which node of a cluster plays which party, and what happens when one is lost.

A party's teachers and its journal lie on the node where it was taught. So its messages go there as long as
the node lives, each to the process that had the first one. A message whose process died is sent again to the
same disk, where the journal knows what was answered: no party votes twice on a question. A node that dies
takes its parties with it, and what is asked of them is answered by an error. They are never played elsewhere,
where their journal is not, unless all nodes share one disk.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from pate_fed.errors import PateFedError
from pate_fed.flower.compat import stamp

_AHEAD = 2  # messages at a process, so that it never waits for the next one
_MOST_TRIES = 3  # of a message whose process dies: it may be the message that kills it
_MOST_STARTS = 3  # of a process in a row, on a node that lives


class LostError(Exception):
    """A process that played parties is gone, or its node is."""


class Processes(Protocol):
    """Processes on nodes of a cluster. What is asked of one it does in turn."""

    def start(self, node: str) -> tuple[Any, Any]:
        """A new process on a node, and the reference to its being ready."""

    def ask(self, process: Any, message: Message) -> Any:
        """Have a process answer a message; the reference to its reply."""

    def wait(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """Those that have come, once there is one or the time is over."""

    def result(self, reference: Any) -> Any:
        """What a reference stands for.

        Raises:
            LostError: its process is gone.
            PateFedError: the process says that it cannot play parties.
        """

    def stop(self, process: Any) -> None:
        """End a process that may not have died: it must not go on beside the one in its place."""

    def lives(self, node: str) -> bool:
        """Whether a node is still in the cluster."""


@dataclass(slots=True, eq=False)
class _Place:
    """One process: starting (`ready` is awaited) or at work on what is `asked`, oldest first."""

    node: str
    process: Any
    ready: Any
    asked: dict[Any, Message] = field(default_factory=dict)
    waiting: deque[Message] = field(default_factory=deque)
    failed_starts: int = 0


class PartyPool:
    """Sends each message to the process that plays its party, and tells the replies.

    Parties are numbered as `numbers` says of a Flower node; `together` neighbours are played by one process,
    which may train their teachers at once. A party belongs to the first process that is free for it. With a
    `shared` disk the parties of a lost node go on at the others.

    Raises:
        PateFedError: at any time, where a process cannot play parties or none is left.
    """

    def __init__(
        self,
        processes: Processes,
        nodes: Sequence[str],
        *,
        numbers: Mapping[int, int],
        together: int = 1,
        shared: bool = False,
    ) -> None:
        self._processes, self._numbers = processes, numbers
        self._together, self._shared = together, shared
        self._places = [_Place(node, *processes.start(node)) for node in nodes]
        self._homes: dict[int, _Place | None] = {}  # by group of neighbours; None: lost with its node
        self._homeless: dict[int, deque[Message]] = {}  # groups that no process has yet
        self._tries: dict[str, int] = {}
        self._replies: dict[str, tuple[Message, float]] = {}
        self._begun = False

    def begin(self, *, most_s: float, others_s: float) -> None:
        """Wait for the processes: for one at most `most_s` seconds, then for the others `others_s` more.

        Those that come later take part from then on.
        """
        end = time.monotonic() + most_s
        shortened = False
        while any(place.ready is not None for place in self._places):
            left = end - time.monotonic()
            if left <= 0:
                break
            self._look(min(left, 1.0))
            if not shortened and any(place.ready is None for place in self._places):
                end, shortened = min(end, time.monotonic() + others_s), True
        if all(place.ready is not None for place in self._places):
            raise PateFedError(
                f"no node of the cluster had a free core for a party within {most_s:.0f} s; other jobs have "
                "them all, or Ray's workers do not start there"
            )
        self._begun = True

    def put(self, messages: Mapping[str, Message]) -> None:
        """Take messages to deliver, by their ids."""
        for message in messages.values():
            self._assign(message)
        self._feed()

    def take(self, wanted: set[str], timeout_s: float) -> list[tuple[Message, float]]:
        """Replies to some messages, with the seconds that they took.

        Those that are there, else what comes within `timeout_s` seconds.
        """
        if not wanted & self._replies.keys():
            self._look(timeout_s)
        return [self._replies.pop(each) for each in list(self._replies) if each in wanted]

    def processes(self) -> list[Any]:
        """The processes that are ready."""
        return [place.process for place in self._places if place.ready is None]

    def _group(self, message: Message) -> int:
        return self._numbers[message.metadata.dst_node_id] // self._together

    def _assign(self, message: Message) -> None:
        group = self._group(message)
        if group not in self._homes:
            self._homeless.setdefault(group, deque()).append(message)
            return
        home = self._homes[group]
        if home is None:
            self._fail(message)
        else:
            home.waiting.append(message)

    def _feed(self) -> None:
        """Give processes that have room their next message; who has none waiting becomes a group's home."""
        for place in self._places:
            if place.ready is not None:
                continue
            # Of neighbours the first message takes the time of all: the next group is there before the last.
            left = len(place.asked) + len(place.waiting)
            if left <= (1 if self._together > 1 else 0) and self._homeless:
                group = next(iter(self._homeless))
                self._homes[group] = place
                place.waiting.extend(self._homeless.pop(group))
            while place.waiting and len(place.asked) < _AHEAD:
                message = place.waiting.popleft()
                if _is_late(message):
                    self._fail(message, code=ErrorCode.MESSAGE_UNAVAILABLE)
                    continue
                place.asked[self._processes.ask(place.process, message)] = message

    def _look(self, timeout_s: float) -> None:
        """Hear of what has come, and hand out what is next."""
        starting = {place.ready: place for place in self._places if place.ready is not None}
        asked = {reference: place for place in self._places for reference in place.asked}
        if not starting and not asked:
            return
        for reference in self._processes.wait([*starting, *asked], timeout_s):
            if reference in starting:
                self._take_start(starting[reference], reference)
            elif reference in asked[reference].asked:  # else it was lost with another one
                self._take_reply(asked[reference], reference)
        self._feed()

    def _take_start(self, place: _Place, reference: Any) -> None:
        try:
            self._processes.result(reference)
        except LostError as error:
            place.failed_starts += 1
            self._processes.stop(place.process)
            lives = self._processes.lives(place.node)
            if lives and place.failed_starts < _MOST_STARTS:
                place.process, place.ready = self._processes.start(place.node)
            elif lives and not self._begun:
                raise PateFedError(
                    f"parties' processes do not start on node {place.node[:8]}: {error}"
                ) from error
            else:
                self._give_up(place)
            return
        place.ready, place.failed_starts = None, 0

    def _take_reply(self, place: _Place, reference: Any) -> None:
        try:
            reply = self._processes.result(reference)
        except LostError:
            self._restart(place)
            return
        message = place.asked.pop(reference)
        self._tries.pop(message.metadata.message_id, None)
        self._replies[message.metadata.message_id] = reply

    def _restart(self, place: _Place) -> None:
        """Another process in place of one that died; what it was asked is asked again, to the same disk."""
        asked = list(place.asked.values())
        oldest = asked[0].metadata.message_id  # the one that it was at
        self._tries[oldest] = self._tries.get(oldest, 0) + 1
        if self._tries[oldest] >= _MOST_TRIES:
            self._fail(asked.pop(0))
        place.waiting.extendleft(reversed(asked))
        place.asked = {}
        self._processes.stop(place.process)
        place.process, place.ready = self._processes.start(place.node)

    def _give_up(self, place: _Place) -> None:
        """A place is gone, and with it the disk of its parties, unless the others have it as well."""
        self._places.remove(place)
        if not self._places:
            raise PateFedError("no node of the cluster is left; the ledger keeps what was spent")
        lost = [group for group, home in self._homes.items() if home is place]
        for group in lost:
            if self._shared:
                del self._homes[group]
            else:
                self._homes[group] = None
        for message in place.waiting:
            self._assign(message)

    def _fail(self, message: Message, *, code: int = ErrorCode.CLIENT_APP_CRASHED) -> None:
        """Answer for a party that is lost, or for a message that came too late to be asked."""
        reply = Message(Error(code=code, reason="the party's node is lost"), reply_to=message)
        stamp(reply)
        self._replies[message.metadata.message_id] = reply, 0.0


def _is_late(message: Message) -> bool:
    return time.time() > message.metadata.created_at + message.metadata.ttl

"""Flower's Grid on a Ray cluster: which process plays which party, and what a lost one takes along.

A party's teachers and its journal lie on the node where it was taught. So its messages go there as long as
the node lives, each to the process that had the first one. A message whose process died is sent again to the
same disk, where the journal knows what was answered: no party votes twice on a question. A node that dies
takes its parties with it, and what is asked of them is answered by an error. They are never played elsewhere,
where their journal is not, unless all nodes share one disk.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import ray
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pate_fed.errors import InputError, PateFedError
from pate_fed.flower.compat import stamp
from pate_fed.flower.inline import PartiesGrid
from pate_fed.flower.party_process import PartyProcess, PartySetup
from pate_fed.structure.faults import PartyFault

_AHEAD = 2  # messages at a process, so that it never waits for the next one
_MOST_TRIES = 3  # of a message whose process dies: it may be the message that kills it
_MOST_STARTS = 3  # of a process in a row, on a node that lives


class LostError(Exception):
    """A process that played parties is gone, or its node is."""


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
        processes: RayProcesses,
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

    def _assign(self, message: Message) -> None:
        group = self._numbers[message.metadata.dst_node_id] // self._together
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
                if time.time() > message.metadata.created_at + message.metadata.ttl:
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


def free_places(device: str, wanted: float | None, *, most: int) -> tuple[list[str], float]:
    """Nodes that play parties, each as often as it has a core and its share of a GPU, and that share.

    With the device auto GPUs play where the cluster has any, as a core is far slower. At most `most` places
    are told, from all nodes alike.

    Raises:
        InputError: the cluster has none of what is asked for.
    """
    nodes = [node for node in _nodes() if node["Alive"]]
    gpus = {node["NodeID"]: float(node["Resources"].get("GPU", 0.0)) for node in nodes}
    cores = {node["NodeID"]: int(node["Resources"].get("CPU", 0.0)) for node in nodes}
    share = 0.0 if device == "cpu" or not any(gpus.values()) else wanted or 1.0
    if device.startswith("cuda") and not share:
        raise InputError(
            f"--device {device}: no node of the cluster has a GPU; auto and cpu work without one"
        )
    room = dict(cores)
    if share:
        room = {node: min(cores[node], math.floor(gpus[node] / share + 1e-9)) for node in cores}
    rounds = range(max(room.values(), default=0))
    places = [node for number in rounds for node in room if room[node] > number][:most]
    if not places:
        raise InputError("--ray-address: the cluster has no core for a party; give its nodes some")
    return places, share


class RayProcesses:
    """Processes of a pool: actors of this Ray job, which end with it. What is asked of one it does in turn.

    `data` are put into Ray's object store once, and each node's processes share one copy.
    """

    def __init__(
        self, work: PartySetup, data: Any, contexts: Mapping[int, Context], *, num_gpus: float
    ) -> None:
        self._work, self._data, self._contexts = work, ray.put(data), contexts
        self._num_gpus = num_gpus

    def start(self, node: str) -> tuple[Any, Any]:
        """A new process on a node, and the reference to its being ready."""
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        actor: Any = ray.remote(PartyProcess)
        process = actor.options(
            num_cpus=1, num_gpus=self._num_gpus, max_restarts=0, scheduling_strategy=where
        ).remote(self._work, node)
        return process, process.enter.remote(self._data)

    def ask(self, process: Any, message: Message) -> Any:
        """Have a process answer a message; the reference to its reply and the seconds it took."""
        return process.answer.remote(message, self._contexts[message.metadata.dst_node_id])

    def wait(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """Those that have come, once there is one or the time is over."""
        ready, _ = ray.wait(list(references), num_returns=1, timeout=timeout_s)
        if ready:  # and whatever else is there already
            ready, _ = ray.wait(list(references), num_returns=len(references), timeout=0)
        return list(ready)

    def result(self, reference: Any) -> Any:
        """What a reference stands for.

        Raises:
            LostError: its process is gone.
            PateFedError: the process says why it cannot play parties.
        """
        try:
            return ray.get(reference)
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, PateFedError):
                raise type(cause)(str(cause)) from None
            raise PateFedError(f"a party's process on the cluster failed ({type(cause).__name__})") from error
        except RayError as error:  # the actor, its node, or what it needed is gone
            raise LostError(_told(error)) from error

    def stop(self, process: Any) -> None:
        """End a process that may not have died: it must not go on beside the one in its place."""
        ray.kill(process)

    def lives(self, node: str) -> bool:
        """Whether a node is still in the cluster."""
        return any(each["NodeID"] == node and each["Alive"] for each in _nodes())

    def leave(self, processes: Sequence[Any], timeout_s: float) -> list[PartyFault]:
        """Have processes leave their folders and end; who does not within the time ends all the same.

        What went wrong at the parties of those that did.
        """
        left = [process.leave.remote() for process in processes]
        found: list[PartyFault] = []
        for done in ray.wait(left, num_returns=len(left), timeout=timeout_s)[0] if left else ():
            with suppress(RayError):  # it is gone
                found += ray.get(done)
        return found


def _nodes() -> list[dict[str, Any]]:
    untyped: Any = ray
    return list(untyped.nodes())


def _told(error: RayError) -> str:
    """What of Ray's error is for a user: the last line of what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = [line for line in lines if "Error: " in line]
    return (found or lines or [type(error).__name__])[-1][:300]


_FIRST_S, _OTHERS_S = 180.0, 60.0  # until a first process plays, and until all do
_SLICE_S = 1.0
_LEAVE_S = 10.0


class ClusterGrid(PartiesGrid):
    """Delivers messages to processes on `places`, each the node of one process, and ends them with itself.

    `seconds` are those in which parties worked; `faults`, at the end, what went wrong at them.
    """

    def __init__(
        self,
        work: PartySetup,
        data: Any,
        places: Sequence[str],
        *,
        num_nodes: int,
        num_gpus: float,
        together: int,
    ) -> None:
        super().__init__(num_nodes=num_nodes)
        self.seconds = 0.0
        self.faults: list[PartyFault] = []
        self._processes = RayProcesses(work, data, self._contexts, num_gpus=num_gpus)
        self._pool = PartyPool(
            self._processes,
            places,
            numbers={node: number for number, node in enumerate(self._contexts)},
            together=together,
            shared=work.outlives_nodes,
        )

    def __enter__(self) -> Self:
        self._pool.begin(most_s=_FIRST_S, others_s=_OTHERS_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.faults = self._processes.leave(self._pool.processes(), _LEAVE_S)

    def _queue(self, messages: dict[str, Message]) -> None:
        self._pool.put(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are there, else those that come within a second."""
        found = self._pool.take(set(message_ids), _SLICE_S)
        self.seconds += sum(seconds for _, seconds in found)
        return [reply for reply, _ in found]

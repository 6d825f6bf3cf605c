"""Messages delivered to each node: what it may pull, and the one bounded reply that it may push."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc

_OBJECT = 2**20  # Flower cuts arrays into chunks of 5 MiB
_FEW_OBJECTS = 64
_MOST_PUSHES = 100  # attempts to send one reply


def most_objects(most_bytes: int) -> int:
    """How many of Flower's objects a message of so many bytes is cut into at most."""
    return _FEW_OBJECTS + most_bytes // _OBJECT


class Refused(Exception):
    """A call that no honest node makes, with the code that it gets."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(slots=True)
class _Delivery:
    """One message that was delivered to a node, and the room that its reply has left."""

    objects: frozenset[str]
    room: int
    reply: frozenset[str] | None = None  # the objects that its reply is made of, as the node announced them
    waiting: set[str] = field(default_factory=set)  # those that the node has not sent yet
    pushes: int = 0


class Deliveries:
    """The messages that each node was sent, and the bytes that its replies have left: `most_bytes` each."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._most_objects = most_objects(most_bytes)
        self._deliveries: dict[int, dict[str, _Delivery]] = {}
        self._lock = threading.Lock()

    def deliver(self, node: int, message: str, objects: frozenset[str]) -> None:
        """Note that a node was sent a message, made of `objects`."""
        with self._lock:
            self._deliveries.setdefault(node, {})[message] = _Delivery(objects, self._most_bytes)

    def check_pull(self, node: int, name: str) -> None:
        """Refuse a node an object of a message that was not sent to it."""
        with self._lock:
            if not any(name in each.objects for each in self._deliveries.get(node, {}).values()):
                raise Refused(grpc.StatusCode.NOT_FOUND, "an object of no message to this node")

    def confirm(self, node: int, message: str) -> None:
        """Note that a node has a message; only one that was sent to it is taken out of the store."""
        with self._lock:
            delivery = self._deliveries.get(node, {}).get(message)
            if delivery is None:
                raise Refused(grpc.StatusCode.NOT_FOUND, "a message that was not sent to this node")
            delivery.objects = frozenset()

    def announce(self, node: int, message: str, objects: Sequence[str], size: int) -> None:
        """Note the objects of a node's reply to `message`; `size` is what announcing them takes."""
        with self._lock:
            delivery = self._deliveries.get(node, {}).get(message)
            if delivery is None:
                raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "a reply to no message to this node")
            if delivery.reply is None:
                if len(objects) > self._most_objects or size > delivery.room:
                    raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "a reply of too many parts")
                delivery.reply, delivery.room = frozenset(objects), delivery.room - size
            delivery.pushes += 1
            if delivery.reply != frozenset(objects) or delivery.pushes > _MOST_PUSHES:
                raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "a second reply to the same message")

    def expect(self, node: int, message: str, objects: Sequence[str]) -> None:
        """Note which objects of its reply a node was asked to push."""
        with self._lock:
            delivery = self._deliveries.get(node, {}).get(message)
            if delivery is not None:
                delivery.waiting.update(set(objects) & (delivery.reply or frozenset()))

    @contextmanager
    def pushing(self, node: int, name: str, size: int) -> Iterator[Callable[[], None]]:
        """Hold room for one object of a reply while it is stored; what is yielded says that it was."""
        delivery, stored = self._hold(node, name, size), threading.Event()
        try:
            yield stored.set
        finally:
            with self._lock:
                if not stored.is_set():
                    delivery.room += size
                    delivery.waiting.add(name)
                elif not delivery.waiting:
                    self._forget(node, delivery)

    def _hold(self, node: int, name: str, size: int) -> _Delivery:
        with self._lock:
            for delivery in self._deliveries.get(node, {}).values():
                if name in delivery.waiting:
                    break
            else:
                raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "an object that nobody asked this node for")
            if size > delivery.room:
                raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "more bytes than a reply of this study has")
            delivery.room -= size
            delivery.waiting.discard(name)
            return delivery

    def _forget(self, node: int, delivery: _Delivery) -> None:
        """A reply that has come in full needs no more room."""
        held = self._deliveries[node]
        self._deliveries[node] = {name: each for name, each in held.items() if each is not delivery}

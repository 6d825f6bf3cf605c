"""The guard around Flower's Fleet API, on both sides: mutual TLS, each node in its own name, bounds.

flwr 1.39 asks nobody for a certificate, takes 2 GiB from whoever connects, and believes what a node says of
itself in four places (`docs/upstream/flower_fleet_api.py`). Its commands run in processes of ours, so that is
closed before they start, in `line_1_39`. A node may pull what it was sent, and push one bounded reply to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from flwr.common.constant import PUBLIC_KEY_HEADER
from flwr.proto import message_pb2
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.utils import get_metadata_bytes

from pate_fed.errors import PateFedError
from pate_fed.flower.clocks import Clocks
from pate_fed.flower.transport import LinkGuard, NodeGuard
from pate_fed.identity.keys import load_key
from pate_fed.runtime.addresses import channel_credentials

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


HEARTBEAT_S = 10
"""Seconds from one heartbeat to the latest time of the next; Flower's least. After two a seat is free."""

CALLS = 8
"""Calls of one certificate at a time; an honest node has a heartbeat, a pull and two parts of each way."""
_PARTS = 2  # as many as Flower pushes at once
_CALL_S = 300.0  # for a call, of at most one part of a reply
_LOOK_S = 5.0

_WRAPPING = 2**20  # a gRPC message around the largest object
_HANDSHAKE_MS = 20_000
_COMMON = [
    # No side compresses: what is small on the wire and large in memory is refused.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.max_send_message_length", -1),
]
_FLEET = [
    ("grpc.max_concurrent_streams", 16),
    ("grpc.absolute_max_metadata_size", 16 * 1024),
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ("grpc.so_reuseport", 0),  # a port that is taken is an error, not shared
    # As Flower sets them: some networks drop connections that are silent for four minutes.
    ("grpc.keepalive_time_ms", 210_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 0),
]

# The coordinator's side.


@dataclass(slots=True)
class _Share:
    """The calls of one certificate: how many are under way, and room for parts of replies to be read."""

    calls: int = 0
    parts: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(_PARTS))


class CallLimits(grpc.ServerInterceptor):  # type: ignore[misc]
    """Gives each certificate its own share of calls, of bytes and of time, whatever its holder does with it.

    A call is counted before anything of it is read, as gRPC keeps a thread for each that has begun. Of parts
    of replies, which alone are large, two are read at a time. Comes before all other interceptors.
    """

    def __init__(self) -> None:
        self._shares: dict[bytes, _Share] = {}
        self._under_way: dict[grpc.ServicerContext, float] = {}
        self._clocks = Clocks()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler of a call, which reads it only where its certificate has room for it."""
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        is_part = handler_call_details.method.endswith("/PushObject")

        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
            self._clocks.look(context)
            try:
                with self._room(context, is_part=is_part):
                    request = next(requests, None)
                    if request is None:
                        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "a call without a message")
                    return handler.unary_unary(request, context)
            except Refused as refusal:
                context.abort(refusal.code, str(refusal))
                raise

        return grpc.stream_unary_rpc_method_handler(
            answer, handler.request_deserializer, handler.response_serializer
        )

    @contextmanager
    def _room(self, context: grpc.ServicerContext, *, is_part: bool) -> Iterator[None]:
        key = _key_of_peer(context)
        if key is None:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "no certificate")
        with self._lock:
            share = self._shares.setdefault(key, _Share())
            if share.calls >= CALLS:
                raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls of this hospital at once")
            share.calls += 1
            self._under_way[context] = time.monotonic()
        try:
            if not is_part:
                yield
            elif share.parts.acquire(timeout=_CALL_S):
                try:
                    yield
                finally:
                    share.parts.release()
            else:
                raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "earlier parts of a reply do not come")
        finally:
            with self._lock:
                share.calls -= 1
                del self._under_way[context]

    def _watch(self) -> None:
        """Break off calls that take too long; who sends slowly, or is gone, has its share back."""
        while True:
            time.sleep(_LOOK_S)
            with self._lock:
                begun = time.monotonic() - _CALL_S
                late = [context for context, since in self._under_way.items() if since < begun]
            for context in late:
                context.cancel()


class FleetGuard(grpc.ServerInterceptor):  # type: ignore[misc]
    """Holds every call to the certificate that its connection was made with, and to the node's own messages.

    Flower's interceptor, which comes before, holds a call's node to the key that signed it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._deliveries = Deliveries(most_bytes)

    def intercept_service(
        self, continuation: Callable[[Any], Any], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The handler of a call, behind the guard."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        key = get_metadata_bytes(handler_call_details.invocation_metadata, PUBLIC_KEY_HEADER)

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                if key is None or key != _key_of_peer(context):
                    raise Refused(grpc.StatusCode.UNAUTHENTICATED, "not the key of the certificate")
                return self._answer(request, key, lambda: handler.unary_unary(request, context))
            except Refused as refusal:
                context.abort(refusal.code, str(refusal))
                raise

        return grpc.unary_unary_rpc_method_handler(
            answer, handler.request_deserializer, handler.response_serializer
        )

    def _answer(self, request: Any, key: bytes, call: Callable[[], Any]) -> Any:
        deliveries = self._deliveries
        if isinstance(request, ActivateNodeRequest) and request.public_key != key:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "another node's key")
        if isinstance(request, ActivateNodeRequest | SendNodeHeartbeatRequest):
            request.heartbeat_interval = min(request.heartbeat_interval, HEARTBEAT_S)
        elif isinstance(request, message_pb2.PullObjectRequest):
            deliveries.check_pull(request.node.node_id, request.object_id)
        elif isinstance(request, message_pb2.ConfirmMessageReceivedRequest):
            deliveries.confirm(request.node.node_id, request.message_object_id)
        elif isinstance(request, PullMessagesRequest):
            response = call()
            for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                deliveries.deliver(request.node.node_id, message.metadata.message_id, frozenset(_names(tree)))
            return response
        elif isinstance(request, PushMessagesRequest):
            return self._take_reply(request, call)
        elif isinstance(request, message_pb2.PushObjectRequest):
            with deliveries.pushing(
                request.node.node_id, request.object_id, len(request.object_content)
            ) as is_stored:
                response = call()
                if response.stored:
                    is_stored()
                return response
        return call()

    def _take_reply(self, request: PushMessagesRequest, call: Callable[[], Any]) -> Any:
        node = request.node.node_id
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "one message at a time is meant")
        said, [tree] = request.messages_list[0].metadata, request.message_object_trees
        if said.src_node_id != node or said.message_id != tree.object_id:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "a message in another's name")
        message = said.reply_to_message_id
        self._deliveries.announce(node, message, _names(tree), request.ByteSize())
        response = call()
        self._deliveries.expect(node, message, response.objects_to_push)
        return response


def _names(tree: message_pb2.ObjectTree) -> list[str]:
    return [part.object_id for part in iterate_object_tree(tree)]


def _key_of_peer(context: grpc.ServicerContext) -> bytes | None:
    """The public key (PEM) of the certificate that the other side of a connection has shown."""
    shown = context.auth_context().get("x509_pem_cert")
    return _key_in(shown[0]) if shown else None


@lru_cache(maxsize=4096)
def _key_in(certificate: bytes) -> bytes:
    public = x509.load_pem_x509_certificate(certificate).public_key()
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def fleet_server(
    servicer_and_add_fn: tuple[Any, Callable[..., Any]],
    address: str,
    certificates: tuple[bytes, bytes, bytes],
    *,
    interceptors: Sequence[grpc.ServerInterceptor],
    guard: LinkGuard,
) -> grpc.Server:
    """The Fleet API's server, not started yet, for those alone whom the authority gave a certificate.

    `certificates` are the authority's, the server's and its key, PEM. There is a thread for every call that
    all hospitals may have under way, so that none waits for another's.
    """
    authority, certificate, key = certificates
    servicer, add = servicer_and_add_fn
    workers = 16 + CALLS * guard.hospitals
    server = grpc.server(
        ThreadPoolExecutor(workers),
        maximum_concurrent_rpcs=workers,
        options=[*_COMMON, *_FLEET, ("grpc.max_receive_message_length", guard.most_bytes + _WRAPPING)],
        interceptors=[CallLimits(), *interceptors, FleetGuard(guard.most_bytes)],
    )
    add(servicer, server)
    credentials = grpc.ssl_server_credentials(
        ((key, certificate),), root_certificates=authority, require_client_auth=True
    )
    port = server.add_secure_port(address, credentials)
    server.bound_address = f"{address.rpartition(':')[0]}:{port}"
    return server


# The hospital's side.


class PullGuard(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Drops a coordinator's message of too many parts, and breaks off one of too many bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = self._room = most_bytes
        self._most_objects = most_objects(most_bytes)
        self._lock = threading.Lock()

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """The call, once its response is within bounds.

        Raises:
            PateFedError: the objects of a message have more bytes than any message of the study.
        """
        call = continuation(client_call_details, request)
        if not isinstance(request, PullMessagesRequest | message_pb2.PullObjectRequest):
            return call
        if call.code() is not grpc.StatusCode.OK:
            return call
        response = call.result()
        if isinstance(request, PullMessagesRequest):
            if any(len(_names(tree)) > self._most_objects for tree in response.message_object_trees):
                response.ClearField("messages_list")
                response.ClearField("message_object_trees")
            with self._lock:
                self._room = self._most_bytes
            return call
        with self._lock:
            self._room -= len(response.object_content)
            if self._room < 0:
                raise PateFedError("the coordinator sends more than a message of the study can hold")
        return call


def fleet_channel(
    address: str,
    authority: bytes | None,
    *,
    interceptors: Sequence[grpc.UnaryUnaryClientInterceptor],
    guard: NodeGuard,
) -> grpc.Channel:
    """A hospital's channel to the Fleet API, with its own certificate. `authority` is PEM."""
    key = load_key(Path(guard.key))
    credentials = channel_credentials(authority, certificate=guard.certificate, key=key)
    options = [*_COMMON, ("grpc.max_receive_message_length", guard.most_bytes + _WRAPPING)]
    channel = grpc.secure_channel(address, credentials, options=options)
    return grpc.intercept_channel(channel, *interceptors, PullGuard(guard.most_bytes))

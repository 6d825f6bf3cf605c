"""The guard around Flower's Fleet API, on both sides: mutual TLS, each node in its own name, bounds.

flwr 1.39 asks nobody for a certificate, takes 2 GiB from whoever connects, and believes what a node says of
itself in four places (`docs/upstream/flower-fleet-api.md`). Its commands run in processes of ours, so that is
closed here before they start. What is put in a place of Flower's is checked to be there: with another flwr
nothing starts, rather than unguarded.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from flwr.common.constant import PUBLIC_KEY_HEADER
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.utils import get_metadata_bytes

from pate_fed.errors import PateFedError
from pate_fed.flower.credentials import channel_credentials
from pate_fed.flower.deliveries import Deliveries, Refused, most_objects
from pate_fed.flower.guard_settings import LinkGuard, NodeGuard
from pate_fed.flower.patches import HEARTBEAT_S
from pate_fed.identity.keys import load_key

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


def install(command: str, settings: str) -> None:
    """Put the guard around one of Flower's commands, in this process, before it runs.

    Raises:
        PateFedError: the installed flwr is not the one that the guard is made for.
    """
    if command == "flower-superlink":
        _guard_superlink(LinkGuard(**json.loads(settings)))
    else:
        _guard_supernode(NodeGuard(**json.loads(settings)))


def _replace(module: Any, name: str, replacement: Callable[..., Any], *parameters: str) -> None:
    """Put a function in the place of one of Flower's that takes these parameters."""
    original = getattr(module, name, None)
    if original is None or not set(parameters) <= set(inspect.signature(original).parameters):
        raise PateFedError(
            f"the installed flwr has no {name}({', '.join(parameters)}) in {module.__name__}, so nothing "
            "would guard the connection: install flwr 1.39"
        )
    setattr(module, name, replacement)


# The coordinator's side.


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
        elif isinstance(request, PullObjectRequest):
            deliveries.check_pull(request.node.node_id, request.object_id)
        elif isinstance(request, ConfirmMessageReceivedRequest):
            deliveries.confirm(request.node.node_id, request.message_object_id)
        elif isinstance(request, PullMessagesRequest):
            response = call()
            for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                deliveries.deliver(request.node.node_id, message.metadata.message_id, frozenset(_names(tree)))
            return response
        elif isinstance(request, PushMessagesRequest):
            return self._take_reply(request, call)
        elif isinstance(request, PushObjectRequest):
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


def _names(tree: ObjectTree) -> list[str]:
    return [part.object_id for part in iterate_object_tree(tree)]


def _key_of_peer(context: grpc.ServicerContext) -> bytes | None:
    """The public key (PEM) of the certificate that the other side of a connection has shown."""
    shown = context.auth_context().get("x509_pem_cert")
    return _key_in(shown[0]) if shown else None


@lru_cache(maxsize=4096)
def _key_in(certificate: bytes) -> bytes:
    public = x509.load_pem_x509_certificate(certificate).public_key()
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _guard_superlink(guard: LinkGuard) -> None:
    # The package has a function of the module's name.
    flower_superlink = import_module("flwr.superlink.cli.flower_superlink")
    made: list[grpc.Server] = []
    start: Callable[[Any], None] = flower_superlink.SuperLinkLifespan.startup

    def make_server(
        servicer_and_add_fn: tuple[Any, Callable[..., Any]],
        server_address: str,
        certificates: tuple[bytes, bytes, bytes] | None,
        interceptors: Sequence[grpc.ServerInterceptor],
        **_: Any,
    ) -> grpc.Server:
        if certificates is None or not any(
            isinstance(each, NodeAuthServerInterceptor) for each in interceptors
        ):
            raise PateFedError("Flower's SuperLink would take nodes without keys: install flwr 1.39")
        made.append(
            fleet_server(
                servicer_and_add_fn, server_address, certificates, interceptors=interceptors, guard=guard
            )
        )
        return made[-1]

    def startup(lifespan: Any) -> None:
        start(lifespan)
        if not made:
            raise PateFedError("Flower's SuperLink started without its guard: install flwr 1.39")

    parameters = ("servicer_and_add_fn", "server_address", "certificates", "interceptors")
    _replace(flower_superlink, "generic_create_grpc_server", make_server, *parameters)
    _replace(flower_superlink.SuperLinkLifespan, "startup", startup, "self")


def fleet_server(
    servicer_and_add_fn: tuple[Any, Callable[..., Any]],
    address: str,
    certificates: tuple[bytes, bytes, bytes],
    *,
    interceptors: Sequence[grpc.ServerInterceptor],
    guard: LinkGuard,
) -> grpc.Server:
    """The Fleet API's server, not started yet, for those alone whom the authority gave a certificate.

    `certificates` are the authority's, the server's and its key, PEM. At most eight calls a hospital are read
    at a time, each of at most the largest reply's bytes.
    """
    authority, certificate, key = certificates
    servicer, add = servicer_and_add_fn
    workers = min(16 + 8 * guard.hospitals, 1000)
    server = grpc.server(
        ThreadPoolExecutor(workers),
        maximum_concurrent_rpcs=workers,
        options=[*_COMMON, *_FLEET, ("grpc.max_receive_message_length", guard.most_bytes + _WRAPPING)],
        interceptors=[*interceptors, FleetGuard(guard.most_bytes)],
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
        if not isinstance(request, PullMessagesRequest | PullObjectRequest):
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


def _guard_supernode(guard: NodeGuard) -> None:
    from flwr.client.grpc_rere_client import connection
    from flwr.supernode import start_client_internal

    def make_channel(
        *,
        server_address: str,
        root_certificates: bytes | None,
        interceptors: Sequence[grpc.UnaryUnaryClientInterceptor],
        **_: Any,
    ) -> grpc.Channel:
        return fleet_channel(server_address, root_certificates, interceptors=interceptors, guard=guard)

    parameters = ("server_address", "root_certificates", "interceptors")
    _replace(connection, "create_channel", make_channel, *parameters)
    # Flower unpacks the coordinator's bundle for its settings; a hospital opens none, and needs none.
    _replace(start_client_internal, "get_fused_config_from_fab", lambda *_: {}, "fab_file", "run")


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

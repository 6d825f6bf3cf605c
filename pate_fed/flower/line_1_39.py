"""All that is bound to the inside of Flower 1.39: where the guard is put, and what its commands do otherwise.

Set in the process of each command before it runs. What is put in a place of Flower's is checked to be there:
with another flwr nothing starts, rather than unguarded. `tests/flower` guards every name that is used.
"""

from __future__ import annotations

import hmac
import inspect
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import grpc
from flwr.app import Message
from flwr.client.grpc_rere_client import connection
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.server.superlink.linkstate import linkstate_factory
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from flwr.supercore import heartbeat
from flwr.supercore.constant import NodeStatus
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pate_fed.errors import PateFedError
from pate_fed.flower.guard import HEARTBEAT_S, fleet_channel, fleet_server
from pate_fed.flower.transport import CONTROL_HEADER, LinkGuard, NodeGuard, control_word

_CHANNEL = (
    # Flower waits for answers without end: a connection that died silently, as behind a router that was
    # restarted, would be noticed by the kernel after a quarter of an hour. Answers come every few seconds.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # The default grows to two minutes: so late a coordinator that was away would be noticed to be back.
    ("grpc.max_reconnect_backoff_ms", 10_000),
)

_TASKS, _HEALTH = "/v1/runtime/", "/health"

# Seconds after which a SuperNode that had a message, or is new, looks for the next one; then Flower's three.
_LOOKS = (0.25, 0.5, 1.0, 2.0)


class StudyLinkState(InMemoryLinkState):
    """Flower's nodes and messages, for hospitals that come back: revoked and admitted, or started again.

    A key that was unregistered may be registered again, and is the node that it was. What was under way to a
    node that is unregistered, and what it had answered without being heard, is gone. What a node had received
    and not answered before it was started again is answered for it: it is not available.
    """

    def create_node(
        self, owner_aid: str, owner_name: str, public_key: bytes, heartbeat_interval: float, **named: Any
    ) -> int:
        """Register a key; the node's id."""
        with self.lock:
            node = self.nodes.get(self.node_public_key_to_node_id.get(public_key, 0))
            if node is None or node.status != NodeStatus.UNREGISTERED:
                return super().create_node(owner_aid, owner_name, public_key, heartbeat_interval, **named)
            node.status = NodeStatus.REGISTERED
            node.ClearField("unregistered_at")
            return int(node.node_id)

    def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
        """Give a node's seat to the process that asks for it; False where another one has it."""
        with self.lock:
            given = super().activate_node(node_id, heartbeat_interval)
            if given:
                self._answer_lost(node_id)
            return given

    def _answer_lost(self, node_id: int) -> None:
        """A new process knows nothing of what an earlier one received; else all would wait for it in vain.

        Nobody sees a node away that takes its seat again in the moment in which it has become free.
        """
        for key, message in list(self.message_ins_store.items()):
            asked = message.metadata
            answered = key in self.message_ins_id_to_message_res_id
            if asked.dst_node_id == node_id and asked.delivered_at and not answered:
                reply = create_message_error_unavailable_res_message(asked, "node_unavail")
                self._store_generated_message(reply)
                self.message_res_store[reply.metadata.message_id] = reply
                self.message_ins_id_to_message_res_id[key] = reply.metadata.message_id

    def get_message_res(self, message_ids: set[str], run_id: int) -> list[Message]:
        """Replies that came; also of a node that has gone since, as after the last word of a study."""
        with self.lock:
            replied = self.message_ins_id_to_message_res_id
            answered = {key for key in message_ids if key in replied and key in self.message_ins_store}
            asked = {self.message_ins_store[key].metadata.dst_node_id for key in answered}
            gone = {node: self.nodes[node].online_until for node in asked if node in self.nodes}
            for node, until in gone.items():
                self.nodes[node].online_until = max(until, time.time() + HEARTBEAT_S)
            try:
                found = super().get_message_res(set(answered), run_id)  # it changes what it is given
            finally:
                for node, until in gone.items():
                    self.nodes[node].online_until = until
            return found + super().get_message_res(message_ids - answered, run_id)

    def delete_node(self, owner_aid: str, node_id: int) -> None:
        """Unregister a node; from now on every call with its key is refused."""
        with self.lock:
            super().delete_node(owner_aid, node_id)
            stored = self.message_ins_store.items()
            self.delete_messages({key for key, message in stored if message.metadata.dst_node_id == node_id})


def patch_superlink() -> None:
    """Let the SuperLink admit a hospital again that was revoked, and take orders from its parent alone.

    Raises:
        PateFedError: the installed flwr is not the one that this is made for.
    """
    factory: Any = linkstate_factory  # whose types leave out what it imports
    factory.InMemoryLinkState = StudyLinkState
    main = import_module("flwr.superlink.main")
    _replace(main, "_get_middleware", partial(_guarded, main._get_middleware))


def _guarded(middleware: Callable[[], list[Middleware]]) -> list[Middleware]:
    return [Middleware(ControlGuard), *middleware()]


class ControlGuard:
    """Refuses every call over HTTP without the word of whoever started this SuperLink.

    Any process of the machine reaches the port. Tasks' own calls have tokens, which Flower checks; whether it
    serves is nobody's secret.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call, or refuse it unread."""
        if scope["type"] == "lifespan" or self._may(scope):
            await self._app(scope, receive, send)
        else:
            refusal = Response("whoever started this SuperLink alone may call this", status_code=401)
            await refusal(scope, receive, send)

    @staticmethod
    def _may(scope: Scope) -> bool:
        if scope["type"] != "http":
            return False
        path, state = scope["path"], scope["app"].state
        if path.startswith(_TASKS) or (scope["method"], path) == ("GET", _HEALTH):
            return True
        given = dict(scope["headers"]).get(CONTROL_HEADER.encode(), b"")
        return hmac.compare_digest(given, control_word(state.superexec_auth_secret).encode())


def patch_supernode() -> None:
    """Let a lost SuperNode be noticed soon, and let it notice soon that the coordinator is back, or asks."""
    from flwr.supernode import start_client_internal as node

    node._pull_and_store_message = _looking_soon(node._pull_and_store_message)
    for module in (connection, heartbeat):
        module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT_S  # type: ignore[attr-defined]
    for name in ("secure_channel", "insecure_channel"):
        setattr(grpc, name, partial(_open, getattr(grpc, name)))


def _looking_soon(pull: Callable[..., int | None]) -> Callable[..., int | None]:
    """Flower waits three seconds whenever there is no message, which is most of what a small batch takes."""
    looks: tuple[float, ...] = _LOOKS

    def pull_soon(**given: Any) -> int | None:
        nonlocal looks
        found = pull(**given)
        for wait in looks if found is None else ():
            time.sleep(wait)
            found = pull(**given)
            if found is not None:
                break
        looks = () if found is None else _LOOKS
        return found

    return pull_soon


def _open(make: Callable[..., grpc.Channel], *given: Any, options: Any = (), **named: Any) -> grpc.Channel:
    channel = make(*given, options=[*(options or ()), *_CHANNEL], **named)
    # Flower would hear of each change of the connection's state, five times a second, and log it nowhere:
    # more than half of what a SuperNode costs at rest.
    channel.subscribe = _ignore
    return channel


def _ignore(*given: object, **named: object) -> None:
    """Hear of nothing."""


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


def _guard_supernode(guard: NodeGuard) -> None:
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

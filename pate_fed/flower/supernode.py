"""The hospital's SuperNode, and the messages it brings: answered by the installed ClientApp in this process.

Flower would unpack the coordinator's bundle and run it. Here the bundle is compared with the one shim that a
hospital expects and is never unpacked; what runs is the code that the hospital installed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto, fab_from_proto
from flwr.proto import runtime_pb2
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore import constant
from flwr.supercore.auth import create_superexec_auth_metadata, derive_auth_secret
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.version import package_name, package_version

from pate_fed.errors import IntegrityError
from pate_fed.flower.processes import PROTECTED, Child
from pate_fed.flower.records import MOST_BYTES, from_flower, inflate_message, is_the_shim, to_flower
from pate_fed.flower.transport import Exchange, NodeGuard
from pate_fed.protocol.messages import Record


class Caller:
    """Says in the headers of each call which Flower calls, and proves that it may.

    Flower's own interceptors say the same. They also hold its versions against each other, which are those of
    one installation here, and load a web framework that takes longer than all of ours to import.
    """

    def __init__(self, component: str, proof: Callable[[ProtobufRequestContext], dict[str, str]]) -> None:
        self._proof = proof
        self._version = {
            constant.FLWR_PACKAGE_NAME_METADATA_KEY: package_name,
            constant.FLWR_PACKAGE_VERSION_METADATA_KEY: package_version,
            constant.FLWR_COMPONENT_NAME_METADATA_KEY: component,
        }

    @classmethod
    def executor(cls, secret: bytes) -> Caller:
        """Who asks for tasks, by the secret that it shares with its SuperNode."""
        key = derive_auth_secret(secret)

        def signed(context: ProtobufRequestContext) -> dict[str, str]:
            method, message = context.rpc_method, context.message
            if method not in PROTECTED:
                return {}
            return create_superexec_auth_metadata(auth_secret=key, method=method, request=message)

        return cls("SuperExec", signed)

    @classmethod
    def app(cls, token: str) -> Caller:
        """Who answers a task, by the task's token."""
        return cls("flwr-clientapp", lambda _: {constant.TASK_TOKEN_HEADER: token})

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add the headers to a call on its way."""
        context.request.headers.update({**self._version, **self._proof(context)})
        return call_next(context)


class SuperNode(Child):
    """A SuperNode of one hospital; `folder` holds all its state, `address` is the coordinator's.

    `tls` is the file of the authority that the coordinator must show, and the hospital's own identity.
    """

    def __init__(self, folder: Path, address: str, *, tls: tuple[Path, NodeGuard] | None) -> None:
        arguments, self._most_bytes, guard = ["--superlink", address], MOST_BYTES, None
        if tls is None:
            arguments += ["--insecure"]
        else:
            ca, guard = tls
            self._most_bytes = guard.most_bytes
            arguments += ["--root-certificates", str(ca), "--auth-supernode-private-key", guard.key]
        super().__init__("flower-supernode", arguments, folder=folder, guard=guard)
        self._client = self._connect(Caller.executor(self.secret))

    def answer_next(self, client_app: ClientApp, *, refuse_bundle: Callable[[], Record]) -> Exchange | None:
        """Answer one waiting request; None where none waits, or where the reply did not get away.

        A SuperNode ends, or gives a task up, when the coordinator dies meanwhile. What is answered then is on
        the hospital's disk, and is asked for again. `refuse_bundle` gives the reply to a request that came
        with any code but the shim. A request that is no message is dropped.
        """
        token = self._acquire()
        if token is None:
            return None
        client = self._connect(Caller.app(token))
        heartbeat = HeartbeatSender(beating(client))
        heartbeat.start()
        context, status = None, SubStatus.FAILED
        try:
            given = self._pull(client)
            if given is None:
                return None
            message, context, bundle = given
            start = time.perf_counter()
            if is_the_shim(bundle):
                request, reply = _read(message), _answer(client_app, message, context)
            else:
                request, reply = None, Message(to_flower(refuse_bundle()), reply_to=message)
            seconds = time.perf_counter() - start
            content = {} if reply.has_error() else from_flower(reply.content)
            sent = 0 if reply.has_error() else _size(reply)
            push_message(client, reply, context)
            status = SubStatus.COMPLETED
            return Exchange(
                message_type=message.metadata.message_type,
                request=request,
                reply=content,
                seconds=seconds,
                bytes_out=sent,
            )
        except httpx.HTTPError:
            return None
        finally:
            heartbeat.stop()
            with suppress(httpx.HTTPError):
                push_task_output(client, context, status, "")
            client.close()

    def stop(self) -> None:
        """End the SuperNode; may be called twice."""
        self._client.close()
        super().stop()

    def _pull(self, client: RuntimeHttpClient) -> tuple[Message, Context, bytes] | None:
        """The request of a task, None where what came is no message; then the next one is waited for."""
        try:
            return pull_task(client, most_bytes=self._most_bytes)
        except httpx.HTTPError:
            raise
        except Exception as error:  # the coordinator's bytes: whatever fails must not end this hospital
            what = type(error).__name__
            print(f"warning: a message that cannot be read ({what}) came and was dropped", file=sys.stderr)
            return None

    def _acquire(self) -> str | None:
        try:
            found = self._client.AcquireTask(
                runtime_pb2.AcquireTaskRequest(supported_task_types=[constant.TaskType.CLIENT_APP])
            )
        except httpx.HTTPError:
            return None  # not up yet, or going down: the process itself is watched elsewhere
        return str(found.token) if found.HasField("task") and found.token else None

    def _connect(self, caller: Caller) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=self.local_address,
            insecure=True,  # the SuperNode's own port, on this machine's loopback
            root_certificates=None,
            interceptors=[caller],
            retry_invoker=None,  # Flower's own tries for ever, or interrupts this process
        )


def pull_task(client: RuntimeHttpClient, *, most_bytes: int) -> tuple[Message, Context, bytes]:
    """A hospital's next request with its context, and the bundle that came with it, as bytes.

    Raises:
        httpx.HTTPError: the SuperNode is gone.
        ValueError: see `inflate_message`.
    """
    given = client.PullTaskInput(runtime_pb2.PullTaskInputRequest())
    TaskIdentity.task_id = given.task_id
    TaskIdentity.run_id = given.run.run_id
    TaskIdentity.node_id = given.context.node_id
    context, bundle = context_from_proto(given.context), fab_from_proto(given.fab).content
    [tree] = client.PullMessages(runtime_pb2.PullAppMessagesRequest()).message_object_trees
    node, run = Node(node_id=context.node_id), context.run_id
    contents = pull_objects(
        [part.object_id for part in iterate_object_tree(tree)],
        make_pull_object_fn_protobuf(client.PullObject, node, run),
    )
    confirmed = ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
    client.ConfirmMessageReceived(confirmed)
    message = inflate_message(tree.object_id, contents, most_bytes=most_bytes)
    message.metadata.__dict__["_message_id"] = tree.object_id  # its parts do not say it
    return message, context, bundle


def push_message(client: RuntimeHttpClient, message: Message, context: Context) -> None:
    """Send a task's reply, by Flower's code, which takes long to load: only once there is a reply."""
    from flwr.supernode.runtime import run_clientapp

    run_clientapp.push_message(client, message, context)


def push_task_output(client: RuntimeHttpClient, context: Context | None, status: str, details: str) -> None:
    """Say how a task ended."""
    from flwr.supernode.runtime import run_clientapp

    run_clientapp.push_task_output(client, context, status, details)


def beating(client: RuntimeHttpClient) -> Callable[[], bool]:
    """Heartbeats of a task; Flower's own would interrupt this process where the task is gone."""

    def beat() -> bool:
        with suppress(httpx.HTTPError):
            client.SendTaskHeartbeat(runtime_pb2.SendTaskHeartbeatRequest())
        return True

    return beat


def _answer(client_app: ClientApp, message: Message, context: Context) -> Message:
    try:
        return client_app(message, context)
    except Exception as error:  # no text of it may leave; the app keeps its own log
        return Message(Error(code=2, reason=type(error).__name__), reply_to=message)


def _read(message: Message) -> Record | None:
    try:
        return from_flower(message.content)
    except (IntegrityError, ValueError):  # a message may have no content
        return None


def _size(message: Message) -> int:
    """Bytes of everything a reply is made of, as Flower sends it."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())

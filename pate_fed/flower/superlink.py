"""The coordinator's SuperLink: started, asked for a run, and ended; its Grid is used in this very process.

Flower would start the ServerApp as a process of its own and stream its output back. Here the command that the
user started takes the run's task itself, so that progress, Ctrl-C and the exit code are its own.

Whatever one hospital sends is that one's alone. Flower's own Grid takes all replies apart at once: one that
is no message ends the study and loses the others' with it, and an upload that stops holds all up for two
hours. It also believes what a reply says of itself inside: one hospital could answer in another's place.
"""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from pate_fed.errors import PateFedError, naming_refusal
from pate_fed.flower.processes import PROTECTED, Child
from pate_fed.flower.records import MOST_BYTES, build_bundle, inflate_message
from pate_fed.flower.supernode import beating
from pate_fed.flower.transport import CONTROL_HEADER, LinkGuard, LinkLostError, control_word

_START_S = 60.0
_TASK_S = 30.0
_RETRY_S = 10.0
_BUSY = frozenset({502, 503, 504})  # answers of a SuperLink that may serve in a moment


class SuperLink(Child):
    """A SuperLink of one study. `folder` holds all its state; `address` is what hospitals connect to.

    Hospitals reach the Fleet API alone. The HTTP port, over which runs are submitted, stays on loopback, and
    hears there who knows its secret: Flower asks for no login (`line_1_39.ControlGuard`). `tls` is the folder
    of the study's authority, whose keys Flower alone reads, and what bounds hospitals, which show one of its
    certificates or are not heard.
    """

    def __init__(self, folder: Path, address: str, *, tls: tuple[Path, LinkGuard] | None) -> None:
        self._grid: HttpGrid | None = None
        self._heartbeat: HeartbeatSender | None = None
        self._ca, self._most_bytes, guard = None, MOST_BYTES, None
        arguments = ["--fleet-api-address", address, "--disable-runtime-dependency-installation"]
        if tls is None:
            arguments += ["--insecure"]
        else:
            keys, guard = tls
            self._ca, self._most_bytes = keys / "ca.crt", guard.most_bytes
            arguments += ["--ssl-ca-certfile", str(self._ca), "--ssl-certfile", str(keys / "server.crt")]
            arguments += ["--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"]
        super().__init__("flower-superlink", arguments, folder=folder, guard=guard)
        self._control = ControlHttpClient.from_server_address(
            server_address=self.local_address,
            insecure=tls is None,
            root_certificates=self._root(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), _Word(self.secret)],
        )

    def wait_until_ready(self, interrupted: Callable[[], bool]) -> None:
        """Return when the SuperLink serves; it takes about two seconds.

        Raises:
            LinkLostError: it ended, or does not answer within a minute.
        """
        end = time.monotonic() + _START_S
        while not self._healthy():
            if not self.running or time.monotonic() > end:
                raise LinkLostError(f"Flower's SuperLink did not start: see {self.log}")
            if interrupted():
                return
            time.sleep(0.1)

    def register(self, public_key: bytes, name: str) -> int:
        """Admit a hospital's node by its public key (PEM); the node's id."""
        request = RegisterNodeRequest(public_key=public_key, name=name)
        return int(self._control.RegisterNode(request).node_id)

    def unregister(self, node: int) -> None:
        """Shut a hospital's node out at once."""
        self._control.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def open_run(self) -> tuple[HttpGrid, Context]:
        """Submit the study's run and take its task; the Grid over which the hospitals are reached.

        Raises:
            PateFedError: Flower does not start the run.
        """
        bundle = build_bundle()
        fab = fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))
        with _answering():
            answer = self._control.StartRun(StartRunRequest(fab=fab))
        if not answer.HasField("run_id"):
            raise PateFedError(f"Flower did not start the run: see {self.log}")
        grid = StudyGrid(
            self.local_address,
            self._ca is None,
            self._root(),
            token=self._acquire(),
            most_bytes=self._most_bytes,
        )
        runtime = grid._runtime_client
        self._heartbeat = HeartbeatSender(beating(runtime))
        self._heartbeat.start()
        given = runtime.PullTaskInput(PullTaskInputRequest())
        if given.run.run_id != answer.run_id:
            raise PateFedError(f"Flower handed out a run that was not submitted here: see {self.log}")
        TaskIdentity.task_id = given.task_id
        TaskIdentity.run_id = given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        grid.set_run(run_from_proto(given.run))
        self._grid = grid
        return grid, context_from_proto(given.context)

    def close_run(self, *, completed: bool) -> None:
        """Tell Flower how the run ended."""
        if self._grid is None:
            return
        grid, self._grid = self._grid, None
        status = SubStatus.COMPLETED if completed else SubStatus.FAILED
        if self._heartbeat is not None and self._heartbeat.is_running:
            self._heartbeat.stop()
        if self.running:
            grid._retry_invoker.max_tries = 1
            with suppress(httpx.HTTPError):  # Flower's own book-keeping; the study's outcome is on our disk
                grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
        grid.close()

    def stop(self) -> None:
        """End the SuperLink; may be called twice."""
        self._control.close()
        super().stop()

    def _acquire(self) -> str:
        """The token of the run's task; only who knows the secret file gets it."""
        client = RuntimeHttpClient.from_server_address(
            server_address=self.local_address,
            insecure=self._ca is None,
            root_certificates=self._root(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=PROTECTED),
            ],
            retry_invoker=make_simple_http_retry_invoker(),
        )
        end = time.monotonic() + _TASK_S
        try:
            while time.monotonic() < end:
                found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if found.HasField("task") and found.token:
                    return str(found.token)
                time.sleep(0.1)
        finally:
            client.close()
        raise PateFedError(f"Flower did not hand out the run's task: see {self.log}")

    def _root(self) -> bytes | None:
        if self._ca is None:
            return None
        with naming_refusal(f"{self._ca}: cannot be read"):
            return self._ca.read_bytes()

    def _healthy(self) -> bool:
        scheme = "http" if self._ca is None else "https"
        trusted = None if self._ca is None else ssl.create_default_context(cafile=str(self._ca))
        with suppress(httpx.HTTPError):
            url = f"{scheme}://{self.local_address}/health"
            return httpx.get(url, timeout=2, verify=trusted or False, trust_env=False).is_success
        return False


class _Word:
    """Shows with every call that it comes from whoever started the SuperLink."""

    def __init__(self, secret: bytes) -> None:
        self._word = control_word(secret)

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send the call with the word."""
        context.request.headers[CONTROL_HEADER] = self._word
        return call_next(context)


@dataclass(frozen=True, slots=True, eq=False)
class _Announced:
    """A reply that the SuperLink told of, and those of its parts that were pulled, by their ids."""

    reply: ProtoMessage
    tree: ObjectTree
    parts: dict[str, bytes] = field(default_factory=dict)


class StudyGrid(HttpGrid):
    """Flower's Grid, but a reply that cannot be read is an error of its sender alone.

    A reply whose upload is under way is looked at again with the next pull. A SuperLink that is gone is an
    error with a sentence, not an endless retry. No reply grows beyond `most_bytes`.
    """

    def __init__(
        self, address: str, insecure: bool, root: bytes | None, *, token: str, most_bytes: int = MOST_BYTES
    ) -> None:
        super().__init__(address, insecure, root, token=token)
        self._retry_invoker.max_time, self._retry_invoker.should_giveup = _RETRY_S, _is_final
        self._most_bytes = most_bytes
        self._announced: dict[str, _Announced] = {}  # by the question's id; parts may be on their way

    def get_nodes(self) -> Iterable[NodeInfo]:
        """The connected nodes."""
        with _answering():
            return super().get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages."""
        with _answering():
            return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there whole, an error in place of one that cannot be read."""
        wanted = list(message_ids)
        with _answering():
            # The SuperLink forgets a question once it has told of the reply, and calls it unavailable then.
            open_ids = [key for key in wanted if key not in self._announced]
            found = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=open_ids))
            new = zip(found.messages_list, found.message_object_trees, strict=True)
            self._announced |= {_question(reply): _Announced(reply, tree) for reply, tree in new}
            self._announced = {key: self._announced[key] for key in wanted if key in self._announced}
            replies = [self._read(each) for each in self._announced.values()]
        whole = [reply for reply in replies if reply is not None]
        for reply in whole:
            self._announced.pop(reply.metadata.reply_to_message_id, None)
        return whole

    def _read(self, announced: _Announced) -> Message | None:
        """One reply, None while it is not whole.

        The SuperLink has held `reply.metadata` to its sender; what stands inside has nobody checked.
        """
        reply = announced.reply
        said = reply.metadata
        try:
            if not self._pull(announced):
                return None
            self._runtime_client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(
                    node=self.node, run_id=self.run.run_id, message_object_id=said.message_id
                )
            )
            message = inflate_message(said.message_id, announced.parts, most_bytes=self._most_bytes)
            inside = message.metadata
            if (inside.src_node_id, inside.reply_to_message_id) != (said.src_node_id, _question(reply)):
                raise ValueError("a reply in another's place")
        except httpx.HTTPError:
            raise
        except Exception as error:  # a stranger's bytes: whatever fails costs its sender alone
            return _unreadable(reply, type(error).__name__)
        inside.__dict__["_message_id"] = said.message_id
        return message

    def _pull(self, announced: _Announced) -> bool:
        """Pull the parts of a reply that are there; False while one of them is on its way.

        Each is pulled once: an upload that never ends must not be fetched again with every look at it.
        """
        for part in iterate_object_tree(announced.tree):
            if part.object_id in announced.parts:
                continue
            found = self._runtime_client.PullObject(
                PullObjectRequest(node=self.node, run_id=self.run.run_id, object_id=part.object_id)
            )
            if not found.object_found:
                raise ValueError("a part is gone")
            if not found.object_available:
                return False
            announced.parts[part.object_id] = found.object_content
        return True


def _question(reply: ProtoMessage) -> str:
    """The id of the message that it answers, as the SuperLink has checked it."""
    return str(reply.metadata.reply_to_message_id)


def _unreadable(reply: ProtoMessage, reason: str) -> Message:
    """An error in the place of a reply, to the question that the SuperLink says it answers."""
    said = reply.metadata
    metadata = Metadata(
        run_id=said.run_id,
        message_id=said.message_id,
        src_node_id=said.src_node_id,
        dst_node_id=said.dst_node_id,
        reply_to_message_id=said.reply_to_message_id,
        group_id="",
        created_at=said.created_at,
        ttl=0,
        message_type=said.message_type,
    )
    return make_message(metadata=metadata, error=Error(code=ErrorCode.UNKNOWN, reason=reason))


def _is_final(error: Exception) -> bool:
    """Whether no other try mends it; Flower would interrupt this process where it has given its run up."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in _BUSY


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise LinkLostError(
            "Flower's SuperLink is gone, or has given this study up, see flower/superlink.log in the run "
            "directory; the same command again goes on from the ledger"
        ) from error

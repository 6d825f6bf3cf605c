"""Flower's Grid inside one process: the same ClientApp and ServerApp, without a network."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run

from pate_fed.flower.compat import set_identity, stamp

_RUN_ID = 1
_SERVER = 1
_SLICE_S = 0.2  # a pull works this long, so that progress and Ctrl-C stay lively


class PartiesGrid(Grid):
    """A Grid over as many nodes as there are simulated parties; a subclass delivers the messages."""

    def __init__(self, *, num_nodes: int) -> None:
        set_identity(run_id=_RUN_ID, node_id=_SERVER)
        self._contexts = {
            node: Context(
                run_id=_RUN_ID,
                node_id=node,
                node_config={"partition-id": number, "num-partitions": num_nodes},
                state=RecordDict(),
                run_config={},
            )
            for number, node in enumerate(range(_SERVER + 1, _SERVER + 1 + num_nodes))
        }

    def set_run(self, run: Run) -> None:
        """Nothing to set: one grid serves one run."""

    @property
    def run(self) -> Run:
        """The one run of this grid."""
        return Run.create_empty(run_id=_RUN_ID)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node (Flower's older way; `Message(...)` is the newer)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """All nodes; the i-th holds partition i."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Queue messages; each is delivered when it is pulled, at the latest."""
        pushed = {stamp(message): message for message in messages}
        self._queue(pushed)
        return list(pushed)

    @abstractmethod
    def _queue(self, messages: dict[str, Message]) -> None:
        """Take messages to deliver, by their ids."""

    @abstractmethod
    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are there, also after a little work or waiting."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push, then pull until every reply is there or `timeout` seconds are over."""
        waiting = set(self.push_messages(messages))
        end = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while waiting and (end is None or time.monotonic() < end):
            arrived = self.pull_messages(waiting)
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            replies += arrived
        return replies


class InlineGrid(PartiesGrid):
    """Delivers messages by calling the ClientApp, when they are pulled, in the order they were pushed."""

    def __init__(self, client_app: ClientApp, *, num_nodes: int) -> None:
        super().__init__(num_nodes=num_nodes)
        self._app = client_app
        self._waiting: dict[str, Message] = {}

    def _queue(self, messages: dict[str, Message]) -> None:
        self._waiting.update(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Deliver some of the waiting messages and return their replies."""
        wanted = set(message_ids)
        replies: list[Message] = []
        end = time.monotonic() + _SLICE_S
        for message_id in [known for known in self._waiting if known in wanted]:
            replies.append(self._deliver(self._waiting.pop(message_id)))
            if time.monotonic() >= end:
                break
        return replies

    def _deliver(self, message: Message) -> Message:
        return answer_message(self._app, message, self._contexts[message.metadata.dst_node_id])


def answer_message(client_app: ClientApp, message: Message, context: Context) -> Message:
    """A node's reply, as Flower's engine has it: a client's fault is a message, not a crash."""
    try:
        reply = client_app(message, context)
    except Exception as error:
        return failed(message, reason=type(error).__name__)
    stamp(reply)
    return reply


def failed(message: Message, *, reason: str) -> Message:
    """The reply of a node whose client failed."""
    reply = Message(Error(code=2, reason=reason), reply_to=message)
    stamp(reply)
    return reply


def run_inline(server_app: ServerApp, client_app: ClientApp, *, num_nodes: int) -> None:
    """Run both apps in this process until the ServerApp's main returns or raises."""
    run_on(InlineGrid(client_app, num_nodes=num_nodes), server_app)


def run_on(grid: PartiesGrid, server_app: ServerApp) -> None:
    """Run a ServerApp in this thread over a Grid until its main returns or raises."""
    context = Context(run_id=_RUN_ID, node_id=_SERVER, node_config={}, state=RecordDict(), run_config={})
    server_app(grid, context)

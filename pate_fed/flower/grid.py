"""The Grid over which a coordinator reaches hospitals; whatever one of them sends is that one's alone.

Flower's own takes all replies apart at once: one that is no message ends the study and loses the others' with
it, and an upload that stops holds all up for two hours. It also believes what a reply says of itself inside:
one hospital could name the question that another one was asked, and answer in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.superlink.grid import HttpGrid

from pate_fed.errors import PateFedError
from pate_fed.flower.inflate import MOST_BYTES, inflate_message


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
        self,
        address: str,
        insecure: bool,
        root: bytes | None,
        *,
        token: str,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        super().__init__(address, insecure, root, token=token)
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

        Raises:
            ValueError: one is gone: its upload was given up.
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


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise PateFedError(
            "Flower's SuperLink is gone, see flower/superlink.log in the run directory; the same command "
            "again goes on from the ledger"
        ) from error

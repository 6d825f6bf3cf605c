"""A message put together from the parts that Flower cuts it into, within bounds, on both sides.

An array names its chunks by their places, and may name one any number of times: two bytes more on the wire
are another 5 MiB in memory. So what a message grows to is added up before it is put together.
"""

from __future__ import annotations

import json

from flwr.app import Context, Message
from flwr.app.message.array import Array
from flwr.common.serde import context_from_proto, fab_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullTaskInputRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

MOST_BYTES = 2**31 - 1
"""Where no terms bound a message: gRPC's own limit."""


def inflate_message(name: str, contents: dict[str, bytes], *, most_bytes: int) -> Message:
    """The message with the id `name`, from the contents of all its parts by their ids, which are used up.

    Raises:
        ValueError: its arrays take more than `most_bytes`, or it is no message. On a stranger's bytes any
            other exception may come, too.
    """
    if sum(_grown(part, contents) for part in contents.values()) > most_bytes:
        raise ValueError("arrays that grow beyond any message of the study")
    found = inflate_object_from_contents(name, contents)
    if not isinstance(found, Message):
        raise ValueError("no message")
    return found


def _grown(part: bytes, contents: dict[str, bytes]) -> int:
    """Bytes that an array takes once its chunks are joined; 0 of any other part."""
    kind, children, _ = get_object_head_values_from_object_content(part)
    if kind != Array.__qualname__:
        return 0
    places = json.loads(get_object_body(part, Array))["arraychunk_ids"]
    sizes = [len(contents[child]) for child in children]
    return sum(sizes[place] for place in places)


def pull_task(client: RuntimeHttpClient, *, most_bytes: int) -> tuple[Message, Context, bytes]:
    """A hospital's next request with its context, and the bundle that came with it, as bytes.

    Raises:
        httpx.HTTPError: the SuperNode is gone.
        ValueError: see `inflate_message`.
    """
    given = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id = given.task_id
    TaskIdentity.run_id = given.run.run_id
    TaskIdentity.node_id = given.context.node_id
    context, bundle = context_from_proto(given.context), fab_from_proto(given.fab).content
    [tree] = client.PullMessages(PullAppMessagesRequest()).message_object_trees
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

"""Messages that grow: a few bytes on the wire that would take all of a machine's memory."""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.common.serde import context_to_proto
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from pate_fed.errors import IntegrityError
from pate_fed.flower.compat import set_identity, stamp
from pate_fed.flower.inflate import inflate_message, pull_task
from pate_fed.flower.records import from_flower, to_flower

VOTES = np.zeros((60_000, 2), dtype=np.int64)  # 960,000 bytes, of which many chunks are the same
MOST = 2**20


def _message(record: dict[str, Any]) -> Message:
    set_identity(run_id=7, node_id=1)
    message = Message(to_flower(record), 2, "query.votes", ttl=100)
    stamp(message)
    return message


def _parts(message: Message) -> dict[str, bytes]:
    return {name: part.deflate() for name, part in get_all_nested_objects(message).items()}


def _bomb(times: int) -> tuple[str, dict[str, bytes]]:
    """A message whose array names its one chunk so many times, with every id and length right."""
    message = _message({"kind": "votes", "votes": VOTES})
    parts, renamed = _parts(message), dict[str, str]()
    for name, content in list(parts.items()):
        for old, new in renamed.items():
            content = content.replace(old.encode(), new.encode())
        if content.startswith(b"Array "):
            head, _, body = content.partition(b"\0")
            values = {**json.loads(body), "arraychunk_ids": [0] * times}
            body = json.dumps(values, separators=(",", ":")).encode()
            content = b" ".join([*head.split(b" ")[:-1], str(len(body)).encode()]) + b"\0" + body
        del parts[name]
        renamed[name] = hashlib.sha256(content).hexdigest()
        parts[renamed[name]] = content
    return renamed[message.object_id], parts


def test_an_honest_message_is_put_together() -> None:
    message = _message({"kind": "votes", "votes": VOTES})
    found = inflate_message(message.object_id, _parts(message), most_bytes=MOST)
    np.testing.assert_array_equal(from_flower(found.content)["votes"], VOTES)


def test_an_array_that_repeats_its_chunk_does_not_grow_beyond_the_bound() -> None:
    name, parts = _bomb(1)
    assert inflate_message(name, dict(parts), most_bytes=MOST).content
    name, parts = _bomb(100_000)  # 100 GB from a message of 1.2 MB
    assert sum(map(len, parts.values())) < 2 * MOST
    with pytest.raises(ValueError, match="grow beyond"):
        inflate_message(name, parts, most_bytes=MOST)


def test_what_is_no_message_is_refused() -> None:
    record = RecordDict({"arrays": ArrayRecord({})})
    parts = {name: part.deflate() for name, part in get_all_nested_objects(record).items()}
    with pytest.raises(ValueError, match="no message"):
        inflate_message(record.object_id, parts, most_bytes=MOST)


def test_one_array_under_many_names_is_refused_before_it_is_copied() -> None:
    content = to_flower({"kind": "votes"})
    content["arrays"] = ArrayRecord(dict.fromkeys(map(str, range(9)), Array(VOTES)))
    with pytest.raises(IntegrityError, match="too many arrays"):
        from_flower(content)


class _Client:
    """The SuperNode's side of a task: a message in its parts."""

    def __init__(self, name: str, tree: ObjectTree, parts: dict[str, bytes]) -> None:
        self._tree, self._parts, self.confirmed = tree, parts, list[str]()
        context = Context(run_id=7, node_id=2, node_config={}, state=RecordDict(), run_config={})
        self._context = context_to_proto(context)
        self.name = name

    def PullTaskInput(self, _: Any) -> Any:
        run = SimpleNamespace(run_id=7)
        return SimpleNamespace(task_id=1, run=run, context=self._context, fab=Fab(content=b"bundle"))

    def PullMessages(self, _: Any) -> Any:
        return SimpleNamespace(message_object_trees=[self._tree])

    def PullObject(self, request: Any) -> Any:
        content = self._parts.get(request.object_id)
        return SimpleNamespace(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.confirmed.append(request.message_object_id)


def test_a_hospital_takes_a_task_with_its_message_within_the_bound() -> None:
    message = _message({"kind": "votes", "votes": VOTES})
    client: Any = _Client(message.object_id, get_object_tree(message), _parts(message))
    found, context, bundle = pull_task(client, most_bytes=MOST)
    np.testing.assert_array_equal(from_flower(found.content)["votes"], VOTES)
    assert (found.metadata.message_id, context.node_id, bundle) == (message.object_id, 2, b"bundle")
    assert client.confirmed == [message.object_id]
    name, parts = _bomb(100_000)
    tree = ObjectTree(object_id=name, children=[ObjectTree(object_id=part) for part in parts if part != name])
    with pytest.raises(ValueError, match="grow beyond"):
        pull_task(_Client(name, tree, parts), most_bytes=MOST)  # type: ignore[arg-type]

"""Messages as Flower records, put together within bounds, and the bundle, which is never opened."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import context_to_proto
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from pate_fed.errors import IntegrityError
from pate_fed.flower.compat import set_identity, stamp
from pate_fed.flower.records import build_bundle, from_flower, inflate_message, is_the_shim, to_flower
from pate_fed.flower.supernode import pull_task
from pate_fed.protocol.messages import NUMBERS


def test_records_survive_flower() -> None:
    record = {"kind": "x", "n": 3, "share": 0.5, "votes": np.arange(6, dtype=np.int64).reshape(2, 3)}
    got = from_flower(to_flower(record))
    assert {name: got[name] for name in ("kind", "n", "share")} == {"kind": "x", "n": 3, "share": 0.5}
    assert got["votes"].dtype == np.int64
    np.testing.assert_array_equal(got["votes"], record["votes"])


def test_unknown_records_are_refused() -> None:
    with pytest.raises(IntegrityError):
        from_flower(RecordDict({"weights": ConfigRecord({"a": 1})}))
    two = to_flower({"kind": "x"})
    two["fields"] = ConfigRecord({"kind": [1, 2]})
    with pytest.raises(IntegrityError):
        from_flower(two)


def _npy(array: np.ndarray, **changes: object) -> Array:
    good = Array(array)
    return Array(
        **{"dtype": good.dtype, "shape": good.shape, "stype": good.stype, "data": good.data, **changes}
    )


def _with(array: Array) -> RecordDict:
    content = to_flower({"kind": "votes", "votes": np.zeros((2, 3), dtype=np.int64)})
    content["arrays"] = ArrayRecord({"votes": array})
    return content


VOTES = np.arange(6, dtype=np.int64).reshape(2, 3)
HUGE = (
    np.lib.format.magic(1, 0)
    + b"v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000, 14), }"
)


@pytest.mark.parametrize(
    "array",
    [
        _npy(VOTES, data=b"garbage"),
        _npy(VOTES, data=b""),
        _npy(VOTES, stype="pickle"),
        _npy(VOTES, data=HUGE.ljust(128) + b"\n"),
        _npy(VOTES, data=Array(VOTES).data[:-1]),
        _npy(VOTES, data=Array(VOTES).data + b"\0"),
        _npy(VOTES.astype(np.float64)),
        _npy(VOTES.astype(">i8")),
        _npy(np.asfortranarray(VOTES)),
        _npy(VOTES.reshape(1, 2, 3)),
        _npy(np.array(["a"])),
    ],
    ids=[
        "garbage",
        "empty",
        "stype",
        "huge",
        "short",
        "long",
        "float",
        "big-endian",
        "fortran",
        "axes",
        "text",
    ],
)
def test_an_array_is_held_to_its_own_bytes_before_it_is_loaded(array: Array) -> None:
    with pytest.raises(IntegrityError, match="not readable"):
        from_flower(_with(array))


def test_an_array_of_objects_is_never_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return open, (str(tmp_path / "run"), "w")

    file = io.BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(IntegrityError):
        from_flower(_with(_npy(VOTES, data=file.getvalue())))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutations_of_a_good_array_are_read_or_refused(count: int) -> None:
    good, rng = Array(VOTES).data, np.random.default_rng(0)
    read = 0
    for _ in range(count):
        data = bytearray(good)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            data[place] = rng.integers(0, 256)
        try:
            record = from_flower(_with(_npy(VOTES, data=bytes(data[: rng.integers(1, len(data) + 1)]))))
        except IntegrityError:
            continue
        read += 1
        votes = record["votes"]
        assert isinstance(votes, np.ndarray) and votes.dtype in NUMBERS and votes.nbytes <= len(good)
    assert 0 < read < count / 2


SOME_VOTES = np.zeros((60_000, 2), dtype=np.int64)  # 960,000 bytes, of which many chunks are the same
MOST = 2**20


def _message(record: dict[str, Any]) -> Message:
    set_identity(run_id=7, node_id=1)
    message = Message(to_flower(record), 2, "query.answer", ttl=100)
    stamp(message)
    return message


def _parts(message: Message) -> dict[str, bytes]:
    return {name: part.deflate() for name, part in get_all_nested_objects(message).items()}


def _bomb(times: int) -> tuple[str, dict[str, bytes]]:
    """A message whose array names its one chunk so many times, with every id and length right."""
    message = _message({"kind": "votes", "votes": SOME_VOTES})
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
    message = _message({"kind": "votes", "votes": SOME_VOTES})
    found = inflate_message(message.object_id, _parts(message), most_bytes=MOST)
    np.testing.assert_array_equal(from_flower(found.content)["votes"], SOME_VOTES)


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
    content["arrays"] = ArrayRecord(dict.fromkeys(map(str, range(9)), Array(SOME_VOTES)))
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
    message = _message({"kind": "votes", "votes": SOME_VOTES})
    client: Any = _Client(message.object_id, get_object_tree(message), _parts(message))
    found, context, bundle = pull_task(client, most_bytes=MOST)
    np.testing.assert_array_equal(from_flower(found.content)["votes"], SOME_VOTES)
    assert (found.metadata.message_id, context.node_id, bundle) == (message.object_id, 2, b"bundle")
    assert client.confirmed == [message.object_id]
    name, parts = _bomb(100_000)
    tree = ObjectTree(object_id=name, children=[ObjectTree(object_id=part) for part in parts if part != name])
    with pytest.raises(ValueError, match="grow beyond"):
        pull_task(_Client(name, tree, parts), most_bytes=MOST)  # type: ignore[arg-type]


SHIM = "efdd7765e560efe26a834b90b6f72a72b083717424842149a4f0fea5a13514c0"


def _archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _files(bundle: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_shim_is_the_same_on_every_machine_and_holds_no_code() -> None:
    assert is_the_shim(build_bundle())
    assert set(_files(build_bundle())) == {"pyproject.toml", ".info/CONTENT"}
    assert hashlib.sha256(build_bundle()).hexdigest() == SHIM


@pytest.mark.parametrize(
    "change",
    [
        lambda files: {**files, "clients/app.py": b"app = None\n"},
        lambda files: {**files, "sitecustomize.py": b""},
        lambda files: {name: content for name, content in files.items() if name != ".info/CONTENT"},
        lambda files: {
            **files,
            "pyproject.toml": files["pyproject.toml"].replace(b"clients.app", b"clients.spy"),
        },
        lambda files: {**files, "zeros": bytes(10_000_000)},
        lambda files: {},
    ],
)
def test_anything_else_is_not(change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> None:
    assert not is_the_shim(_archive(change(_files(build_bundle()))))


def test_damaged_bundles_are_not_the_shim() -> None:
    good = build_bundle()
    assert not any(is_the_shim(bad) for bad in (b"", b"PK", good[:-1], good + b"\0", bytes(1_000_000)))

"""What Flower's processes do otherwise under our hand: readmission, heartbeats, connections that died."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

import grpc
from flwr.app import Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.client.grpc_rere_client import connection
from flwr.common import constant
from flwr.common.constant import NOOP_FLWR_AID, ErrorCode
from flwr.server.superlink.linkstate import LinkStateFactory, linkstate_factory
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore import heartbeat
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.date import now
from flwr.supercore.grpc import create_channel
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink import main
from flwr.superlink.federation import NoOpFederationManager
from flwr.supernode import start_client_internal

from pate_fed.flower import line_1_39, processes
from pate_fed.flower.line_1_39 import patch_superlink, patch_supernode


@pytest.fixture(autouse=True)
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flower as it was, before and after."""
    with monkeypatch.context() as patch:
        patch.setattr(linkstate_factory, "InMemoryLinkState", InMemoryLinkState)
        patch.setattr(main, "_get_middleware", main._get_middleware)
        for module in (connection, heartbeat):
            patch.setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", constant.HEARTBEAT_DEFAULT_INTERVAL)
        for name in ("secure_channel", "insecure_channel"):
            patch.setattr(grpc, name, getattr(grpc, name))
        pull = start_client_internal._pull_and_store_message
        patch.setattr(start_client_internal, "_pull_and_store_message", pull)
        yield


def _state() -> Any:
    return LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()).state()


def _register(state: Any, key: bytes, name: str) -> int:
    return int(state.create_node(NOOP_FLWR_AID, "nobody", key, 30.0, name=name))


def test_a_key_that_was_unregistered_is_registered_again_as_the_node_that_it_was() -> None:
    patch_superlink()
    state = _state()
    north, south = (_register(state, name.encode(), name) for name in ("north", "south"))
    assert state.activate_node(north, 10.0)
    state.delete_node(NOOP_FLWR_AID, north)
    # Cut off: every call with its key is refused, and it takes no seat.
    assert state.get_node_id_by_public_key(b"north") is None
    assert not state.activate_node(north, 10.0)
    assert not state.acknowledge_node_heartbeat(north, 10.0)
    assert _register(state, b"north", "north") == north
    assert state.get_node_id_by_public_key(b"north") == north
    assert state.activate_node(north, 10.0)
    assert state.get_node_info(node_ids=[south])[0].status == "registered"
    with pytest.raises(ValueError, match="already in use"):  # a key that is in use stays one node's
        _register(state, b"north", "another")
    with pytest.raises(ValueError, match="unregistered"):
        state.delete_node(NOOP_FLWR_AID, 7)


def test_flower_alone_still_refuses_it() -> None:
    """Where this fails Flower does it itself, and `ReadmittingState` can go."""
    state = _state()
    state.delete_node(NOOP_FLWR_AID, _register(state, b"north", "north"))
    with pytest.raises(ValueError, match="already in use"):
        _register(state, b"north", "north")


class _Message:
    def __init__(self, node: int, key: str) -> None:
        self.metadata = type("", (), {"dst_node_id": node, "message_id": key})()


def test_what_was_under_way_to_an_unregistered_node_is_gone_and_nothing_else() -> None:
    patch_superlink()
    state = _state()
    north, south = (_register(state, name.encode(), name) for name in ("north", "south"))
    for key, node in (("to north", north), ("to south", south), ("answered", north)):
        state.message_ins_store[key] = _Message(node, key)
    state.message_ins_id_to_message_res_id["answered"] = "answer"
    state.message_res_store["answer"] = _Message(0, "answer")
    state.delete_node(NOOP_FLWR_AID, north)
    assert list(state.message_ins_store) == ["to south"]
    assert state.message_res_store == {}


def _asked(node: int, *, delivered: bool) -> Any:
    """A message to a node, and its id."""
    asked = Metadata(
        run_id=1,
        message_id="",
        src_node_id=1,
        dst_node_id=node,
        reply_to_message_id="",
        group_id="",
        created_at=now().timestamp(),
        ttl=60.0,
        message_type="query.answer",
    )
    message = make_message(metadata=asked, content=RecordDict())
    message.metadata.__dict__["_message_id"] = f"{node} {delivered}"
    message.metadata.delivered_at = now().isoformat() if delivered else ""
    return message


def test_what_a_node_received_before_it_was_started_again_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patch_superlink()
    state = _state()
    north, south = (_register(state, name.encode(), name) for name in ("north", "south"))
    assert state.activate_node(north, 10.0)
    asked = [_asked(node, delivered=got) for node in (north, south) for got in (True, False)]
    state.message_ins_store.update({each.metadata.message_id: each for each in asked})
    lost = asked[0].metadata.message_id
    assert not state.activate_node(north, 10.0)  # its seat is taken, so it has what it received
    assert state.message_res_store == {}
    state.nodes[north].online_until = now().timestamp() - 1
    assert state.activate_node(north, 10.0)
    [reply] = state.message_res_store.values()
    assert reply.error.code == ErrorCode.NODE_UNAVAILABLE
    assert reply.metadata.reply_to_message_id == lost
    assert state.message_ins_id_to_message_res_id == {lost: reply.metadata.message_id}
    assert state.object_store.get_object_tree(reply.metadata.message_id)  # so that it can be fetched
    assert state.deactivate_node(north)
    assert state.activate_node(north, 10.0)  # answered once
    assert list(state.message_res_store.values()) == [reply]


@pytest.mark.parametrize("patched", [True, False])
def test_who_replied_and_went_is_heard(patched: bool) -> None:
    """Flower alone says of such a node that it is not available, and its reply is lost."""
    if patched:
        patch_superlink()
    state = _state()
    north, south = (_register(state, name.encode(), name) for name in ("north", "south"))
    state.federation_manager.filter_nodes = lambda nodes, federation: nodes
    state.run_ids[1] = SimpleNamespace(run=SimpleNamespace(federation_id=""))
    asked = [_asked(node, delivered=True) for node in (north, south)]
    for node, message in zip((north, south), asked, strict=True):
        assert state.activate_node(node, 10.0)
        state.message_ins_store[message.metadata.message_id] = message
    [replied, silent] = [message.metadata.message_id for message in asked]
    reply = Message(RecordDict(), reply_to=asked[0])
    reply.metadata.__dict__["_message_id"] = "reply"
    state.message_res_store["reply"] = reply
    state.message_ins_id_to_message_res_id[replied] = "reply"
    gone = [state.deactivate_node(node) for node in (north, south)]
    until = {node: state.nodes[node].online_until for node in (north, south)}
    found = {each.metadata.reply_to_message_id: each for each in state.get_message_res({replied, silent}, 1)}
    assert gone == [True, True] and found[silent].error.code == ErrorCode.NODE_UNAVAILABLE
    assert (found[replied] is reply) == patched
    assert {node: state.nodes[node].online_until for node in (north, south)} == until


def test_a_supernode_is_heard_of_often_and_hears_of_a_dead_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}

    class Channel:
        def subscribe(self, callback: object, try_to_connect: bool = False) -> None:
            pytest.fail("a thread would ask for the connection's state five times a second")

    def open_channel(target: str, options: Any = None, compression: Any = None) -> Channel:
        given.update(options)
        return Channel()

    monkeypatch.setattr(grpc, "insecure_channel", open_channel)
    patch_supernode()
    create_channel("127.0.0.1:1", insecure=True).subscribe(print)
    assert "grpc.max_send_message_length" in given  # Flower's own options stay
    assert (given["grpc.keepalive_time_ms"], given["grpc.max_reconnect_backoff_ms"]) == (20_000, 10_000)
    assert connection.HEARTBEAT_DEFAULT_INTERVAL == heartbeat.HEARTBEAT_DEFAULT_INTERVAL == 10
    # A lost node's seat is free after two intervals; no shorter one is let in.
    assert constant.HEARTBEAT_PATIENCE * line_1_39.HEARTBEAT_S == 20
    assert constant.HEARTBEAT_MIN_INTERVAL <= line_1_39.HEARTBEAT_S


def test_the_next_message_is_looked_for_soon_and_then_as_rarely_as_flower_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(line_1_39.time, "sleep", waits.append)
    found = iter([None, 7, 8, None, None, None, None, None, None, None, 9, None, 10])
    monkeypatch.setattr(start_client_internal, "_pull_and_store_message", lambda *, state: next(found))
    patch_supernode()
    pull = start_client_internal._pull_and_store_message
    taken = []
    for _ in range(7):
        taken.append((pull(state=None), list(waits)))
        waits.clear()
    rest = [0.25, 0.5, 1.0, 2.0]
    # Where it is None Flower's loop waits its three seconds.
    assert taken == [(7, [0.25]), (8, []), (None, rest), (None, []), (None, []), (9, []), (10, [0.25])]


def test_what_the_environment_holds_is_put_around_the_command_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, str]] = []
    monkeypatch.setattr(line_1_39, "install", lambda *given: done.append(given))
    monkeypatch.setenv(processes.GUARD, "{}")
    for _ in range(2):
        with pytest.raises(ValueError, match="unknown command"):
            processes._run("flower-superexec")
    assert done == [("flower-superexec", "{}")]

"""The guard around Flower's own Fleet API, in one process: who gets in, whose seat is whose, and how much."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from builders import make_terms

from pate_fed.flower import prepare_environment

prepare_environment()

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.client.grpc_rere_client import connection
from flwr.client.grpc_rere_client.node_auth_client_interceptor import NodeAuthClientInterceptor
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2, fleet_pb2_grpc, heartbeat_pb2, message_pb2
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.grpc import create_channel
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.interceptors import RpcErrorTranslationServerInterceptor
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.federation import NoOpFederationManager
from flwr.supernode import start_client_internal

from pate_fed.errors import PateFedError
from pate_fed.flower import guard, line_1_39
from pate_fed.flower.compat import set_identity
from pate_fed.flower.guard import Deliveries, PullGuard, Refused, fleet_channel, fleet_server, most_objects
from pate_fed.flower.line_1_39 import HEARTBEAT_S
from pate_fed.flower.records import to_flower
from pate_fed.flower.transport import LinkGuard, NodeGuard
from pate_fed.identity import Authority, make_request
from pate_fed.identity.keys import KEY_FILE, load_key
from pate_fed.runtime.addresses import channel_credentials, free_port

MOST = 200_000
CODE = grpc.StatusCode


@dataclass
class Hospital:
    """One hospital's node: its key, its certificate, and channels that it or a thief opens with them."""

    key: ec.EllipticCurvePrivateKey
    path: Path
    certificate: str
    address: str = ""
    authority: bytes = b""
    channels: list[grpc.Channel] = field(default_factory=list)

    @property
    def public(self) -> bytes:
        return public_key_to_bytes(self.key.public_key())

    def stub(
        self, *, signs: ec.EllipticCurvePrivateKey | None = None, most: int = MOST
    ) -> fleet_pb2_grpc.FleetStub:
        """The Fleet API over this hospital's certificate; calls are signed by its key, or by another's."""
        key = signs or self.key
        settings = NodeGuard(most_bytes=most, certificate=self.certificate, key=str(self.path))
        signer = NodeAuthClientInterceptor(key, key.public_key())
        channel = fleet_channel(self.address, self.authority, interceptors=[signer], guard=settings)
        self.channels.append(channel)
        return fleet_pb2_grpc.FleetStub(channel)


@dataclass
class Fleet:
    """Flower's Fleet API behind the guard, with a run and two admitted hospitals."""

    state: Any
    run: int
    address: str
    authority: bytes
    north: Hospital
    east: Hospital

    def activate(self, hospital: Hospital) -> int:
        asked = fleet_pb2.ActivateNodeRequest(public_key=hospital.public, heartbeat_interval=30)
        return int(hospital.stub().ActivateNode(asked).node_id)

    def send(self, node: int, pool: bytes = b"") -> str:
        """Queue a request of the coordinator's for a node."""
        set_identity(run_id=self.run, node_id=SUPERLINK_NODE_ID)
        return self._store(Message(to_flower({"kind": "query", "pool": pool}), node, "query.answer"))

    def _store(self, message: Message) -> str:
        message.metadata.__dict__["_message_id"] = message.object_id
        session = self.state.start_session(self.run)
        parts = get_all_nested_objects(message)
        stored, wanted = self.state.store_message_and_object_tree(
            remove_content_from_message(message), get_object_tree(message), session
        )
        assert stored
        for name in wanted:
            assert self.state.store_object(self.run, session, name, parts[name].deflate())
        return str(message.object_id)


def part_of(
    answer: fleet_pb2.PushMessagesResponse, node: int, name: str, content: bytes, *, run: int
) -> message_pb2.PushObjectRequest:
    """One part of a reply whose announcement got this answer."""
    return message_pb2.PushObjectRequest(
        node=Node(node_id=node),
        run_id=run,
        object_id=name,
        object_content=content,
        session_id=answer.session_id,
    )


def reply_of(
    node: int, message: str, votes: bytes, *, run: int
) -> tuple[fleet_pb2.PushMessagesRequest, dict[str, bytes]]:
    """A node's reply as its SuperNode pushes it, and the objects that it is made of."""
    set_identity(run_id=run, node_id=node)
    made = Message(to_flower({"kind": "votes", "votes": votes}), SUPERLINK_NODE_ID, "query.answer", ttl=3600)
    made.metadata.__dict__["_reply_to_message_id"] = message
    made.metadata.__dict__["_message_id"] = made.object_id
    parts = {name: part.deflate() for name, part in get_all_nested_objects(made).items()}
    said = message_to_proto(remove_content_from_message(made))
    request = fleet_pb2.PushMessagesRequest(
        node=Node(node_id=node), messages_list=[said], message_object_trees=[get_object_tree(made)]
    )
    return request, parts


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Hospital, Hospital]:
    """A study's authority and two hospitals that it has admitted."""
    folder = tmp_path_factory.mktemp("identities")
    authority = Authority.init(folder / "ca", address="127.0.0.1:9092", terms=make_terms().to_json(), days=9)
    made = []
    for name in ("north", "east"):
        admission = authority.admit(make_request(folder / name, name), days=9)
        path = folder / name / KEY_FILE
        made.append(Hospital(load_key(path), path, admission.certificate))
    return authority, made[0], made[1]


@pytest.fixture
def fleet(identities: tuple[Authority, Hospital, Hospital]) -> Iterator[Fleet]:
    authority, *hospitals = identities
    store = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
    factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), store)
    state = factory.state()
    run = state.create_run(None, None, "x", {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
    [task] = state.get_tasks(run_ids=[run])
    state.claim_task(task.task_id)
    assert state.activate_task(task.task_id)
    for number, hospital in enumerate(hospitals):
        state.create_node("", f"h{number}", hospital.public, 0)
    server = fleet_server(
        (FleetServicer(factory, store, True), fleet_pb2_grpc.add_FleetServicer_to_server),
        "127.0.0.1:0",
        tuple((authority.folder / name).read_bytes() for name in ("ca.crt", "server.crt", "server.key")),  # type: ignore[arg-type]
        interceptors=[RpcErrorTranslationServerInterceptor(), NodeAuthServerInterceptor(factory)],
        guard=LinkGuard(most_bytes=MOST, hospitals=2),
    )
    server.start()
    root = (authority.folder / "ca.crt").read_bytes()
    for hospital in hospitals:
        hospital.address, hospital.authority = server.bound_address, root
    yield Fleet(state, run, server.bound_address, root, *hospitals)
    for hospital in hospitals:
        while hospital.channels:
            hospital.channels.pop().close()
    server.stop(None).wait()


def refused(call: Callable[[], Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code()


def test_a_hospitals_seat_is_free_20_s_after_its_last_heartbeat_whatever_it_asks_for(fleet: Fleet) -> None:
    stub = fleet.north.stub()
    greedy = fleet_pb2.ActivateNodeRequest(public_key=fleet.north.public, heartbeat_interval=1800)
    node = stub.ActivateNode(greedy).node_id
    [held] = fleet.state.get_node_info(node_ids=[node])
    assert held.heartbeat_interval == HEARTBEAT_S == 10
    beat = heartbeat_pb2.SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=1800)
    assert stub.SendNodeHeartbeat(beat).success
    [held] = fleet.state.get_node_info(node_ids=[node])
    assert held.heartbeat_interval == 10


def test_nobody_takes_another_hospitals_seat(fleet: Fleet) -> None:
    seat = fleet_pb2.ActivateNodeRequest(public_key=fleet.north.public, heartbeat_interval=30)
    stranger = ec.generate_private_key(ec.SECP384R1())
    # East knows north's public key; a stranger's key in east's hands is not its certificate's either.
    assert refused(lambda: fleet.east.stub().ActivateNode(seat)) is CODE.UNAUTHENTICATED
    assert refused(lambda: fleet.east.stub(signs=stranger).ActivateNode(seat)) is CODE.UNAUTHENTICATED
    # Even north's own private key is of no use on another certificate.
    stolen = fleet.east.stub(signs=fleet.north.key)
    assert refused(lambda: stolen.ActivateNode(seat)) is CODE.UNAUTHENTICATED
    assert fleet.activate(fleet.north)


def test_flower_without_the_guard_gives_the_seat_away(fleet: Fleet) -> None:
    """What the guard is for: where this fails, flwr compares the keys itself, and part of it can go."""
    from flwr.server.superlink.fleet.message_handler.message_handler import activate_node

    seat = fleet_pb2.ActivateNodeRequest(public_key=fleet.north.public, heartbeat_interval=1800)
    handler = SimpleNamespace(
        unary_unary=lambda request, context: activate_node(request, fleet.state),
        request_deserializer=None,
        response_serializer=None,
    )
    signer = NodeAuthClientInterceptor(fleet.east.key, fleet.east.key.public_key())
    metadata: list[Any] = []
    signer.intercept_unary_unary(
        lambda details, _: metadata.extend(details.metadata),
        SimpleNamespace(metadata=None, _replace=lambda metadata: SimpleNamespace(metadata=metadata)),
        seat,
    )
    call = SimpleNamespace(method="/flwr.proto.Fleet/ActivateNode", invocation_metadata=metadata)
    flowers_own = NodeAuthServerInterceptor(SimpleNamespace(state=lambda: fleet.state))
    answer = flowers_own.intercept_service(lambda _: handler, call).unary_unary
    assert answer(seat, None).node_id == fleet.state.get_node_id_by_public_key(fleet.north.public)


def test_without_a_certificate_of_the_study_nobody_is_heard(fleet: Fleet, tmp_path: Path) -> None:
    seat = fleet_pb2.ActivateNodeRequest(public_key=fleet.north.public, heartbeat_interval=30)
    with create_channel(fleet.address, insecure=False, root_certificates=fleet.authority) as bare:
        assert refused(lambda: fleet_pb2_grpc.FleetStub(bare).ActivateNode(seat)) is CODE.UNAVAILABLE
    other = Authority.init(tmp_path / "ca", address="127.0.0.1:1", terms=make_terms().to_json(), days=9)
    admission = other.admit(make_request(tmp_path / "own", "north"), days=9)
    path = tmp_path / "own" / KEY_FILE
    foreign = Hospital(load_key(path), path, admission.certificate, fleet.address, fleet.authority)
    assert refused(lambda: foreign.stub().ActivateNode(seat)) is CODE.UNAVAILABLE
    foreign.channels.pop().close()


def test_a_request_and_its_reply_pass_and_nobody_else_touches_them(fleet: Fleet) -> None:
    north, east = fleet.activate(fleet.north), fleet.activate(fleet.east)
    stub, thief = fleet.north.stub(), fleet.east.stub()
    message = fleet.send(north, b"pool")
    pulled = stub.PullMessages(fleet_pb2.PullMessagesRequest(node=Node(node_id=north)))
    assert pulled.messages_list[0].metadata.message_id == message

    def pull(node: int) -> message_pb2.PullObjectRequest:
        return message_pb2.PullObjectRequest(node=Node(node_id=node), run_id=fleet.run, object_id=message)

    def confirm(node: int) -> message_pb2.ConfirmMessageReceivedRequest:
        return message_pb2.ConfirmMessageReceivedRequest(
            node=Node(node_id=node), run_id=fleet.run, message_object_id=message
        )

    assert refused(lambda: thief.PullObject(pull(east))) is CODE.NOT_FOUND
    assert refused(lambda: thief.ConfirmMessageReceived(confirm(east))) is CODE.NOT_FOUND
    assert stub.PullObject(pull(north)).object_available
    stub.ConfirmMessageReceived(confirm(north))
    forged, _ = reply_of(north, message, b"votes", run=fleet.run)
    forged.node.node_id = east
    assert refused(lambda: thief.PushMessages(forged)) is CODE.UNAUTHENTICATED
    request, parts = reply_of(north, message, b"votes", run=fleet.run)
    answer = stub.PushMessages(request)
    assert set(answer.objects_to_push) == set(parts)
    for name, content in parts.items():
        push = part_of(answer, north, name, content, run=fleet.run)
        assert stub.PushObject(push).stored
    [reply] = fleet.state.get_message_res({message}, fleet.run)
    assert reply.metadata.src_node_id == north and not reply.has_error()


def test_a_hospital_cannot_speak_as_the_coordinator_to_another(fleet: Fleet) -> None:
    north, east = fleet.activate(fleet.north), fleet.activate(fleet.east)
    request, _ = reply_of(SUPERLINK_NODE_ID, "", b"do this", run=fleet.run)
    request.messages_list[0].metadata.dst_node_id = north
    request.node.node_id = east
    assert refused(lambda: fleet.east.stub().PushMessages(request)) is CODE.UNAUTHENTICATED
    assert not fleet.state.get_message_ins(north, None)


def test_a_hospitals_bytes_are_bounded_in_one_message_in_all_and_when_compressed(fleet: Fleet) -> None:
    north = fleet.activate(fleet.north)
    stub = fleet.north.stub()
    huge = fleet_pb2.RegisterNodeFleetRequest(public_key=bytes(10 * 2**20))
    assert refused(lambda: stub.RegisterNode(huge)) is CODE.RESOURCE_EXHAUSTED
    assert refused(lambda: stub.RegisterNode(huge, compression=grpc.Compression.Gzip)) in (
        CODE.UNIMPLEMENTED,
        CODE.INTERNAL,
    )
    message = fleet.send(north)
    stub.PullMessages(fleet_pb2.PullMessagesRequest(node=Node(node_id=north)))
    request, parts = reply_of(north, message, bytes(MOST), run=fleet.run)
    answer = stub.PushMessages(request)
    for name in answer.objects_to_push:
        content = parts[name]
        push = part_of(answer, north, name, content, run=fleet.run)
        if len(content) > MOST:
            assert refused(lambda push=push: stub.PushObject(push)) is CODE.RESOURCE_EXHAUSTED  # type: ignore[misc]
        else:
            assert stub.PushObject(push).stored
    assert max(map(len, parts.values())) > MOST


def _stalled(hospital: Hospital, connections: int, method: str = "PushObject") -> list[Any]:
    """As many calls as a hospital's certificate can begin over so many connections, none of which goes on."""
    signer, calls = NodeAuthClientInterceptor(hospital.key, hospital.key.public_key()), list[Any]()
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait(30)
        yield b""

    for number in range(connections):
        metadata: list[Any] = []
        signer.intercept_unary_unary(
            lambda details, _, to=metadata: to.extend(details.metadata),  # type: ignore[misc]
            SimpleNamespace(metadata=None, _replace=lambda metadata: SimpleNamespace(metadata=metadata)),
            None,
        )
        credentials = channel_credentials(
            hospital.authority, certificate=hospital.certificate, key=hospital.key
        )
        options = [("grpc.use_local_subchannel_pool", 1), ("number", number)]
        channel = grpc.secure_channel(hospital.address, credentials, options=options)
        hospital.channels.append(channel)
        begin = channel.stream_unary(f"/flwr.proto.Fleet/{method}")
        calls += [begin.future(nothing(), metadata=metadata) for _ in range(16)]
    return calls


def _beats(
    hospital: Hospital, node: int, times: int = 20, *, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds that so many heartbeats take, one after the other."""
    stub, begun = hospital.stub(), clock()
    beat = heartbeat_pb2.SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=10)
    for _ in range(times):
        assert stub.SendNodeHeartbeat(beat, timeout=5).success
    return clock() - begun


@pytest.mark.parametrize("method", ["PushObject", "PullMessages"])
def test_one_that_stalls_costs_the_others_nothing_and_itself_its_share(method: str, fleet: Fleet) -> None:
    north, east = fleet.activate(fleet.north), fleet.activate(fleet.east)
    quiet = min(_beats(fleet.north, north) for _ in range(3))
    calls = _stalled(fleet.east, connections=6, method=method)  # 96, and the server has 32 threads
    time.sleep(1)
    assert min(_beats(fleet.north, north) for _ in range(3)) < 2 * quiet + 0.05
    open_ones = [call for call in calls if not call.done()]
    assert len(open_ones) == guard.CALLS
    assert {call.code() for call in calls if call.done()} == {CODE.RESOURCE_EXHAUSTED}
    assert refused(lambda: _beats(fleet.east, east, 1)) is CODE.RESOURCE_EXHAUSTED
    for call in calls:
        call.cancel()
    time.sleep(0.5)
    assert _beats(fleet.east, east, 1)


@pytest.mark.benchmark
@pytest.mark.parametrize("clock", [time.perf_counter, time.process_time], ids=["wall", "cpu"])
def test_one_that_stalls_costs_the_others_less_than_a_twentieth(
    clock: Callable[[], float], fleet: Fleet
) -> None:
    """By turns, and printed: `pytest -m benchmark -s tests/flower/test_guard.py`.

    The CPU is that of the server and the hospital, which are in this process: other work does not change it.
    """
    north, ratios = fleet.activate(fleet.north), list[float]()
    fleet.activate(fleet.east)

    def least() -> float:
        return min(_beats(fleet.north, north, 50, clock=clock) for _ in range(3))

    for _ in range(20):
        quiet = least()
        calls = _stalled(fleet.east, connections=6)
        time.sleep(0.5)
        ratios.append(least() / quiet - 1)
        for call in calls:
            call.cancel()
        time.sleep(0.5)
    print(f"\n{clock.__name__}: a stalled hospital costs the others {median(ratios):+.1%}, ", end="")
    print(f"turns {min(ratios):+.1%} to {max(ratios):+.1%}; mark +5 %")


def test_a_call_that_does_not_go_on_is_broken_off(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    east = fleet.activate(fleet.east)
    monkeypatch.setattr(guard, "_CALL_S", 0.5)
    calls = _stalled(fleet.east, connections=1)
    time.sleep(guard._LOOK_S + 1.5)
    assert all(call.done() for call in calls)
    assert _beats(fleet.east, east, 1)


def test_a_coordinators_message_is_broken_off_where_it_is_larger_than_the_studys(fleet: Fleet) -> None:
    north = fleet.activate(fleet.north)
    message = fleet.send(north, bytes(50_000))
    honest, wary = fleet.north.stub(), fleet.north.stub(most=10_000)
    pull = fleet_pb2.PullMessagesRequest(node=Node(node_id=north))
    [tree] = honest.PullMessages(pull).message_object_trees
    large = max(guard._names(tree), key=lambda name: len(fleet.state.get_object(fleet.run, name)))
    part = message_pb2.PullObjectRequest(node=Node(node_id=north), run_id=fleet.run, object_id=large)
    assert len(honest.PullObject(part).object_content) > 50_000
    with pytest.raises(PateFedError, match="more than a message"):
        wary.PullObject(part)
    assert message in guard._names(tree)


def test_a_message_of_a_thousand_parts_is_dropped_unread() -> None:
    parts = [message_pb2.ObjectTree(object_id=str(number)) for number in range(1000)]
    response = fleet_pb2.PullMessagesResponse(
        messages_list=[fleet_pb2.PullMessagesResponse().messages_list.add()],
        message_object_trees=[message_pb2.ObjectTree(object_id="x", children=parts)],
    )
    call = SimpleNamespace(code=lambda: CODE.OK, result=lambda: response)
    made = PullGuard(MOST).intercept_unary_unary(lambda *_: call, None, fleet_pb2.PullMessagesRequest())
    assert not made.result().messages_list and not made.result().message_object_trees


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Flower's modules whose functions the guard replaces; they are themselves again after the test."""
    superlink = import_module(
        "flwr.superlink.cli.flower_superlink"
    )  # the package has a function of that name
    replaced = (
        (superlink, "generic_create_grpc_server"),
        (superlink.SuperLinkLifespan, "startup"),
        (connection, "create_channel"),
        (start_client_internal, "get_fused_config_from_fab"),
    )
    for module, name in replaced:
        monkeypatch.setattr(module, name, getattr(module, name))
    return SimpleNamespace(superlink=superlink, supernode=start_client_internal)


def test_flowers_own_programs_meet_behind_the_guard(
    programs: SimpleNamespace, identities: tuple[Authority, Hospital, Hospital]
) -> None:
    authority, north, _ = identities
    ca, certificate, key = (authority.folder / name for name in ("ca.crt", "server.crt", "server.key"))
    port = free_port()
    store = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
    factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), store)
    known = factory.state().create_node("", "north", north.public, 0)
    config = SimpleNamespace(
        certificates=(ca.read_bytes(), certificate.read_bytes(), key.read_bytes()),
        enable_event_log=False,
        enable_supernode_auth=True,
        fleet_api_type="grpc-rere",
        fleet_api_address=f"127.0.0.1:{port}",
        simulation=False,
        isolation="process",
        health_server_address=None,
    )
    line_1_39.install("flower-superlink", json.dumps(asdict(LinkGuard(most_bytes=MOST, hospitals=2))))
    lifespan = programs.superlink.SuperLinkLifespan(config, factory)
    lifespan.startup()
    settings = NodeGuard(most_bytes=MOST, certificate=north.certificate, key=str(north.path))
    line_1_39.install("flower-supernode", json.dumps(asdict(settings)))
    keys = (north.key, north.key.public_key())
    with programs.supernode._init_connection(
        "grpc-rere", f"127.0.0.1:{port}", False, ca.read_bytes(), keys, 0, 5.0
    ) as made:
        assert made[0] == known
        assert made[1]() is None  # it asks for messages, and there is none
    shown = ssl.create_default_context(cafile=str(ca))
    shown.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as raw,
        shown.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
    ):
        assert tls.version() == "TLSv1.3"
        with suppress(ConnectionError):
            assert tls.recv(1) == b""  # closed, without a byte of HTTP/2
    lifespan.shutdown()


@pytest.mark.parametrize("command", ["flower-superlink", "flower-supernode"])
def test_another_flwr_is_refused_before_it_serves(
    command: str, programs: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "flower-superlink": json.dumps(asdict(LinkGuard(most_bytes=MOST, hospitals=2))),
        "flower-supernode": json.dumps(asdict(NodeGuard(most_bytes=MOST, certificate="", key=""))),
    }[command]
    line_1_39.install(command, settings)  # the installed one will do
    module, name = {
        "flower-superlink": (programs.superlink, "generic_create_grpc_server"),
        "flower-supernode": (connection, "create_channel"),
    }[command]
    monkeypatch.setattr(module, name, lambda address: None)
    with pytest.raises(PateFedError, match=r"install flwr 1\.39"):
        line_1_39.install(command, settings)


def test_a_superlink_that_never_asks_for_the_guard_does_not_start(
    programs: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    superlink = programs.superlink
    monkeypatch.setattr(superlink.SuperLinkLifespan, "startup", lambda self: None)
    line_1_39.install("flower-superlink", json.dumps(asdict(LinkGuard(most_bytes=MOST, hospitals=2))))
    with pytest.raises(PateFedError, match="without its guard"):
        superlink.SuperLinkLifespan.startup(None)
    with pytest.raises(PateFedError, match="without keys"):
        superlink.generic_create_grpc_server((None, None), "127.0.0.1:0", certificates=None, interceptors=[])


NORTH, EAST, ROOM = 1, 2, 1000


@pytest.fixture
def deliveries() -> Deliveries:
    """North was sent a message of two objects; a message of the study has 1,000 bytes at most."""
    made = Deliveries(ROOM)
    made.deliver(NORTH, "asked", frozenset({"asked", "pool"}))
    return made


def _push(deliveries: Deliveries, name: str, size: int, *, node: int = NORTH, stored: bool = True) -> None:
    with deliveries.pushing(node, name, size) as is_stored:
        if stored:
            is_stored()


def test_a_node_pulls_and_confirms_what_was_sent_to_it_and_nothing_else(deliveries: Deliveries) -> None:
    deliveries.check_pull(NORTH, "pool")
    for refused in (
        lambda: deliveries.check_pull(EAST, "pool"),
        lambda: deliveries.check_pull(NORTH, "votes"),
        lambda: deliveries.confirm(EAST, "asked"),
    ):
        with pytest.raises(Refused):
            refused()
    deliveries.confirm(NORTH, "asked")
    with pytest.raises(Refused):
        deliveries.check_pull(NORTH, "pool")  # it has it


def test_a_reply_comes_in_parts_and_may_be_sent_again_until_it_is_whole(deliveries: Deliveries) -> None:
    for _ in range(2):  # the answer to the first attempt was lost
        deliveries.announce(NORTH, "asked", ["votes", "reply"], 100)
        deliveries.expect(NORTH, "asked", ["votes", "reply"])
    _push(deliveries, "votes", 800, stored=False)
    _push(deliveries, "votes", 800)  # what was not stored has taken no room
    _push(deliveries, "reply", 100)
    with pytest.raises(Refused):
        deliveries.announce(NORTH, "asked", ["votes", "reply"], 100)  # one reply a message


@pytest.mark.parametrize("sizes", [(901,), (500, 401)])
def test_a_reply_has_the_bytes_of_the_largest_message_at_most(
    deliveries: Deliveries, sizes: tuple[int, ...]
) -> None:
    names = [f"part {number}" for number in range(len(sizes))]
    deliveries.announce(NORTH, "asked", names, 100)
    deliveries.expect(NORTH, "asked", names)
    for name, size in list(zip(names, sizes, strict=True))[:-1]:
        _push(deliveries, name, size)
    with pytest.raises(Refused) as caught:
        _push(deliveries, names[-1], sizes[-1])
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    _push(deliveries, names[-1], sizes[-1] - 1)


def test_nobody_pushes_what_it_was_not_asked_for(deliveries: Deliveries) -> None:
    with pytest.raises(Refused):
        deliveries.announce(NORTH, "another", ["votes"], 1)
    with pytest.raises(Refused):
        deliveries.announce(EAST, "asked", ["votes"], 1)
    with pytest.raises(Refused):
        _push(deliveries, "votes", 1)  # not announced
    deliveries.announce(NORTH, "asked", ["votes"], 1)
    deliveries.expect(NORTH, "asked", ["votes", "another's"])
    for node, name in ((EAST, "votes"), (NORTH, "another's")):
        with pytest.raises(Refused):
            _push(deliveries, name, 1, node=node)
    with pytest.raises(Refused):
        deliveries.announce(NORTH, "asked", ["other votes"], 1)


def test_neither_many_small_parts_nor_many_attempts_fill_the_store(deliveries: Deliveries) -> None:
    many = [str(number) for number in range(most_objects(ROOM) + 1)]
    with pytest.raises(Refused):
        deliveries.announce(NORTH, "asked", many, 1)
    with pytest.raises(Refused):
        deliveries.announce(NORTH, "asked", ["votes"], ROOM + 1)
    with pytest.raises(Refused):
        for _ in range(1000):
            deliveries.announce(NORTH, "asked", many[:-1], 1)

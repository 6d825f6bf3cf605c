"""Attacks on a running coordinator over the wire; then its hospitals connect and end the study."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.client.grpc_rere_client.node_auth_client_interceptor import NodeAuthClientInterceptor
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.node_pb2 import Node
from flwr.supercore.grpc import create_channel
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from vote_study import make_vote_study

from pate_fed.cli.demo import HOSPITALS
from pate_fed.flower.guard import fleet_channel
from pate_fed.flower.transport import NodeGuard
from pate_fed.identity import Authority, HospitalIdentity
from pate_fed.identity.keys import load_key
from pate_fed.kinds.guarantee import largest_messages
from pate_fed.kinds.terms import Terms

pytestmark = pytest.mark.slow
MEGABYTE = 2**20
CODE = grpc.StatusCode


class _Coordinator:
    """A coordinator that waits for its hospitals: its address, its SuperLink's process, and identities."""

    def __init__(self, rehearsal: Any) -> None:
        self.folder: Path = rehearsal.folder
        make_vote_study(self.folder)
        self.party = rehearsal.start(
            "server",
            *("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority"),
            *("--run-dir", "run", "--wait", "200"),
        )
        self.party.wait_for("listening on")
        self.party.wait_for("0 of 4 connected")
        self.authority = Authority(self.folder / "authority")
        self.address = str(self.authority.study.address)
        self.root = (self.folder / "authority" / "ca.crt").read_bytes()
        self.most = largest_messages(Terms.from_json(self.authority.study.terms)).to_coordinator
        self._link = next(
            child
            for child in psutil.Process(self.party.process.pid).children(recursive=True)
            if "flower-superlink" in child.cmdline()
        )

    def public_key(self, name: str) -> bytes:
        """What everyone may know of a hospital."""
        return public_key_to_bytes(load_key(self.folder / f"identity-{name}" / "hospital.key").public_key())

    def admitted(self, name: str) -> grpc.Channel:
        """A channel as that hospital's SuperNode opens it."""
        found = HospitalIdentity.open(self.folder / f"identity-{name}")
        key = load_key(found.key_path)
        settings = NodeGuard(
            most_bytes=self.most, certificate=found.admission.certificate, key=str(found.key_path)
        )
        signer = NodeAuthClientInterceptor(key, key.public_key())
        return fleet_channel(self.address, self.root, interceptors=[signer], guard=settings)

    def stranger(self) -> grpc.Channel:
        """A channel of someone who has a key of its own and no certificate."""
        signer = NodeAuthClientInterceptor(*generate_key_pairs())
        return create_channel(
            self.address, insecure=False, root_certificates=self.root, interceptors=[signer]
        )

    def grown_by(self, attack: Callable[[], None]) -> float:
        """MB of memory by which the SuperLink has grown at most, during an attack and a second after it."""
        before = most = self._link.memory_info().rss
        done = threading.Thread(target=attack)
        done.start()
        end = time.monotonic() + 1.0
        while done.is_alive() or time.monotonic() < end:
            most = max(most, self._link.memory_info().rss)
            end = time.monotonic() + 1.0 if done.is_alive() else end
            time.sleep(0.02)
        return (most - before) / MEGABYTE


def _refused(call: Callable[..., Any], *given: Any, **options: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call(*given, **options)
    return caught.value.code()


def _strangers_are_not_heard(coordinator: _Coordinator) -> None:
    seat = fleet_pb2.ActivateNodeRequest(public_key=coordinator.public_key("north"), heartbeat_interval=1800)
    codes = []

    def flood() -> None:
        huge = fleet_pb2.RegisterNodeFleetRequest(public_key=bytes(400 * MEGABYTE))
        with coordinator.stranger() as channel:
            codes.append(_refused(FleetStub(channel).RegisterNode, huge))

    with coordinator.stranger() as channel:
        codes.append(_refused(FleetStub(channel).ActivateNode, seat))
    grown = coordinator.grown_by(flood)
    print(f"a stranger's 400 MB: +{grown:.1f} MB")
    assert codes == [CODE.UNAVAILABLE, CODE.UNAVAILABLE]
    assert grown < 20


def _admitted_ones_keep_to_their_seat(coordinator: _Coordinator) -> None:
    with coordinator.admitted("east") as channel:
        east = FleetStub(channel)
        seat = fleet_pb2.ActivateNodeRequest(
            public_key=coordinator.public_key("north"), heartbeat_interval=1800
        )
        assert _refused(east.ActivateNode, seat) is CODE.UNAUTHENTICATED
        own = fleet_pb2.ActivateNodeRequest(
            public_key=coordinator.public_key("east"), heartbeat_interval=1800
        )
        node, codes = east.ActivateNode(own).node_id, list[grpc.StatusCode]()

        def flood() -> None:
            for compression in (None, grpc.Compression.Gzip):
                huge = message_pb2.PushObjectRequest(
                    node=Node(node_id=node),
                    run_id=1,
                    object_id="00" * 32,
                    object_content=bytes(400 * MEGABYTE),
                )
                codes.append(_refused(east.PushObject, huge, compression=compression))
            small = message_pb2.PushObjectRequest(
                node=Node(node_id=node), run_id=1, object_id="00" * 32, object_content=bytes(coordinator.most)
            )
            codes.extend(_refused(east.PushObject, small) for _ in range(200))

        grown = coordinator.grown_by(flood)
        print(f"a hospital's 400 MB, plain and compressed, and 200 objects unasked for: +{grown:.1f} MB")
        assert codes[0] is CODE.RESOURCE_EXHAUSTED
        assert codes[1] in (CODE.UNIMPLEMENTED, CODE.RESOURCE_EXHAUSTED)
        assert set(codes[2:]) == {CODE.INVALID_ARGUMENT}
        assert grown < 60
        # It goes without a word; by the interval that it gave, its seat would stay taken for an hour.


def test_nobody_takes_a_seat_or_the_memory_and_the_study_ends_well(rehearsal: Any) -> None:
    coordinator = _Coordinator(rehearsal)
    _strangers_are_not_heard(coordinator)
    _admitted_ones_keep_to_their_seat(coordinator)
    hospitals = [
        rehearsal.start(
            name,
            *("-m", "pate_fed.client", "--hospital", name, "--data", f"{name}.csv"),
            *("--tls-dir", f"identity-{name}"),
        )
        for name in HOSPITALS
    ]
    assert coordinator.party.wait(300) == 0, coordinator.party.text
    assert [party.wait(60) for party in hospitals] == [0] * 4
    assert "4 of 4 connected" in coordinator.party.text
    for party in (*hospitals, coordinator.party):
        assert "PRIVATE KEY" not in party.text
    for log in rehearsal.folder.rglob("*.log"):
        assert "PRIVATE KEY" not in log.read_text(encoding="utf-8", errors="replace")

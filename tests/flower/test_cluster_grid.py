"""Parties on a cluster: which process plays whom, what a lost one takes along, and the Grid over them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from pate_fed.errors import InputError, PateFedError
from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Message, RecordDict

from pate_fed.flower import cluster_grid
from pate_fed.flower.cluster_grid import ClusterGrid, LostError, PartyPool, free_places
from pate_fed.flower.compat import set_identity, stamp


class Pool:
    """Notes what it is asked for; two replies are there at first, after 1.5 and 2 seconds of work."""

    def __init__(self, processes: Any, places: Any, **settings: Any) -> None:
        self.settings, self.done = settings | {"places": places}, list[Any]()

    def begin(self, **seconds: float) -> None:
        self.done.append("begin")

    def put(self, messages: dict[str, Any]) -> None:
        self.done.append(set(messages))

    def take(self, wanted: set[str], timeout_s: float) -> list[tuple[Any, float]]:
        return [(each, 1.5 + place / 2) for place, each in enumerate(sorted(wanted)[:2])]

    def processes(self) -> list[str]:
        return ["one"]


def test_messages_go_to_the_pool_and_processes_end_with_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Any] = []
    processes = SimpleNamespace(leave=lambda running, seconds: left.append(running))
    monkeypatch.setattr(cluster_grid, "RayProcesses", lambda *arguments, **options: processes)
    monkeypatch.setattr(cluster_grid, "PartyPool", Pool)
    work: Any = SimpleNamespace(outlives_nodes=False)
    with (
        pytest.raises(KeyboardInterrupt),
        ClusterGrid(work, None, ["a", "a", "b"], num_nodes=3, num_gpus=0, together=2) as grid,
    ):
        pool: Any = grid._pool
        assert pool.settings["places"] == ["a", "a", "b"] and not pool.settings["shared"]
        assert sorted(pool.settings["numbers"]) == sorted(grid.get_node_ids())
        assert sorted(pool.settings["numbers"].values()) == [0, 1, 2]
        grid._queue({"x": None, "y": None})  # type: ignore[dict-item]
        assert pool.done == ["begin", {"x", "y"}]
        assert grid.pull_messages(["x", "y", "z"]) == ["x", "y"] and grid.seconds == 3.5
        raise KeyboardInterrupt
    assert left == [["one"]]


PARTIES = {node: node - 2 for node in range(2, 12)}


@dataclass(eq=False)
class _Process:
    node: str
    number: int
    alive: bool = True


@dataclass
class _Cluster:
    """Processes that answer one thing at each `wait`, in turn; `heard` are parties by process."""

    nodes: set[str] = field(default_factory=lambda: {"a", "b"})
    faults: dict[str, Exception] = field(default_factory=dict)
    heard: list[tuple[str, int, int]] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.count = itertools.count()
        self.queue: dict[int, tuple[_Process, Message | None]] = {}
        self.started: list[_Process] = []
        self.deadly: set[int] = set()  # parties whose message kills its process

    def start(self, node: str) -> tuple[Any, Any]:
        process = _Process(node, len(self.started))
        self.started.append(process)
        return process, self._put(process, None)

    def ask(self, process: Any, message: Message) -> Any:
        return self._put(process, message)

    def _put(self, process: _Process, message: Message | None) -> int:
        reference = next(self.count)
        self.queue[reference] = process, message
        return reference

    def wait(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        firsts: dict[int, int] = {}
        for reference in sorted(references):
            firsts.setdefault(self.queue[reference][0].number, reference)
        return list(firsts.values())

    def result(self, reference: Any) -> Any:
        process, message = self.queue.pop(reference)
        if message is None and process.node in self.faults:
            raise self.faults[process.node]
        if process.node not in self.nodes or not process.alive:
            raise LostError("gone")
        if message is None:
            return None
        party = PARTIES[message.metadata.dst_node_id]
        if party in self.deadly:
            process.alive = False
            raise LostError("killed")
        self.heard.append((process.node, process.number, party))
        return Message(RecordDict(), reply_to=message), 0.5

    def stop(self, process: Any) -> None:
        self.stopped.append(process.number)

    def lives(self, node: str) -> bool:
        return node in self.nodes


def _messages(parties: Sequence[int], *, ttl: float = 60.0) -> dict[str, Message]:
    set_identity(run_id=1, node_id=1)
    made = [Message(RecordDict(), party + 2, "query", ttl=ttl) for party in parties]
    return {stamp(message): message for message in made}


def _pool(cluster: _Cluster, nodes: Sequence[str] = ("a", "b"), **options: Any) -> PartyPool:
    pool = PartyPool(cluster, nodes, numbers=PARTIES, **options)
    pool.begin(most_s=5, others_s=5)
    return pool


def _ask(pool: PartyPool, parties: Sequence[int]) -> dict[int, bool]:
    """Whether each party answered, in place of whom the pool does where it is lost."""
    messages = _messages(parties)
    pool.put(messages)
    got: dict[int, bool] = {}
    for _ in range(200):
        for reply, _seconds in pool.take(set(messages), 0.0):
            asked = messages[reply.metadata.reply_to_message_id]
            got[PARTIES[asked.metadata.dst_node_id]] = not reply.has_error()
        if len(got) == len(parties):
            return got
    raise AssertionError(f"no more than {got}")


def test_all_nodes_play_and_a_party_stays_where_it_was_taught() -> None:
    cluster = _Cluster()
    pool = _pool(cluster)
    for _ in range(3):
        assert all(_ask(pool, range(10)).values())
    homes = {(party, number) for _, number, party in cluster.heard}
    assert len(homes) == 10 and {number for _, number in homes} == {0, 1}


def test_neighbours_that_train_together_have_one_process() -> None:
    cluster = _Cluster()
    _ask(_pool(cluster, together=4), range(10))
    homes = {party: number for _, number, party in cluster.heard}
    assert homes[0] == homes[1] == homes[2] == homes[3] != homes[4] == homes[5] == homes[6] == homes[7]


def test_a_lost_node_takes_its_parties_with_it_and_the_others_answer() -> None:
    cluster = _Cluster()
    pool = _pool(cluster)
    _ask(pool, range(10))
    lost = {party for node, _, party in cluster.heard if node == "b"}
    cluster.nodes.remove("b")
    cluster.heard.clear()
    assert _ask(pool, range(10)) == {party: party not in lost for party in range(10)}
    # Never elsewhere, also in later rounds: their journals are not there.
    assert not any(_ask(pool, sorted(lost)).values())
    assert {node for node, _, _ in cluster.heard} == {"a"}
    assert not lost & {party for _, _, party in cluster.heard}


def test_a_node_that_comes_back_is_another_one_and_its_parties_stay_lost() -> None:
    cluster = _Cluster()
    pool = _pool(cluster)
    _ask(pool, range(10))
    lost = {party for node, _, party in cluster.heard if node == "b"}
    cluster.nodes.remove("b")
    _ask(pool, range(10))
    cluster.nodes.add("b")
    assert not any(_ask(pool, sorted(lost)).values())


def test_on_a_shared_disk_parties_of_a_lost_node_go_on_elsewhere() -> None:
    cluster = _Cluster()
    pool = _pool(cluster, shared=True)
    _ask(pool, range(10))
    cluster.nodes.remove("b")
    cluster.heard.clear()
    assert all(_ask(pool, range(10)).values())
    assert sorted(party for _, _, party in cluster.heard) == list(range(10))
    assert {node for node, _, _ in cluster.heard} == {"a"}


def test_a_process_that_dies_has_another_one_on_its_node_and_is_ended_first() -> None:
    cluster = _Cluster()
    pool = _pool(cluster, nodes=("a",))
    _ask(pool, range(10))
    cluster.started[0].alive = False
    cluster.heard.clear()
    assert all(_ask(pool, range(10)).values())
    assert {(node, number) for node, number, _ in cluster.heard} == {("a", 1)}
    assert cluster.stopped == [0]


def test_a_party_whose_message_kills_every_process_is_left_out_alone() -> None:
    cluster = _Cluster()
    pool = _pool(cluster, nodes=("a",))
    cluster.deadly = {3}
    assert _ask(pool, range(10)) == {party: party != 3 for party in range(10)}
    assert len(cluster.started) == 4


def test_what_came_too_late_is_not_asked_any_more() -> None:
    cluster = _Cluster()
    pool = _pool(cluster)
    messages = _messages([0], ttl=0.01)
    time.sleep(0.02)
    pool.put(messages)
    ((reply, _),) = pool.take(set(messages), 0.0)
    assert reply.has_error() and not cluster.heard


def test_a_node_that_cannot_play_this_study_ends_it_at_the_start() -> None:
    cluster = _Cluster(faults={"b": InputError("node b has another version")})
    with pytest.raises(InputError, match="another version"):
        _pool(cluster)
    cluster = _Cluster(faults={"b": LostError("ModuleNotFoundError: No module named 'pate_fed'")})
    with pytest.raises(PateFedError, match=r"node b: .*No module named 'pate_fed'"):
        _pool(cluster)


def test_without_a_node_the_study_ends() -> None:
    cluster = _Cluster()
    pool = _pool(cluster)
    cluster.nodes.clear()
    with pytest.raises(PateFedError, match="no node of the cluster is left"):
        _ask(pool, range(10))


CORES = [
    {"NodeID": "head", "Alive": True, "Resources": {"memory": 1.0}},
    {"NodeID": "a", "Alive": True, "Resources": {"CPU": 4.0}},
    {"NodeID": "b", "Alive": True, "Resources": {"CPU": 2.0}},
    {"NodeID": "dead", "Alive": False, "Resources": {"CPU": 64.0}},
]
GPUS = [*CORES, {"NodeID": "g", "Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}}]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    held: list[dict[str, Any]] = []
    monkeypatch.setattr(cluster_grid, "_nodes", lambda: held)
    return held


def test_places_are_the_clusters_cores_not_the_drivers(nodes: list[dict[str, Any]]) -> None:
    nodes.extend(CORES)
    assert free_places("auto", None, most=100) == (["a", "b", "a", "b", "a", "a"], 0.0)
    # Never more than parties, and those on all nodes alike.
    assert free_places("cpu", None, most=3) == (["a", "b", "a"], 0.0)


def test_gpus_play_where_there_are_any(nodes: list[dict[str, Any]]) -> None:
    nodes.extend(GPUS)
    assert free_places("auto", None, most=100) == (["g", "g"], 1.0)
    assert free_places("cuda", 0.25, most=100) == (["g"] * 8, 0.25)
    assert set(free_places("cpu", None, most=100)[0]) == {"a", "b", "g"}


def test_a_cluster_without_what_is_asked_for_is_refused(nodes: list[dict[str, Any]]) -> None:
    nodes.extend(CORES)
    with pytest.raises(InputError, match="no node of the cluster has a GPU"):
        free_places("cuda", None, most=4)
    del nodes[1:]
    with pytest.raises(InputError, match="no core for a party"):
        free_places("cpu", None, most=4)

"""A grid over a cluster's nodes: what it has the pool do, and that it ends the processes with itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pate_fed.flower import cluster_grid
from pate_fed.flower.cluster_grid import ClusterGrid


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

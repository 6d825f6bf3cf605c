"""Which nodes play parties, and how often, from what Ray tells of them."""

from __future__ import annotations

from typing import Any

import pytest

from pate_fed.errors import InputError
from pate_fed.flower import prepare_environment

prepare_environment()

from pate_fed.flower import ray_processes
from pate_fed.flower.ray_processes import free_places

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
    monkeypatch.setattr(ray_processes, "_nodes", lambda: held)
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

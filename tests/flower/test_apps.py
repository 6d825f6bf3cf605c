"""What an app is told by `flwr run`: settings as nested tables, and how many SuperNodes there are."""

from __future__ import annotations

from typing import Any

import pytest

from pate_fed.errors import InputError
from pate_fed.flower import apps
from pate_fed.flower.apps import count_nodes, nested_settings


class Grid:
    """Of which `counts` nodes are there at each look, the last from then on."""

    def __init__(self, *counts: int) -> None:
        self.counts = list(counts)

    def get_node_ids(self) -> range:
        return range(self.counts.pop(0) if len(self.counts) > 1 else self.counts[0])


def test_a_flat_run_config_becomes_tables() -> None:
    assert nested_settings({"a-b.c": 1, "a_b.d": 2}) == {"a_b": {"c": 1, "d": 2}}
    assert nested_settings({"run-dir": "x"}) == {"run_dir": "x"}
    with pytest.raises(InputError, match=r"run config a\.b\.c: b is a value already"):
        nested_settings({"a.b": 1, "a.b.c": 2})


def test_nodes_are_counted_once_no_more_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "_STILL_S", 0.02)
    grid: Any = Grid(0, 1, 3)
    assert count_nodes(grid) == 3
    monkeypatch.setattr(apps, "_WAIT_S", 0.03)
    none: Any = Grid(0)
    with pytest.raises(InputError, match="no SuperNodes"):
        count_nodes(none)

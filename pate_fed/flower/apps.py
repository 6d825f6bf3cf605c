"""A ServerApp around a function, and what an app is told by `flwr run`: settings, and how many SuperNodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pate_fed.errors import InputError

_WAIT_S = 60.0
_STILL_S = 1.0  # Flower registers all simulated nodes in one go, beside the ServerApp


def server_app_of(run: Callable[[Grid, Context], None]) -> ServerApp:
    """An app whose main is `run`."""
    app = ServerApp()
    app.main()(run)
    return app


def count_nodes(grid: Grid) -> int:
    """How many SuperNodes the federation has, once no more come.

    Raises:
        InputError: none comes.
    """
    end = time.monotonic() + _WAIT_S
    found, since = 0, time.monotonic()
    while time.monotonic() < end:
        now = len(list(grid.get_node_ids()))
        if now != found:
            found, since = now, time.monotonic()
        elif found and time.monotonic() - since >= _STILL_S:
            return found
        time.sleep(_STILL_S / 10)
    raise InputError("the federation has no SuperNodes: give --federation-config num-supernodes=N")


def nested_settings(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Flower's flat run config as nested dictionaries: "parties.num-clients" is num_clients of parties.

    Raises:
        InputError: a key is both a value and a table.
    """
    nested: dict[str, Any] = {}
    for key, value in run_config.items():
        *tables, name = key.replace("-", "_").split(".")
        place = nested
        for table in tables:
            place = place.setdefault(table, {})
            if not isinstance(place, dict):
                raise InputError(f"run config {key}: {table} is a value already")
        place[name] = value
    return nested

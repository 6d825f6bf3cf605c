"""Flower's room: records, the in-process grid, the environment, and the private names it leans on."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from pate_fed.errors import InputError, IntegrityError
from pate_fed.flower.inline import InlineGrid, run_inline
from pate_fed.flower.records import from_flower, to_flower


def _echo_app(*, failing: int | None = None) -> ClientApp:
    app = ClientApp()

    @app.query("votes")
    def votes(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == failing:
            raise RuntimeError("a patient's name")
        record = from_flower(message.content)
        record["party"] = f"p{context.node_config['partition-id']}"
        return Message(to_flower(record), reply_to=message)

    return app


def test_flower_is_the_release_this_room_was_written_for() -> None:
    assert version("flwr").startswith("1.39.")


def test_nothing_phones_home_even_if_the_environment_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("PATH", "/nowhere")
    prepare_environment()
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert str(Path(sys.executable).parent) in os.environ["PATH"].split(os.pathsep)


def test_telemetry_is_off_inside_flower() -> None:
    code = (
        "from pate_fed.flower import prepare_environment; prepare_environment()\n"
        "from flwr.supercore import telemetry\n"
        "assert not telemetry.FLWR_TELEMETRY_ENABLED.strip() == '1', telemetry.FLWR_TELEMETRY_ENABLED\n"
    )
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


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


def test_every_node_answers_once_and_a_fault_is_a_message() -> None:
    grid = InlineGrid(_echo_app(failing=2), num_nodes=5)
    nodes = grid.get_node_ids()
    sent = [Message(to_flower({"kind": "q"}), node, "query.votes") for node in nodes]
    replies = grid.send_and_receive(sent, timeout=10)
    assert len(replies) == 5
    errors = [reply for reply in replies if reply.has_error()]
    assert len(errors) == 1
    assert "patient" not in errors[0].error.reason
    names = {from_flower(reply.content)["party"] for reply in replies if not reply.has_error()}
    assert names == {"p0", "p1", "p3", "p4"}
    assert grid.send_and_receive([], timeout=1) == []


def test_an_exception_of_the_server_app_reaches_the_caller() -> None:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        assert len(list(grid.get_node_ids())) == 3
        raise InputError("seen")

    with pytest.raises(InputError, match="seen"):
        run_inline(app, _echo_app(), num_nodes=3)

"""The in-process grid: every node answers, faults are messages, the coordinator's error is raised."""

from __future__ import annotations

import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from pate_fed.errors import InputError
from pate_fed.flower.inline import InlineGrid, run_inline
from pate_fed.flower.records import from_flower, to_flower


def _echo_app(*, failing: int | None = None) -> ClientApp:
    app = ClientApp()

    @app.query("answer")
    def votes(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == failing:
            raise RuntimeError("a patient's name")
        record = from_flower(message.content)
        record["party"] = f"p{context.node_config['partition-id']}"
        return Message(to_flower(record), reply_to=message)

    return app


def test_every_node_answers_once_and_a_fault_is_a_message() -> None:
    grid = InlineGrid(_echo_app(failing=2), num_nodes=5)
    nodes = grid.get_node_ids()
    sent = [Message(to_flower({"kind": "q"}), node, "query.answer") for node in nodes]
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

"""The shutdown notice: the last word gets to whoever is connected."""

from __future__ import annotations

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Message
from flwr.clientapp import ClientApp

from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import to_flower
from pate_fed.protocol.messages import EndReply, EndRequest
from server.shutdown import send_shutdown_notice


def test_a_shutdown_notice_counts_who_heard_it() -> None:
    app = ClientApp()
    heard = EndReply(party="p").to_record()
    app.query("end")(lambda message, context: Message(to_flower(heard), reply_to=message))
    notice = EndRequest(status="success", exit_code=0, summary="ε=1")
    assert send_shutdown_notice(InlineGrid(app, num_nodes=3), notice) == 3
    assert send_shutdown_notice(InlineGrid(ClientApp(), num_nodes=2), notice) == 0  # nobody knows the message

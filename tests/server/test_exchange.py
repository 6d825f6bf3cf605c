"""Messages out and replies in: who is late is left out, who stops is heard."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pate_fed.errors import QuorumError
from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import to_flower
from pate_fed.protocol.messages import EndReply, EndRequest, RefusalReply, Reply
from server.exchange import Presence, Stopped, exchange, wait_for_nodes


class _DeafGrid(InlineGrid):
    """Never delivers to the first two nodes."""

    def pull_messages(self, message_ids: object) -> list[Message]:
        deaf = set(self.get_node_ids()[:2])
        ids = [i for i, message in self._waiting.items() if message.metadata.dst_node_id not in deaf]
        return super().pull_messages(ids)


def test_a_silent_party_is_late_and_a_stop_is_heard() -> None:
    app = ClientApp()
    heard = EndReply(party="p").to_record()
    app.query("answer")(lambda message, context: Message(to_flower(heard), reply_to=message))
    grid = _DeafGrid(app, num_nodes=5)
    sent = dict.fromkeys(grid.get_node_ids(), EndRequest(status="", exit_code=0, summary="").to_record())
    answers = list(exchange(grid, sent, message_type="query.answer", timeout_s=0.6, stop=threading.Event()))
    assert sorted(answer.reply is None for answer in answers) == [False] * 3 + [True] * 2
    assert "no answer within 1 s" in answers[-1].failure
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        list(exchange(grid, sent, message_type="query.answer", timeout_s=60, stop=stop))


class _Clock:
    """A minute passes with each pause, or as much as this process stands still."""

    def __init__(self, *steps: float) -> None:
        self.now, self._steps = 1000.0, list(steps)

    def monotonic(self) -> float:
        return self.now

    def pause(self, stop: threading.Event, seconds: float = 0.0) -> None:
        self.now += self._steps.pop(0) if self._steps else 12.0


@pytest.mark.parametrize(
    ("full", "again_s", "code", "asked"),
    [(3, 300.0, "ended", 4), (10**6, 300.0, "LATER", 26), (10**6, 0.0, "LATER", 1)],
)
def test_who_cannot_now_is_asked_again_for_some_minutes(
    full: int, again_s: float, code: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others' answers are taken meanwhile; what a refusal for good says is not asked again."""
    counts, clock = Counter[int](), _Clock()

    def answer(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        counts[number] += 1
        reply: Reply = EndReply(party=f"p{number}")
        if number == 1:
            reply = RefusalReply(party="p1", code="FAULT")
        elif number == 2 and counts[2] <= full:
            reply = RefusalReply(party="p2", code="LATER")
        return Message(to_flower(reply.to_record()), reply_to=message)

    app = ClientApp()
    app.query("answer")(answer)
    grid = InlineGrid(app, num_nodes=3)
    monkeypatch.setattr("server.exchange.time", clock)
    monkeypatch.setattr("server.exchange._pause", clock.pause)
    sent = dict.fromkeys(grid.get_node_ids(), EndRequest(status="", exit_code=0, summary="").to_record())
    watch, why = Presence(grid), list[Any]()
    last = max(sent)
    answers = exchange(
        grid,
        sent,
        message_type="query.answer",
        timeout_s=600,
        stop=threading.Event(),
        again_s=again_s,
        presence=watch,
        idle=lambda: why.append(watch.waits(last)),
    )
    said = [getattr(each.reply, "code", "ended") for each in answers]
    assert said == ["ended", "FAULT", code] and counts == {0: 1, 1: 1, 2: asked}
    assert why[:1] == [("cannot do it now", again_s)] * bool(again_s)
    watch.begin()
    assert watch.waits(last) is None


def test_time_in_which_the_coordinator_stood_still_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(InlineGrid):
        looks = 0

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            self.looks += 1
            return [] if self.looks < 4 else super().pull_messages(message_ids)

    app, clock = ClientApp(), _Clock(0.1, 700.0, 0.1)
    heard = EndReply(party="p").to_record()
    app.query("answer")(lambda message, context: Message(to_flower(heard), reply_to=message))
    grid = Slow(app, num_nodes=1)
    monkeypatch.setattr("server.exchange.time", clock)
    monkeypatch.setattr("server.exchange._pause", clock.pause)
    sent = dict.fromkeys(grid.get_node_ids(), EndRequest(status="", exit_code=0, summary="").to_record())
    [answer] = exchange(grid, sent, message_type="query.answer", timeout_s=60, stop=threading.Event())
    assert isinstance(answer.reply, EndReply)


class _Waiting(InlineGrid):
    """Has nothing at first, and waits for it by its own clock, as a Grid over processes does by another."""

    now, seconds, empty = 1000.0, 0.0, 2

    def monotonic(self) -> float:
        return self.now

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        if self.empty:
            self.empty -= 1
            self.now += self.seconds
            return []
        return super().pull_messages(message_ids)


@pytest.mark.parametrize(("waits", "pauses"), [(0.0, True), (0.15, False)])
def test_while_a_grid_waits_by_itself_nothing_else_does(
    waits: float, pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is through with a group of parties would have nothing to do meanwhile."""
    app, paused = ClientApp(), list[float]()
    heard = EndReply(party="p").to_record()
    app.query("answer")(lambda message, context: Message(to_flower(heard), reply_to=message))
    monkeypatch.setattr("server.exchange._pause", lambda stop, seconds: paused.append(seconds))
    grid = _Waiting(app, num_nodes=1)
    grid.seconds = waits
    monkeypatch.setattr("server.exchange.time", grid)
    sent = dict.fromkeys(grid.get_node_ids(), EndRequest(status="", exit_code=0, summary="").to_record())
    list(exchange(grid, sent, message_type="query.answer", timeout_s=60, stop=threading.Event()))
    assert len(paused) == 2 and all((each > 0.05) is pauses for each in paused)


def test_nobody_connected_is_no_quorum() -> None:
    with pytest.raises(QuorumError, match="no party connected"):
        wait_for_nodes(InlineGrid(ClientApp(), num_nodes=0), count=3, timeout_s=0.1, stop=threading.Event())


def test_a_stop_that_came_before_is_no_missing_quorum() -> None:
    stop, grid = threading.Event(), InlineGrid(ClientApp(), num_nodes=0)
    with pytest.raises(QuorumError, match="none of 3 hospitals"):
        wait_for_nodes(grid, count=3, timeout_s=0.0, stop=stop)
    stop.set()
    with pytest.raises(Stopped):
        wait_for_nodes(grid, count=3, timeout_s=0.0, stop=stop)

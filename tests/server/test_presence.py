"""Who is connected and admitted, over all the exchanges of a study."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import to_flower
from pate_fed.protocol.messages import EndReply, EndRequest
from server import exchange as module
from server.exchange import Presence, exchange


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class _Connected:
    """A grid as far as a presence looks at it."""

    def __init__(self, *nodes: int) -> None:
        self.nodes = set(nodes)

    def get_node_ids(self) -> list[int]:
        return sorted(self.nodes)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_who_is_gone_for_long_is_waited_for_once_and_asked_again_when_it_is_back(clock: _Clock) -> None:
    grid: Any = _Connected(1, 2)
    presence = Presence(grid)
    presence.begin()
    assert presence.look({1, 2, 3}) == (set(), set())  # a look every two seconds
    clock.now += 2
    assert presence.look({1, 2, 3}) == (set(), set())
    for _ in range(2):
        clock.now += 22
        assert presence.look({1, 2, 3}) == (set(), set())
    clock.now += 600  # this process stood still, and all with it
    assert presence.look({1, 2, 3}) == (set(), set())
    clock.now += 20
    assert presence.look({1, 2, 3}) == ({3}, set())
    presence.begin()  # the next batch does not wait a minute and a half more
    clock.now += 2
    assert presence.look({1, 2, 3}) == ({3}, set())
    grid.nodes = {1, 2, 3}
    presence.begin()  # back before it is asked: nothing is sent to it twice
    clock.now += 2
    assert presence.look({1, 2, 3}) == (set(), set())
    grid.nodes = {1, 2}
    clock.now += 2
    assert presence.look({1, 2, 3}) == (set(), set())
    grid.nodes = {1, 2, 3}
    clock.now += 2
    assert presence.look({1, 2, 3}) == (set(), {3})


def test_a_node_that_was_missed_for_a_moment_is_back_at_the_next_look(clock: _Clock) -> None:
    grid: Any = _Connected(1)
    presence = Presence(grid)
    presence.begin()
    presence.miss(1)
    clock.now += 2
    assert presence.look({1}) == (set(), {1})


def test_what_a_revoked_node_says_is_not_taken_and_it_is_asked_no_more() -> None:
    asked: list[int] = []
    admitted: set[int] = set()
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        asked.append(context.node_id)
        if len(asked) == 2:
            admitted.discard(context.node_id)  # while its answer is on its way
            admitted.discard(max(grid.get_node_ids()))  # and one that was not asked yet
        return Message(to_flower(EndReply(party="p").to_record()), reply_to=message)

    app.query("answer")(answer)
    grid = InlineGrid(app, num_nodes=4)
    admitted.update(grid.get_node_ids())
    record = EndRequest(status="", exit_code=0, summary="").to_record()

    def ask() -> dict[int, str]:
        answers = exchange(
            grid,
            dict.fromkeys(grid.get_node_ids(), record),
            message_type="query.answer",
            timeout_s=5,
            stop=threading.Event(),
            window=1,
            presence=Presence(grid, admitted=admitted.__contains__),
        )
        return {answer.node: answer.failure for answer in answers}

    first, second, third, last = grid.get_node_ids()
    expected = {first: "", second: "is revoked", third: "", last: "is revoked"}
    assert ask() == expected
    assert asked == [first, second, third]
    assert ask() == expected
    assert asked == [first, second, third, first, third]
    admitted.update(grid.get_node_ids())  # admitted again
    assert set(ask().values()) == {""}

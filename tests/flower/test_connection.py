"""A hospital's connection: every way in which Flower's SuperNode fails has a sentence, and waiting an end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pate_fed.errors import InputError, PateFedError
from pate_fed.flower import connection
from pate_fed.flower.connection import Connection


class _Node:
    """A SuperNode as far as a connection looks at it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.running = True
        self.stopped = 0

    def new_lines(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    def stop(self) -> None:
        self.stopped += 1


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class _World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, wait_s: float = 600) -> None:
        self.clock, self.nodes, self.said = _Clock(), [], []  # type: ignore[var-annotated]
        monkeypatch.setattr(connection, "time", self.clock)
        self.connection = Connection(self._start, report=self.said.append, wait_s=wait_s)  # type: ignore[arg-type]

    def _start(self) -> _Node:
        self.nodes.append(_Node())
        return self.nodes[-1]

    def log(self, *lines: str, after: float = 1.0) -> None:
        self.clock.now += after
        self.nodes[-1].lines += lines
        self.connection.watch()


def test_it_says_once_that_it_is_connected_lost_and_connected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _World(monkeypatch)
    world.log("Connection attempt failed, retrying", "Connection successful after 2 s", "SuperNode ID: 3")
    world.log("Connection attempt failed, retrying", "Connection attempt failed, retrying", after=300)
    world.log("Connection successful after 9 s", after=300)
    assert world.said == [
        "connected; waiting for the coordinator's requests",
        "the coordinator is out of reach; trying again",
        "connected again",
    ]


@pytest.mark.parametrize(
    ("line", "words", "seconds"),
    [
        ("[code: 2004] Failed to activate SuperNode.", "never admitted or is revoked", 600),
        ("[code: 2001] ...", "--tls-dir", 75),
        ("SuperNode terminated gracefully.", "5 seconds ahead of the coordinator's or 5 minutes behind", 75),
        ("SSL/TLS handshake error detected.", "not of this study's authority", 75),
    ],
)
def test_a_refusal_is_said_once_retried_and_at_last_final(
    line: str, words: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _World(monkeypatch)
    began = world.clock.now
    with pytest.raises(InputError) as caught:
        while world.clock.now < began + 1000:
            world.log(line)
            world.nodes[-1].running = False
            world.log(after=1.0)  # seen to be gone
            while world.connection.node is None:
                world.connection.watch()
                world.clock.now += 1
    assert words in str(caught.value)
    assert seconds <= world.clock.now - began < 1.2 * seconds + 10
    [said] = world.said
    assert words in said
    assert said.startswith("refused for now")
    assert f"for up to {seconds} s, Ctrl-C ends it" in said
    assert 10 < len(world.nodes) < 100


def test_a_seat_that_is_taken_is_tried_often_at_first_and_seldom_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = _World(monkeypatch, wait_s=86_400)
    began, starts = world.clock.now, list[float]()
    while world.clock.now < began + 7200:
        world.log("[code: 2004]")
        world.nodes[-1].running = False
        world.log()
        while world.connection.node is None:
            world.connection.watch()
            world.clock.now += 1
        starts.append(world.clock.now - began)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert gaps[0] <= 7 and max(gaps[:4]) <= 7  # a lost connection's seat is free after 20 s
    assert 60 <= gaps[-1] <= 65
    world.log("SuperNode ID: 3")
    assert len(world.said) == 2
    assert world.said[-1] == "connected; waiting for the coordinator's requests"


def test_a_seat_that_is_held_for_long_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _World(monkeypatch, wait_s=3600)
    for _ in range(10):
        world.log("[code: 2004]", after=60.0)
    world.log("SuperNode ID: 3")
    for _ in range(100):
        world.log(after=60.0)
    assert world.said[-1] == "connected; waiting for the coordinator's requests"


def test_a_coordinator_that_goes_while_it_refuses_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _World(monkeypatch, wait_s=100)
    world.log("[code: 2004]")
    world.log("Connection attempt failed, retrying")
    assert world.said[-1] == "the coordinator is out of reach; trying again"
    with pytest.raises(PateFedError, match="out of reach for 100 s"):
        world.log(after=100)


def test_the_supernode_is_asked_when_its_log_tells_of_a_request_and_seldom_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = _World(monkeypatch)
    assert world.connection.may_have_request()  # one may have come before the log was read
    asked = 0
    for _ in range(60):
        world.log(after=0.5)
        asked += world.connection.may_have_request()
    assert asked == 3  # in half a minute
    world.log("Received successfully", after=0.5)
    assert world.connection.may_have_request()
    assert world.connection.may_have_request()  # until it is answered
    world.connection.note_answered()
    assert not world.connection.may_have_request()
    world.log("Received successfully", after=0.5)
    world.nodes[-1].running = False
    world.log(after=0.5)
    assert not world.connection.may_have_request()  # the request is gone with its SuperNode


def test_out_of_reach_for_too_long_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _World(monkeypatch, wait_s=100)
    world.log("SuperNode ID: 3", after=99)
    world.log("Connection attempt failed", after=1000)
    world.log(after=99)
    with pytest.raises(PateFedError, match="out of reach for 100 s"):
        world.log(after=2)


def test_delivery_is_awaited_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _World(monkeypatch)
    world.nodes[-1].lines.append("Sent successfully")
    before = world.clock.now
    world.connection.wait_until_sent(15)
    assert world.clock.now - before < 1
    world.connection.wait_until_sent(15)
    assert 15 <= world.clock.now - before < 17
    world.connection.stop()
    assert world.nodes[-1].stopped == 1

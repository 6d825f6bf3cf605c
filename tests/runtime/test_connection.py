"""A hospital's connection: every way in which Flower's SuperNode fails has a sentence, and waiting an end."""

from __future__ import annotations

import pytest

from pate_fed.errors import InputError, PateFedError
from pate_fed.runtime import connection
from pate_fed.runtime.connection import Connection


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
    ("line", "words"),
    [
        ("[code: 2004] Failed to activate SuperNode.", "never admitted or is revoked"),
        ("[code: 2001] ...", "--tls-dir"),
        ("SuperNode terminated gracefully.", "5 seconds ahead of the coordinator's or 5 minutes behind"),
        ("SSL/TLS handshake error detected.", "not of this study's authority"),
    ],
)
def test_a_refusal_is_said_retried_and_then_final(
    line: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _World(monkeypatch)
    for _ in range(12):
        world.log(line)
        world.nodes[-1].running = False
        world.log(after=1.0)  # seen to be gone
        if world.clock.now > 1070:
            break
        world.log(after=5.0)  # and started again
    assert len(world.nodes) > 3
    [said] = world.said
    assert words in said
    assert said.startswith("refused for now")
    with pytest.raises(InputError) as caught:
        for _ in range(12):
            world.log(line, after=6.0)
    assert words in str(caught.value)


def test_a_key_that_is_held_for_a_minute_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _World(monkeypatch)
    for _ in range(10):
        world.log("[code: 2004]", after=6.0)
    world.log("SuperNode ID: 3")
    for _ in range(100):
        world.log(after=60.0)
    assert world.said[-1] == "connected; waiting for the coordinator's requests"


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

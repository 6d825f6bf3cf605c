"""A coordinator's screen, no terminal, says by name within 30 s of every wait who is waited for, till when.

A whole study over a grid in this process, whose clock goes on while nothing comes.
"""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message
from kinds import HOSPITALS, ScoredStudy, VoteStudy

import clients.app
from pate_fed.flower import host as room
from pate_fed.flower.host import Host
from pate_fed.flower.inline import InlineGrid
from pate_fed.flower.records import from_flower
from pate_fed.protocol.heads import Statement
from pate_fed.report.terminal import make_progress
from pate_fed.secure_sum import read_request
from pate_fed.secure_sum.messages import Enrolment
from server.app import Coordinator
from server.process import run_apart

LATE, LATE_S, WITHIN_S = "h2", 90.0, 30.0
WAIT_S, LINGER_S, ASLEEP_S = 700.0, 800.0, 600.0


class _Clock(threading.Event):
    """Time that goes on while somebody waits: the rooms' `time`, and what asks them to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self._begun = 0.0, time.mktime((2026, 1, 5, 10, 0, 0, 0, 0, -1))
        self.localtime, self.strftime = time.localtime, time.strftime

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self._begun + self.now

    def text(self, now: float) -> str:
        """What a watch shows then."""
        return time.strftime("%H:%M", time.localtime(self._begun + now))

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.01)

    def wait(self, timeout: float | None = None) -> bool:
        self.sleep(timeout or 0.0)
        return self.is_set()


class _Screen(io.StringIO):
    """Lines with the time at which each was said."""

    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self._clock, self.lines = clock, list[tuple[float, str]]()

    def write(self, text: str) -> int:
        self.lines += [(self._clock.now, line) for line in text.splitlines() if line.strip()]
        return len(text)


@dataclass
class _Late(InlineGrid):
    """A grid on which one hospital comes, and answers, a minute and a half late: `waits` tells when."""

    clock: _Clock
    names: dict[int, str] = field(default_factory=dict)
    identities: dict[str, bytes] = field(default_factory=dict)
    waits: list[tuple[str, float]] = field(default_factory=list)
    sleeps_at: str = ""

    def __post_init__(self) -> None:
        super().__init__(clients.app.app, num_nodes=HOSPITALS)
        self.names.update({node: f"h{number}" for number, node in enumerate(self._contexts)})
        [self._late] = [node for node, name in self.names.items() if name == LATE]
        self._due = dict[str, float]()

    def get_node_ids(self) -> list[int]:
        here = self.clock.now >= LATE_S
        return [node for node in super().get_node_ids() if here or node != self._late]

    def _queue(self, messages: dict[str, Message]) -> None:
        super()._queue(messages)
        for name, message in messages.items():
            if message.metadata.dst_node_id == self._late:
                record = from_flower(message.content)
                step = read_request(record["step"]).kind if "step" in record else ""
                self.waits.append((f"{record['kind']} {step}".strip(), self.clock.now))
                self._due[name] = self.clock.now + LATE_S

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        now = self.clock.now
        if self.sleeps_at and self.waits[-1][0] == self.sleeps_at and now >= self.waits[-1][1] + 50:
            self.sleeps_at, self.clock.now = "", now + ASLEEP_S
            self._due = {name: due + ASLEEP_S for name, due in self._due.items()}
        replies = super().pull_messages([name for name in message_ids if self._due.get(name, now) <= now])
        for reply in replies:
            record = from_flower(reply.content)
            if record["kind"] == "joined" and record["enrolment"]:
                self.identities[record["party"]] = Enrolment.from_bytes(record["enrolment"]).identity
        return replies


@dataclass
class _Link:
    """A SuperLink that is there at once, with that grid."""

    grid: _Late
    running: bool = True

    def wait_until_ready(self, interrupted: Any) -> None:
        """It is."""

    def open_run(self) -> tuple[Any, Any]:
        self.grid.waits.append(("connect", self.grid.clock.now))
        return self.grid, SimpleNamespace()

    def close_run(self, *, completed: bool) -> None:
        """Nothing to close."""

    def stop(self) -> None:
        """Nothing to stop."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    for name in ("server.exchange", "server.federation", "server.outcome", "pate_fed.format"):
        monkeypatch.setattr(f"{name}.time", clock)
    monkeypatch.setattr(room, "time", clock)
    return clock


def _play(
    study: Any, clock: _Clock, monkeypatch: pytest.MonkeyPatch, *, sleeps_at: str = ""
) -> tuple[_Screen, _Late]:
    """The whole study; what was said, and what was waited for."""
    screen, grid, key = _Screen(clock), _Late(clock, sleeps_at=sleeps_at), Ed25519PrivateKey.generate()
    admitted = SimpleNamespace(names=grid.names, sum_identities=grid.identities, stop=lambda: None)
    monkeypatch.setattr(room, "AdmittedHospitals", lambda *_, **__: admitted)
    monkeypatch.setattr(room, "_link_guard", lambda authority: None)
    monkeypatch.setattr("pate_fed.flower.superlink.SuperLink", lambda *_, **__: _Link(grid))
    # Simulated hospitals have no key to sign with how far they are.
    monkeypatch.setattr(Statement, "signed_by", lambda *_, **__: True)
    authority: Any = SimpleNamespace(
        folder=study.run_dir, ledger_key=lambda: key, require_terms=lambda digest: None
    )
    host = Host("a:1", authority, WAIT_S, lambda text: print(text, file=screen), LINGER_S)
    coordinator = Coordinator(
        study.study,
        run_dir=study.run_dir,
        quiet=False,
        stop=clock,
        started=time.perf_counter(),
        progress=make_progress(False, screen),
    )
    assert run_apart(coordinator, host, study.run_dir, stop=clock, as_json=False) == 0, screen.lines
    return screen, grid


@pytest.mark.parametrize("made", [VoteStudy, ScoredStudy], ids=lambda kind: kind.__name__)
def test_the_screen_says_within_half_a_minute_who_is_waited_for_in_every_phase(
    made: Any, clock: _Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = made(tmp_path, monkeypatch)
    screen, grid = _play(study, clock, monkeypatch)
    assert not screen.isatty()
    engine = study.study.engine
    patience = {"connect": WAIT_S, "join": engine.teach_timeout_s, "end": LINGER_S}
    for what, begun in grid.waits:
        until = clock.text(begun + patience.get(what, engine.vote_timeout_s))
        said = [line for at, line in screen.lines if begun <= at <= begun + WITHIN_S]
        told = [line for line in said if re.search(rf"\b{LATE}\b", line) and until in line]
        assert told, (what, begun, until, screen.lines)
    steps = ["sum sum.open", "sum sum.mask", "sum sum.survivors", "sum sum.unmask"] * study.questions
    assert [what for what, _ in grid.waits] == ["connect", "join", *steps, "end"]


def test_after_the_coordinator_stood_still_the_time_that_is_said_is_later(
    clock: _Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a laptop's lid closed for ten minutes; half a minute of it counts."""
    study = VoteStudy(tmp_path, monkeypatch)
    screen, grid = _play(study, clock, monkeypatch, sleeps_at="sum sum.mask")
    begun = dict(grid.waits)["sum sum.mask"]
    told = [line for at, line in screen.lines if begun + ASLEEP_S <= at <= begun + ASLEEP_S + LATE_S]
    until = clock.text(begun + study.study.engine.vote_timeout_s + ASLEEP_S - 30)
    assert [line for line in told if LATE in line and until in line], (until, screen.lines)

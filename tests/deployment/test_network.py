"""The network of a hospital: slow, cut for a minute or for good; and a hospital that never answers."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from builders import PLAIN_POLICY

NAMES = ("north", "east", "west")
pytestmark = pytest.mark.slow


class Cable:
    """Forwards TCP to an address; while it is cut, bytes and new connections are held, as by a dead line.

    `bytes_s` is how many bytes a second it takes, of all connections and both ways together; 0: any.
    """

    bytes_s = 0

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.cut = threading.Event()
        self._ended = threading.Event()
        self._ends: dict[socket.socket, socket.socket] = {}
        self._choose = selectors.DefaultSelector()
        self._choose.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            if self.cut.is_set():
                time.sleep(0.05)
                continue
            for key, _ in self._choose.select(timeout=0.1):
                self._connect() if key.fileobj is self._listener else self._forward(key.fileobj)

    def _connect(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._target, timeout=5)
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            self._ends[one] = other
            self._choose.register(one, selectors.EVENT_READ)

    def _forward(self, one: Any) -> None:
        other = self._ends.get(one)
        try:
            data = one.recv(self.bytes_s // 10 or 65_536)
            time.sleep(len(data) / self.bytes_s if self.bytes_s else 0)
            if data and other is not None:
                other.sendall(data)
                return
        except OSError:
            pass
        for end in (one, other):
            if end is not None and self._ends.pop(end, None) is not None:
                self._choose.unregister(end)
                end.close()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        for end in (self._listener, *self._ends):
            end.close()


@pytest.fixture
def cable(rehearsal: Any) -> Iterator[Cable]:
    host, _, port = rehearsal.address.rpartition(":")
    made = Cable(host, int(port))
    yield made
    made.stop()


def _start(rehearsal: Any, north: str, *, study: str = "") -> tuple[Any, dict[str, Any]]:
    folder = rehearsal.folder
    (folder / "study.toml").write_text(rehearsal.write_tables(private=False) + study, encoding="utf-8")
    (folder / "policy.toml").write_text(PLAIN_POLICY, encoding="utf-8")
    server, parties = rehearsal.server("--insecure"), {}
    for name in NAMES:
        where = north if name == "north" else rehearsal.address
        base = ("-m", "pate_fed.client", "--hospital", name, "--data", f"{name}.csv", "--server", where)
        parties[name] = rehearsal.start(name, *base, "--insecure", "--policy", "policy.toml", "--wait", "120")
    return server, parties


@pytest.mark.parametrize("moment", ["connected;", "ready to answer"])
def test_a_network_that_is_cut_for_a_minute_costs_a_minute(moment: str, rehearsal: Any, cable: Cable) -> None:
    server, parties = _start(rehearsal, cable.address)
    parties["north"].wait_for(moment, 120)
    cable.cut.set()
    time.sleep(60)
    cable.cut.clear()
    assert server.wait(400) == 0, server.text + parties["north"].text
    assert [party.wait(90) for party in parties.values()] == [0, 0, 0]
    for party in parties.values():
        assert party.text.count(": 30 rows (") == 2, party.text
        assert "answered before" not in party.text


def test_a_network_of_20_kb_a_second_is_enough(rehearsal: Any, cable: Cable) -> None:
    cable.bytes_s = 20_000
    server, parties = _start(rehearsal, cable.address)
    assert server.wait(900) == 0, server.text + parties["north"].text
    assert [party.wait(90) for party in parties.values()] == [0, 0, 0]
    for party in parties.values():
        assert party.text.count(": 30 rows (") == 2, party.text


def test_a_line_that_is_dead_for_good_leaves_the_study_to_its_quorum(rehearsal: Any, cable: Cable) -> None:
    """A half-open connection: no end ever hears of the other, and no connection is closed."""
    server, parties = _start(rehearsal, cable.address)
    parties["north"].wait_for("ready to answer", 300)
    cable.cut.set()
    server.wait_for("waiting for north", 300)
    server.wait_for("not told yet how the study ended: north", 400)
    server.process.terminate()
    assert server.wait(60) == 0, server.text
    assert [parties[name].wait(90) for name in ("east", "west")] == [0, 0]
    lines = (rehearsal.folder / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    out = [event for event in map(json.loads, lines) if event["event"] == "left_out"]
    assert {event["party"] for event in out} == {"north"}, out


def test_one_that_never_answers_is_waited_for_until_the_deadline(rehearsal: Any) -> None:
    server, parties = _start(rehearsal, rehearsal.address, study="[engine]\nvote_timeout_s = 10\n")
    north = parties["north"]
    north.wait_for("ready to answer", 120)
    os.kill(north.process.pid, signal.SIGSTOP)  # its SuperNode is well, and tells the coordinator so
    try:
        server.wait_for("not told yet how the study ended: north", 300)  # two of three are enough
        assert [parties[name].wait(60) for name in ("east", "west")] == [0, 0]
    finally:
        os.kill(north.process.pid, signal.SIGCONT)
    assert [server.wait(90), north.wait(90)] == [0, 0], server.text + north.text  # it hears it once it wakes
    lines = (rehearsal.folder / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    out = [event for event in map(json.loads, lines) if event["event"] == "left_out"]
    assert [(event["party"], event["reason"]) for event in out] == [("north", "no answer within 10 s")] * 2

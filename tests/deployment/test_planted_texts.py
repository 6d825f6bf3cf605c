"""1,000 private texts in the files of four hospitals that are processes: none on the wire, none in a file.

Without TLS all that goes between a hospital and the coordinator passes a relay that keeps every byte.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import PLAIN_POLICY
from planted import COLUMNS, HOSPITALS, draw_planted, found_in, leaks, write_csv, write_hospitals

from pate_fed.cli.demo import make_identities

TEXTS = draw_planted(1000)
STUDY = """
[study]
name = "planted"
[parties]
num_clients = 4
{parties}
[data]
dataset = "table"
pool = "pool.csv"
[data.table]
label = "ill"
classes = ["no", "yes"]
patient = "patient"
[data.table.columns]
age = "number"
dose = "number"
sex = ["f", "m"]
ward = ["A", "B"]
"""
VOTES = """
[privacy]
allow_weak = true
[teacher]
name = "random-forest"
trees = 5
[aggregation]
aggregator = "gnmax"
sigma2 = 2.0
[queries]
labels = 60
batch_size = 30
evaluate = false
[student]
name = "forest"
"""
SUMS = """
[aggregation]
aggregator = "class-sums"
[privacy]
epsilon = 3.0
[secrecy]
secure_sum = true
noise_at = "hospitals"
"""


class Relay:
    """Hands every connection on to an address, and keeps what is said both ways."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._streams: list[bytearray] = []
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def content(self) -> bytes:
        """Each connection's bytes of each way, one after the other."""
        return b"\n".join(map(bytes, self._streams))

    def close(self) -> None:
        """End all connections."""
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                far = socket.create_connection(self._to)
            except OSError:  # the coordinator is not there yet, or not any more
                near.close()
                continue
            self._sockets += [near, far]
            for source, target in ((near, far), (far, near)):
                kept = bytearray()
                self._streams.append(kept)
                threading.Thread(target=self._pump, args=(source, target, kept), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        try:
            while content := source.recv(1 << 16):
                kept += content
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)
        except OSError:  # one of both has gone
            for each in (source, target):
                each.close()


@pytest.fixture
def relay(rehearsal: Any) -> Iterator[Relay]:
    host, _, port = rehearsal.address.partition(":")
    made = Relay(host, int(port))
    yield made
    rehearsal.stop()
    made.close()


@pytest.mark.processes
def test_none_goes_over_the_wire_or_into_a_file(rehearsal: Any, relay: Relay) -> None:
    """Plain votes of three; the fourth has texts in what is read, and refuses once it was asked."""
    folder: Path = rehearsal.folder
    files = write_hospitals(folder, TEXTS)
    parties = "teachers_per_client = 3\nquorum = 0.6"
    (folder / "study.toml").write_text(STUDY.format(parties=parties) + VOTES, encoding="utf-8")
    (folder / "policy.toml").write_text(PLAIN_POLICY, encoding="utf-8")
    server = rehearsal.server("--num-hospitals", "4", "--insecure")

    def hospital(name: str, data: str) -> Any:
        base = ("-m", "pate_fed.client", "--hospital", name, "--data", data, "--server", relay.address)
        return rehearsal.start(name, *base, "--insecure", "--policy", "policy.toml")

    texts = iter(each.text for each in TEXTS)
    records = [["p1", next(texts), next(texts), next(texts), next(texts), next(texts)] for _ in range(60)]
    write_csv(files[3], [COLUMNS, *records])
    hospitals = [hospital(name, f"{name}.csv") for name in HOSPITALS]
    assert server.wait() == 0, server.text
    assert [party.wait(90) for party in hospitals] == [0, 0, 0, 2]
    assert "row 2, column age is not a finite number" in hospitals[3].text
    assert "row 2, column age is not a finite" in (folder / "hospital-west" / "log.jsonl").read_text()
    assert server.last_line.startswith("SUCCESS  ε=")

    sent = relay.content
    assert all(word in sent for word in (b'"classes"', b"answer", *(name.encode() for name in HOSPITALS)))
    assert len(sent) > 3 * 60 * 2 * 8  # the votes at least
    assert found_in(sent, TEXTS) == set()
    assert leaks([folder], TEXTS, without=files) == {}
    assert found_in(files[0].read_bytes(), TEXTS) and (folder / "run" / "report.html").exists()


@pytest.mark.slow
def test_none_is_in_a_file_of_admitted_hospitals_that_sum_under_masks(rehearsal: Any) -> None:
    """With keys, admissions, shares of noise, receipts, an account, and a statement of who left."""
    folder: Path = rehearsal.folder
    files = write_hospitals(folder, TEXTS)
    (folder / "study.toml").write_text(STUDY.format(parties="") + SUMS, encoding="utf-8")
    make_identities(folder)
    hospitals = []
    for name in HOSPITALS:
        options = ("--hospital", name, "--data", f"{name}.csv", "--tls-dir", f"identity-{name}")
        hospitals.append(rehearsal.start(name, "-m", "pate_fed.client", *options))
    options = ("--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
    server = rehearsal.start("server", "-m", "pate_fed.server", *options)
    assert server.wait() == 0, server.text + hospitals[0].text
    assert [party.wait(90) for party in hospitals] == [0] * 4
    metrics = json.loads((folder / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["status"] == "success"
    state = str(rehearsal.state_of("north"))
    for number, command in enumerate(
        (
            ("doctor", "--data", "north.csv", "--tls-dir", "identity-north"),
            ("hospital", "log", state, "--verify", "--dir", "identity-north"),
            ("hospital", "account", "--dir", "identity-north"),
            ("hospital", "leave", state, "--dir", "identity-north", "--yes"),
        )
    ):
        said = rehearsal.start(f"after-{number}", "-m", "pate_fed.cli", *command)
        assert said.wait(90) == 0, said.text
    assert leaks([folder], TEXTS, without=files) == {}

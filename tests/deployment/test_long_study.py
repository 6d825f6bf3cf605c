"""A study of twelve batches whose hospitals come and go: killed, frozen, away for long, and back again."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from builders import PLAIN_POLICY
from vote_study import make_vote_study

from pate_fed.cli.demo import HOSPITALS, make_identities
from pate_fed.identity import Authority
from pate_fed.privacy import verify

pytestmark = pytest.mark.slow

BATCHES, BATCH = 12, 10
# Whoever does not answer a batch within so long is left out of it; in a real study that is four hours.
TIMEOUT_S = 15


def _make(folder: Path) -> Authority:
    """The demonstration with few small trees and twelve batches."""
    made = make_vote_study(folder / "made").folder
    text = (made / "study.toml").read_text(encoding="utf-8")
    text = text.replace("labels = 170", f"labels = {BATCHES * BATCH}\nbatch_size = {BATCH}")
    text = text.replace("epsilon = 3.0", "epsilon = 6.0")  # a patient's two votes, in all batches
    text += f"\n[engine]\nvote_timeout_s = {TIMEOUT_S}\n"
    (folder / "study.toml").write_text(text, encoding="utf-8")
    for name in ("pool", *HOSPITALS):
        (made / f"{name}.csv").rename(folder / f"{name}.csv")
    (folder / "policy.toml").write_text(PLAIN_POLICY, encoding="utf-8")
    make_identities(folder)
    return Authority(folder / "authority")


def _family(party: Any) -> list[psutil.Process]:
    """The command and its SuperNode."""
    own = psutil.Process(party.process.pid)
    return [own, *own.children(recursive=True)]


def _kill(party: Any) -> None:
    """As a power cut: nobody has time to say that it goes."""
    for process in reversed(_family(party)):
        process.kill()
    party.process.wait()


def _signal(party: Any, number: signal.Signals) -> None:
    for process in _family(party):
        process.send_signal(number)


def _rows(folder: Path) -> list[tuple[Any, ...]]:
    path = folder / "run" / "ledger.sqlite"
    if not path.exists():
        return []
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as ledger:
        rows = ledger.execute("SELECT seq, batch_digest FROM entries WHERE seq > 0").fetchall()
    ledger.close()
    return rows


def _until(folder: Path, batches: int, server: Any) -> None:
    """Return when so many batches are on the ledger."""
    end = time.monotonic() + 180
    while len(_rows(folder)) < batches:
        assert time.monotonic() < end and server.process.poll() is None, server.text
        time.sleep(0.1)


def _left_out(folder: Path) -> list[str]:
    lines = (folder / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["party"] for event in map(json.loads, lines) if event["event"] == "left_out"]


def test_twelve_batches_with_hospitals_that_come_and_go(rehearsal: Any) -> None:
    folder = rehearsal.folder
    authority = _make(folder)
    base = ("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
    server = rehearsal.start("server", *base)

    def start(name: str) -> Any:
        own = ("--hospital", name, "--data", f"{name}.csv", "--tls-dir", f"identity-{name}")
        return rehearsal.start(name, "-m", "pate_fed.client", *own, "--policy", "policy.toml")

    hospitals = {name: start(name) for name in HOSPITALS}
    _until(folder, 1, server)
    _kill(hospitals["east"])  # and started again at once
    hospitals["east"] = start("east")
    _until(folder, 4, server)
    _signal(hospitals["south"], signal.SIGSTOP)  # a laptop that is closed, and opened two batches later
    _until(folder, 6, server)
    _signal(hospitals["south"], signal.SIGCONT)
    _until(folder, 8, server)
    _kill(hospitals["west"])  # and away for two batches
    _until(folder, 10, server)
    hospitals["west"] = start("west")
    assert server.wait(300) == 0, server.text
    assert "SUCCESS" in server.last_line
    assert [party.wait(90) for party in hospitals.values()] == [0, 0, 0, 0]
    rows = _rows(folder)
    assert len(rows) == len({digest for _, digest in rows}) == BATCHES  # nothing is charged twice
    public = authority.ledger_key().public_key().public_bytes_raw().hex()
    assert verify(folder / "run" / "ledger.sqlite", public_key=public).answered == BATCHES * BATCH
    with np.load(folder / "run" / "labels.npz") as labels:
        assert len(np.unique(labels["index"])) == len(labels["index"]) == BATCHES * BATCH
    voted = {name: len(re.findall("answered(?: again)?: ", party.text)) for name, party in hospitals.items()}
    assert voted["north"] == BATCHES  # who stays takes part in all
    for name in ("east", "south", "west"):  # who was away is back in later ones, without being asked twice
        missed = _left_out(folder).count(name)
        assert 0 < missed < BATCHES
        assert voted[name] + missed >= BATCHES
        assert "answered before" not in hospitals[name].text
    assert "Traceback" not in server.text + "".join(party.text for party in hospitals.values())

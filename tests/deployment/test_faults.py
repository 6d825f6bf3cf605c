"""Faults with real processes: what is finished stays finished, what cannot finish says why."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import PLAIN_POLICY

from clients.log import read_events

NAMES = ("north", "east", "west")
pytestmark = pytest.mark.slow


def _start(rehearsal: Any, *options: str, study: Callable[[str], str] = str) -> tuple[Any, dict[str, Any]]:
    folder = rehearsal.folder
    text = study(rehearsal.write_tables(private=False))
    (folder / "study.toml").write_text(text, encoding="utf-8")
    (folder / "policy.toml").write_text(PLAIN_POLICY, encoding="utf-8")
    server = rehearsal.server("--insecure", *options)
    return server, {name: _hospital(rehearsal, name) for name in NAMES}


def _hospital(rehearsal: Any, name: str, *options: str) -> Any:
    return rehearsal.hospital(name, f"{name}.csv", "--insecure", "--policy", "policy.toml", *options)


def _entries(run_dir: Path) -> list[tuple[Any, ...]]:
    if not (run_dir / "ledger.sqlite").exists():
        return []
    with sqlite3.connect(f"file:{run_dir / 'ledger.sqlite'}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT seq, batch_digest FROM entries WHERE seq > 0").fetchall()
    connection.close()
    return rows


def _voted(state_dir: Path) -> list[int]:
    """The questions that a hospital voted on, by its own log: how many inputs each."""
    events = [event for _, event in read_events(state_dir) if event]
    return [event["rows"] for event in events if event["event"] == "answered"]


def _wait(what: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("after", "number"),
    [("teaching", signal.SIGKILL), ("a release", signal.SIGKILL), ("a release", signal.SIGINT)],
)
def test_a_killed_coordinator_goes_on_from_its_ledger(
    after: str, number: signal.Signals, rehearsal: Any
) -> None:
    server, hospitals = _start(rehearsal)
    run_dir = rehearsal.folder / "run"
    if after == "teaching":
        hospitals["west"].wait_for("ready to answer", 120)
    else:
        _wait(lambda: len(_entries(run_dir)) == 1)
    server.process.send_signal(number)
    server.process.wait()
    before = _entries(run_dir)
    _wait(lambda: not [line for line in rehearsal.running() if "flower-superlink" in line], 20)
    again = rehearsal.server("--insecure", name="again")
    assert again.wait(240) == 0, again.text
    assert "going on with the run in run, from its ledger" in again.text
    assert [party.wait(60) for party in hospitals.values()] == [0, 0, 0]
    entries = _entries(run_dir)
    assert entries[: len(before)] == before
    assert len({digest for _, digest in entries}) == len(entries) == 2
    with np.load(run_dir / "labels.npz") as labels:
        assert len(labels["index"]) == len(np.unique(labels["index"])) == 60
        assert (labels["label"] >= 0).sum() == 60
    for name, party in hospitals.items():
        # An answer that was on its way at the kill is sent again as it was; no question is voted on anew.
        assert party.text.count("answered: 30 rows (") == 2
        assert _voted(rehearsal.folder / f"hospital-{name}") == [30, 30]
        assert "answered before" not in party.text


def test_a_coordinator_killed_in_a_later_round_asks_and_charges_nothing_twice(rehearsal: Any) -> None:
    noise = 'aggregator = "interactive-gnmax"\nthreshold = 5.0\nsigma1 = 1.0'
    server, hospitals = _start(rehearsal, study=lambda text: text.replace('aggregator = "gnmax"', noise))
    run_dir = rehearsal.folder / "run"
    _wait(lambda: (run_dir / "round-2.npz").exists())
    server.process.kill()
    server.process.wait()
    before, said = _entries(run_dir), (run_dir / "round-2.npz").read_bytes()
    _wait(lambda: not [line for line in rehearsal.running() if "flower-superlink" in line], 20)
    again = rehearsal.server("--insecure", name="again")
    assert again.wait(240) == 0, again.text
    assert [party.wait(60) for party in hospitals.values()] == [0, 0, 0]
    entries = _entries(run_dir)
    assert entries[: len(before)] == before
    assert (run_dir / "round-2.npz").read_bytes() == said
    with np.load(run_dir / "labels.npz") as labels:
        assert len(np.unique(labels["index"])) == len(labels["index"]) == len(labels["reinforced"])
    for party in hospitals.values():
        assert "answered before" not in party.text


def test_a_killed_hospital_comes_back_and_takes_part(rehearsal: Any) -> None:
    server, hospitals = _start(rehearsal)
    hospitals["west"].wait_for("connected;", 60)
    hospitals["west"].process.kill()
    hospitals["west"].process.wait()
    hospitals["west"] = _hospital(rehearsal, "west")
    assert server.wait(300) == 0, server.text
    assert [party.wait(60) for party in hospitals.values()] == [0, 0, 0]


def test_a_hospital_that_is_gone_leaves_the_quorum_to_decide(rehearsal: Any) -> None:
    server, hospitals = _start(rehearsal, "--wait", "30")
    hospitals["west"].wait_for("connected;", 60)
    hospitals["west"].process.kill()
    assert server.wait(300) == 0, server.text  # two of three are enough
    assert [hospitals[name].wait(60) for name in ("north", "east")] == [0, 0]


def test_below_the_quorum_everyone_is_told(rehearsal: Any) -> None:
    (rehearsal.folder / "strict.toml").write_text("least_hospitals = 9\nseeded_noise = true\n")
    server, hospitals = _start(rehearsal)
    for name in ("east", "west"):
        hospitals[name].process.kill()
        hospitals[name].process.wait()
        options = ("--state-dir", f"strict-{name}", "--insecure", "--policy", "strict.toml")
        hospitals[name] = rehearsal.hospital(name, f"{name}.csv", *options)
    assert server.wait(300) == 4, server.text
    assert "the quorum is 2" in server.text
    assert [hospitals[name].wait(60) for name in NAMES] == [4, 5, 5]
    assert "too few hospitals" in hospitals["west"].text
    assert hospitals["north"].last_line.startswith("FAILED  hospital=north")

"""A disk that is full at the ledger: a real one, small and in memory, filled while hospitals vote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import PLAIN_POLICY
from full_disk import fill

from pate_fed.privacy import verify

NAMES = ("north", "east", "west")
pytestmark = pytest.mark.slow


def test_a_full_disk_stops_the_study_which_goes_on_once_there_is_room(
    rehearsal: Any, small_disk: Path
) -> None:
    folder = rehearsal.folder
    (folder / "study.toml").write_text(rehearsal.write_tables(private=False), encoding="utf-8")
    (folder / "policy.toml").write_text(PLAIN_POLICY, encoding="utf-8")
    run_dir = ("--run-dir", "disk/run")

    def hospitals() -> list[Any]:
        options = ("--insecure", "--policy", "policy.toml")
        return [rehearsal.hospital(name, f"{name}.csv", *options) for name in NAMES]

    server, first = rehearsal.server("--insecure", *run_dir), hospitals()
    for party in first:
        party.wait_for("ready to answer", 120)
    fill(small_disk / "filler")
    assert server.wait(120) == 2, server.text
    assert "Traceback" not in server.text
    [sentence] = [line for line in server.text.splitlines() if line.startswith("error: ")]
    assert "No space left" in sentence or "disk is full" in sentence, server.text
    assert server.last_line.startswith("FAILED  ε=")
    assert [party.wait(60) for party in first] == [2, 2, 2]
    charged = verify(small_disk / "run" / "ledger.sqlite").chain.entries
    released = sum(entry.event.asked for entry in charged)

    (small_disk / "filler").unlink()
    again, second = rehearsal.server("--insecure", *run_dir, name="again"), hospitals()
    assert again.wait(240) == 0, again.text
    assert [party.wait(60) for party in second] == [0, 0, 0]
    entries = verify(small_disk / "run" / "ledger.sqlite").chain.entries
    assert entries[: len(charged)] == charged
    assert released + sum(entry.event.asked for entry in entries[len(charged) :]) == 60
    with np.load(small_disk / "run" / "labels.npz") as labels:
        assert len(labels["index"]) == len(np.unique(labels["index"])) == 60
    for party in first:
        assert "answered before" not in party.text

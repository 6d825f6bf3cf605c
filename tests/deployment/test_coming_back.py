"""Hospitals that are killed and started again: with a key and without, between phases and while voting."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import PLAIN_POLICY
from vote_study import make_vote_study

from pate_fed.cli.demo import HOSPITALS

NAMES = ("north", "east", "west")
MOST_S = 60  # a lost seat is free after 20 s, a hospital tries every few seconds; the rest is a slow machine
pytestmark = pytest.mark.slow

# The hospital as it is, but with moments that last long enough to be killed in.
SLOW = """
import sys, time
import clients.hospital as hospital
import clients.kinds.votes as votes
moment = sys.argv.pop()
def slow(owner, name, words):
    whole = getattr(owner, name)
    def slowly(*arguments, **named):
        if words == moment:
            print(words, flush=True)
            time.sleep(600)
        return whole(*arguments, **named)
    setattr(owner, name, slowly)
slow(votes, "train_missing", "training")
slow(hospital.Hospital, "answer", "asked for votes")
slow(votes, "count_votes", "counting votes")
from pate_fed.client import main
sys.exit(main(sys.argv[1:]))
"""


def _kill(party: Any, moment: str) -> None:
    """As a power cut: the SuperNode has no time to say that it goes."""
    party.wait_for(moment, 150)
    family = [psutil.Process(party.process.pid), *psutil.Process(party.process.pid).children(recursive=True)]
    for process in reversed(family):
        process.kill()
    party.process.wait()


def _left_out(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    events = [event for event in map(json.loads, lines) if event["event"] == "left_out"]
    return [(event["party"], event["reason"]) for event in events]


@pytest.mark.parametrize("moment", ["training", "asked for votes", "counting votes"])
def test_without_a_key_it_takes_part_again_under_its_name(moment: str, rehearsal: Any) -> None:
    folder = rehearsal.folder
    (folder / "study.toml").write_text(rehearsal.write_tables(private=False), encoding="utf-8")
    (folder / "policy.toml").write_text(PLAIN_POLICY, encoding="utf-8")
    server = rehearsal.server("--insecure")
    options = ("--insecure", "--policy", "policy.toml")
    others = [rehearsal.hospital(name, f"{name}.csv", *options) for name in NAMES[:2]]
    west = ("--hospital", "west", "--data", "west.csv", "--server", rehearsal.address, *options)
    _kill(rehearsal.start("west-killed", "-c", SLOW, *west, moment), moment)
    again = rehearsal.start("west", "-m", "pate_fed.client", *west)
    assert server.wait(400) == 0, server.text + again.text
    assert [party.wait(60) for party in (*others, again)] == [0, 0, 0]
    assert [out for out in _left_out(folder) if out[0] == "west"] == []
    for party in (*others, again):
        assert party.text.count(": 30 rows (") == 2


def test_with_its_key_it_waits_until_the_old_connection_has_expired(rehearsal: Any) -> None:
    folder = rehearsal.folder
    make_vote_study(folder)
    moment = "asked for votes"
    server = rehearsal.start(
        "server",
        *("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run"),
    )

    def command(name: str) -> tuple[str, ...]:
        return ("--hospital", name, "--data", f"{name}.csv", "--tls-dir", f"identity-{name}")

    others = [rehearsal.start(name, "-m", "pate_fed.client", *command(name)) for name in HOSPITALS[:3]]
    _kill(rehearsal.start("west-killed", "-c", SLOW, *command("west"), moment), moment)
    killed = time.monotonic()
    west = rehearsal.start("west", "-m", "pate_fed.client", *command("west"))
    west.wait_for("connected;", MOST_S)
    seated = time.monotonic() - killed
    west.wait_for("answered: ", MOST_S)
    print(f"killed and started again: connected after {seated:.0f} s, answered after ", end="")
    print(f"{time.monotonic() - killed:.0f} s")
    assert server.wait(400) == 0, server.text + west.text
    assert [party.wait(60) for party in (*others, west)] == [0, 0, 0, 0]
    assert "the last connection with it has not expired yet" in west.text
    assert west.text.count("answered: ") == 1
    assert _left_out(folder) == []

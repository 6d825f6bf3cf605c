"""A hospital that is revoked while real processes are at work: cut off at once, and admitted again."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from vote_study import make_vote_study

from pate_fed.cli.demo import HOSPITALS, make_identities
from pate_fed.identity import Authority
from pate_fed.privacy import verify

pytestmark = pytest.mark.slow

# A hospital that is revoked at the moment in which it counts its votes, and goes on after a while.
SLOW = """
import sys, time
import clients.kinds.votes as votes
count = votes.count_votes
def slowly(*arguments, **named):
    print("counting votes", flush=True)
    time.sleep(12)
    return count(*arguments, **named)
votes.count_votes = slowly
from pate_fed.client import main
sys.exit(main(sys.argv[1:]))
"""


def _demo(folder: Path, *, masked: bool = False) -> Authority:
    """The demonstration with few small trees."""
    make_vote_study(folder)
    if masked:
        for made in ("authority", *(f"identity-{name}" for name in HOSPITALS)):
            shutil.rmtree(folder / made)
        with open(folder / "study.toml", "a", encoding="utf-8") as study:
            study.write("\n[secrecy]\nsecure_sum = true\n")
        make_identities(folder)
    return Authority(folder / "authority")


def _server(rehearsal: Any, *options: str) -> Any:
    base = ("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
    return rehearsal.start("server", *base, *options)


def _options(name: str) -> tuple[str, ...]:
    return ("--hospital", name, "--data", f"{name}.csv", "--tls-dir", f"identity-{name}")


def _hospital(rehearsal: Any, name: str) -> Any:
    return rehearsal.start(name, "-m", "pate_fed.client", *_options(name))


def _left_out(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    events = [event for event in map(json.loads, lines) if event["event"] == "left_out"]
    return [(event["party"], event["reason"]) for event in events]


def test_revoked_and_admitted_again_with_the_same_request_it_takes_part(rehearsal: Any) -> None:
    folder = rehearsal.folder
    authority = _demo(folder)
    server = _server(rehearsal)
    east = _hospital(rehearsal, "east")
    east.wait_for("connected;")
    server.wait_for("1 of 4 connected")
    authority.revoke("east")
    server.wait_for("east is revoked: shut out", 10)
    east.wait_for("refused for now", 30)
    server.wait_for("0 of 4 connected", 10)
    authority.admit(folder / "identity-east" / "east.req", days=60)
    east.wait_for("connected again", 60)  # the command that waited, with the admission that it had
    others = [_hospital(rehearsal, name) for name in HOSPITALS if name != "east"]
    assert server.wait(300) == 0, server.text
    assert [party.wait(60) for party in (*others, east)] == [0, 0, 0, 0]
    assert "warning: " not in server.text  # the summary warns of few test inputs in a row of its own
    assert east.text.count("answered: ") == 1
    assert _left_out(folder) == []
    public = authority.ledger_key().public_key().public_bytes_raw().hex()
    assert verify(folder / "run" / "ledger.sqlite", public_key=public).answered > 0


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_revoked_while_it_votes_the_others_go_on_at_once_without_it(masked: bool, rehearsal: Any) -> None:
    folder = rehearsal.folder
    authority = _demo(folder, masked=masked)
    server = _server(rehearsal)
    others = [_hospital(rehearsal, name) for name in HOSPITALS if name != "west"]
    west = rehearsal.start("west", "-c", SLOW, *_options("west"))
    west.wait_for("counting votes", 240)
    begun = time.monotonic()
    authority.revoke("west")
    server.wait_for("west is revoked: shut out", 10)
    assert server.wait(120) == 0, server.text  # nobody waits until it might be back
    assert time.monotonic() - begun < 75
    assert [party.wait(60) for party in others] == [0, 0, 0]
    assert set(_left_out(folder)) == {("west", "is revoked")}
    assert "SUCCESS" in server.last_line
    metrics = json.loads((folder / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["status"] == "success"
    # What it sent in the end was heard by nobody; it asks for its seat again until its user stops it.
    west.wait_for("refused for now", 60)
    west.process.send_signal(signal.SIGINT)
    assert west.wait(30) == 130
    assert west.text.count("connected;") == 1

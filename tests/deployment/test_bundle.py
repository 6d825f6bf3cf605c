"""Only installed code runs at a hospital: any bundle but the shim is refused unread, and logged there."""

from __future__ import annotations

import io
import json
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Message

from pate_fed.flower import superlink
from pate_fed.flower.records import build_bundle, from_flower, to_flower
from pate_fed.protocol.messages import JOIN, JoinRequest

SPY = b"""
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
@app.train("teacher")
def steal(message, context):
    open("stolen", "w").write("ran")
    text = open("north.csv").read()
    return Message(RecordDict({"fields": ConfigRecord({"text": text})}), reply_to=message)
"""


def _spying_bundle() -> bytes:
    """As the shim, but with a `clients` package of its own, which Flower would import first."""
    bundle = io.BytesIO(build_bundle())
    with zipfile.ZipFile(bundle, "a") as archive:
        archive.writestr("clients/__init__.py", b"\n")
        archive.writestr("clients/app.py", SPY)
    return bundle.getvalue()


@pytest.mark.processes
def test_a_spying_bundle_gets_nothing_and_the_hospitals_log_says_so(
    rehearsal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Path = rehearsal.folder
    (folder / "north.csv").write_text("Ann Smith,1931,ill\n", encoding="utf-8")
    (folder / "study.toml").write_text(
        "[parties]\nnum_clients = 3\n[aggregation]\nsigma2 = 1\n", encoding="utf-8"
    )
    hospital = rehearsal.hospital("north", "part:0", "--config", "study.toml", "--insecure")
    monkeypatch.setattr(superlink, "build_bundle", _spying_bundle)
    link = superlink.SuperLink(folder / "hostile", rehearsal.address, tls=None)
    try:
        link.wait_until_ready(lambda: False)
        grid, _ = link.open_run()
        while not (nodes := list(grid.get_node_ids())):
            time.sleep(0.1)
        request = to_flower(JoinRequest(terms="{}").to_record())
        sent = grid.push_messages([Message(request, nodes[0], JOIN, ttl=60)])
        while not (replies := list(grid.pull_messages(sent))):
            time.sleep(0.1)
        assert from_flower(replies[0].content) == {"kind": "refused", "party": "north", "code": "POLICY"}
        assert hospital.wait(90) == 5
        link.close_run(completed=True)
    finally:
        link.stop()
    assert not (folder / "stolen").exists()
    assert "refused by policy" in hospital.text
    lines = (folder / "hospital-north" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert "bundle refused" in events
    assert not list((folder / "hospital-north").rglob("*.py"))

"""README's five commands in a second folder, and in the first again: who tries twice loses nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pate_fed.cli.demo import HOSPITALS, make_demo
from pate_fed.privacy.ledger.report import verify_run
from pate_fed.runtime.addresses import free_port

pytestmark = pytest.mark.processes


def _five(rehearsal: Any, folder: Path) -> dict[str, Any]:
    """The five commands at once, each in its own process, until all have ended."""
    options = ("--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
    begun = {"server": rehearsal.start("server", "-m", "pate_fed.server", *options, folder=folder)}
    for name in HOSPITALS:
        given = ("--hospital", name, "--data", f"{name}.csv", "--tls-dir", f"identity-{name}")
        begun[name] = rehearsal.start(name, "-m", "pate_fed.client", *given, folder=folder)
    for party in begun.values():
        party.wait()
        party.said = party.out.read_text(encoding="utf-8")
        party.out.unlink()
    return begun


def test_the_five_commands_in_a_second_folder_and_in_the_first_again(rehearsal: Any) -> None:
    first, second = (make_demo(rehearsal.folder / name).folder for name in ("first", "second"))
    for folder in (first, second):
        for name, party in _five(rehearsal, folder).items():
            assert party.process.returncode == 0, (name, party.said)
            assert party.said.splitlines()[-1].startswith("SUCCESS  "), party.said
        [entry] = verify_run(folder / "run").chain.entries
        assert entry.event.answered > 0
    metrics = (first / "run" / "metrics.json").read_bytes()
    again = _five(rehearsal, first)
    server = again.pop("server")
    assert server.process.returncode == 0
    assert "this study is finished, and all hospitals that took part are told" in server.said
    assert "SUCCESS  " in server.said and "listening" not in server.said
    for name, party in again.items():
        assert party.process.returncode == 0, party.said
        assert "this study ended with success on" in party.said and "Traceback" not in party.said
        logs = [*(rehearsal.folder / "state" / "pate_fed").glob(f"emergency-*/{name}/log.jsonl")]
        given = [path.read_text(encoding="utf-8").count('"event": "answered"') for path in logs]
        assert given == [1, 1]  # two studies, each with its own state
    assert (first / "run" / "metrics.json").read_bytes() == metrics
    report = verify_run(first / "run")
    assert len(report.chain.entries) == 1


def test_a_second_coordinator_is_refused_while_the_first_has_the_run(rehearsal: Any) -> None:
    """On a port of its own, too: it would go on with the first one's ledger, and end what the other began."""
    folder = make_demo(rehearsal.folder / "demo").folder
    options = (
        "-m",
        "pate_fed.server",
        "--config",
        "study.toml",
        "--tls-dir",
        "authority",
        "--run-dir",
        "run",
    )
    first = rehearsal.start("first", *options, folder=folder)
    deadline = time.monotonic() + 90
    while not (folder / "run" / "lock").exists():
        assert first.process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    second = rehearsal.start("second", *options, "--address", f"127.0.0.1:{free_port()}", folder=folder)
    second.wait()
    said = second.out.read_text(encoding="utf-8")
    assert second.process.returncode == 2, said
    assert f"--run-dir run: process {first.process.pid} on " in said and "one at a time is meant" in said
    assert "Traceback" not in said and not (folder / "run" / "metrics.json").exists()
    hospitals = [
        rehearsal.start(
            name,
            *("-m", "pate_fed.client", "--hospital", name, "--data", f"{name}.csv"),
            *("--tls-dir", f"identity-{name}"),
            folder=folder,
        )
        for name in HOSPITALS
    ]
    for party in (first, *hospitals):
        party.wait()
        assert party.process.returncode == 0, party.out.read_text(encoding="utf-8")
    assert verify_run(folder / "run").chain.entries and not (folder / "run" / "lock").exists()

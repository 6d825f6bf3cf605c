"""Hospitals that were dead or cut off when the study ended: they learn how, and get their receipts."""

from __future__ import annotations

import hashlib
import signal
import stat
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from sum_study import SumStudy
from watched import kill

pytestmark = pytest.mark.slow
UNTOLD = "not told yet how the study ended: west"


def _files(run_dir: Path) -> dict[str, str]:
    """What the run came to, by digests."""
    names = [path for path in run_dir.iterdir() if path.is_file() and path.name != "hospitals.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in names}


def _has_receipt(study: SumStudy, name: str) -> bool:
    return [event["event"] for event in study.log(name)].count("receipt") == 1


def _ended_without_west(rehearsal: Any) -> tuple[SumStudy, Any]:
    """A success that west has not heard of, which was killed after its answer; the coordinator lingers."""
    study = SumStudy(rehearsal)
    server = study.hold_at("before concluding")
    kill(study.hospitals[3], alone=False)
    study.go_on()
    server.wait_for("SUCCESS")
    server.wait_for(UNTOLD)
    assert server.process.poll() is None
    assert [party.wait(60) for party in study.hospitals[:3]] == [0] * 3
    return study, server


@pytest.mark.processes
def test_one_that_was_dead_is_told_while_the_coordinator_lingers(rehearsal: Any) -> None:
    study, server = _ended_without_west(rehearsal)
    run_dir = study.folder / "run"
    before = _files(run_dir)  # results are written before anyone is told
    assert {"metrics.json", "report.html", "labels.npz", "seal.json", "student.npz"} <= set(before)
    assert not (run_dir / "private").exists()
    other = study.rehearsal.start(
        "other",
        *("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority"),
        "--run-dir",
        "run",
    )
    assert other.wait(60) == 2  # one at a time
    study.hospitals[3] = study.join("west")
    assert server.wait(90) == 0, server.text
    assert "all hospitals are told" in server.text
    study.check()
    assert all(_has_receipt(study, party.name) for party in study.hospitals)
    after = _files(run_dir)
    assert {name: after[name] for name in after} == {name: before[name] for name in before if name != "lock"}


def test_a_containers_stop_ends_the_lingering_and_the_same_command_tells_later(rehearsal: Any) -> None:
    study, server = _ended_without_west(rehearsal)
    server.process.terminate()
    began = time.monotonic()
    assert server.wait(10) == 0, server.text
    print(f"ended within {time.monotonic() - began:.1f} s of SIGTERM")
    assert "not told: west; the same command with this --run-dir tells them" in server.text
    run_dir = study.folder / "run"
    before = _files(run_dir)
    kept = [run_dir / "hospitals.json", *run_dir.glob("received-*")]
    assert len(kept) == 2 and {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    again = study.coordinator()
    again.wait_for("only its outcome and receipts are served")
    again.wait_for("not told yet how the study ended: west")
    study.hospitals[3] = study.join("west")
    assert again.wait(120) == 0, again.text
    study.check()
    assert all(_has_receipt(study, party.name) for party in study.hospitals)
    last = study.coordinator()
    assert last.wait(60) == 0 and "all hospitals that took part are told" in last.text
    assert last.last_line.startswith("this study is finished") and last.text.count("SUCCESS") == 3
    assert _files(run_dir) == before


def test_killed_as_it_lingers_the_same_command_tells(rehearsal: Any) -> None:
    """And the hospital that comes back is one that was cut off, and never ended."""
    study = SumStudy(rehearsal)
    server = study.hold_at("before concluding")
    family = [psutil.Process(study.hospitals[3].process.pid)]
    family += family[0].children(recursive=True)
    for process in family:
        process.send_signal(signal.SIGSTOP)
    study.go_on()
    server.wait_for(UNTOLD)
    kill(server, alone=False)
    again = study.coordinator()
    again.wait_for(UNTOLD)
    for process in family:
        process.send_signal(signal.SIGCONT)
    assert again.wait(180) == 0, again.text
    study.check()
    assert all(_has_receipt(study, party.name) for party in study.hospitals)


def test_the_superlink_dies_as_the_coordinator_lingers(rehearsal: Any) -> None:
    study, server = _ended_without_west(rehearsal)
    [link, *_] = [
        each
        for each in psutil.Process(server.process.pid).children(recursive=True)
        if any("flower-superlink" in word for word in each.cmdline())
    ]
    link.kill()
    server.wait_for("the connection with the hospitals is lost, and made again")
    study.hospitals[3] = study.join("west")
    assert server.wait(120) == 0, server.text
    study.check()
    assert _has_receipt(study, "west")


def test_the_screen_says_who_is_waited_for_and_until_when(rehearsal: Any) -> None:
    """A hospital that is stopped while it gets ready; the screen is no terminal."""
    study = SumStudy(rehearsal, joined=3)
    server = study.coordinator()
    server.wait_for("3 of 4 connected (east, north, south); not yet: west, until ")
    study.hospitals.append(study.join("west"))
    study.hospitals[3].wait_for("connected;")
    family = [psutil.Process(study.hospitals[3].process.pid)]
    family += family[0].children(recursive=True)
    for process in family:
        process.send_signal(signal.SIGSTOP)
    server.wait_for("4 of 4 connected")
    began = time.monotonic()
    server.wait_for("waiting for west", 45)
    print(f"said after {time.monotonic() - began:.0f} s")
    server.wait_for("waiting for west (out of reach, until ", 60)
    for process in family:
        process.send_signal(signal.SIGCONT)
    assert server.wait(300) == 0, server.text
    assert "at the latest" in server.text


def test_without_keys_they_are_known_by_their_answers(rehearsal: Any) -> None:
    from builders import PLAIN_POLICY

    folder, names = rehearsal.folder, ("north", "east", "west")
    (folder / "study.toml").write_text(rehearsal.write_tables(private=False), encoding="utf-8")
    (folder / "policy.toml").write_text(PLAIN_POLICY, encoding="utf-8")
    options = ("--insecure", "--policy", "policy.toml")
    moments = str(folder / "moments")
    from watched import WATCHED

    command = ("--config", "study.toml", "--address", rehearsal.address, "--insecure", "--run-dir", "run")
    server = rehearsal.start("server", "-c", WATCHED, *command, "before concluding|1", moments)
    north, east, west = (rehearsal.hospital(name, f"{name}.csv", *options) for name in names)
    end = time.monotonic() + 200
    while "before concluding" not in (Path(moments).read_text() if Path(moments).exists() else ""):
        assert server.process.poll() is None and time.monotonic() < end, server.text
        time.sleep(0.1)
    kill(west, alone=False)
    (folder / "moments.over").touch()
    server.wait_for(UNTOLD)
    again = rehearsal.hospital("west", "west.csv", *options)
    assert server.wait(120) == 0, server.text
    assert [party.wait(30) for party in (north, east, again)] == [0, 0, 0]

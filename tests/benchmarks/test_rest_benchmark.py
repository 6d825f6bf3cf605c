"""What a hospital and a coordinator cost while they wait for each other; `pytest -m benchmark -s`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from vote_study import make_vote_study

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0


def _start(folder: Path, name: str, *command: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(folder / f"{name}.out", "wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", *command], cwd=folder, stdout=out, stderr=out, env=environment
        )


def _wait_for(folder: Path, name: str, words: str) -> None:
    end = time.monotonic() + 120
    while words not in (text := (folder / f"{name}.out").read_text(encoding="utf-8")):
        assert time.monotonic() < end, f"{name} never said {words!r}: {text}"
        time.sleep(0.2)


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    own = psutil.Process(process.pid)
    return [own, *own.children(recursive=True)]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def test_a_hospital_and_a_coordinator_at_rest(tmp_path: Path) -> None:
    """One hospital of a study of four, with keys: it waits for the coordinator, and that for the others."""
    make_vote_study(tmp_path)
    server = ("pate_fed.server", "--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
    hospital = ("--hospital", "north", "--data", "north.csv", "--tls-dir", "identity-north")
    processes = [_start(tmp_path, "server", *server), _start(tmp_path, "north", "pate_fed.client", *hospital)]
    try:
        _wait_for(tmp_path, "server", "1 of 4 connected")
        _wait_for(tmp_path, "north", "connected;")
        time.sleep(10)  # until nothing of the start goes on
        families = [_family(process) for process in processes]
        before = [[_cpu_s(process) for process in family] for family in families]
        begun = time.monotonic()
        time.sleep(SECONDS)
        seconds = time.monotonic() - begun
        print(f"\nat rest over {seconds:.0f} s    CPU, percent of a core    memory, MB")
        names = (("coordinator", "its SuperLink"), ("hospital", "its SuperNode"))
        for family, first, called in zip(families, before, names, strict=True):
            for process, spent, name in zip(family, first, called, strict=True):
                share = 100 * (_cpu_s(process) - spent) / seconds
                print(f"  {name:15s} {share:24.2f} {process.memory_info().rss / 1e6:18.0f}")
    finally:
        for started in processes:
            started.terminate()
        for started in processes:
            started.wait()

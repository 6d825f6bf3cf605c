"""Twenty hospital processes on one machine: time, memory at rest, traffic; `pytest -m benchmark -s`."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from builders import PLAIN_POLICY

pytestmark = pytest.mark.benchmark

HOSPITALS, CLASSES, QUERIES, RECORDS = 20, 10, 1000, 400
ROOT = Path(__file__).resolve().parents[2]
STUDY = f"""
[study]
name = "twenty"
seed = 5
[parties]
num_clients = {HOSPITALS}
teachers_per_client = 3
[data]
dataset = "table"
pool = "pool.csv"
[data.table]
label = "kind"
classes = [{", ".join(f'"k{number}"' for number in range(CLASSES))}]
[data.table.columns]
c0 = "number"
c1 = "number"
c2 = "number"
c3 = "number"
c4 = "number"
c5 = "number"
[teacher]
name = "random-forest"
[aggregation]
aggregator = "gnmax"
sigma2 = 5.0
[queries]
labels = {QUERIES}
[student]
name = "forest"
"""


def _write(path: Path, rows: int, seed: int) -> None:
    stream = np.random.default_rng(seed)
    kinds = stream.integers(0, CLASSES, rows)
    values = stream.normal(size=(rows, 6)) + np.stack([kinds * (n + 1) % CLASSES for n in range(6)], axis=1)
    lines = [",".join([*(f"c{number}" for number in range(6)), "kind"])]
    lines += [
        ",".join([*(f"{v:.3f}" for v in row), f"k{kind}"]) for row, kind in zip(values, kinds, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _start(folder: Path, name: str, *command: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(folder / f"{name}.out", "wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", *command], cwd=folder, stdout=out, stderr=out, env=environment
        )


def _memory_mb(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """Of the hospital's own process and of its SuperNode, shared pages counted in full."""
    own = psutil.Process(process.pid)
    return own.memory_info().rss / 1e6, sum(child.memory_info().rss for child in own.children()) / 1e6


def _loads_torch(process: subprocess.Popen[bytes]) -> bool:
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")


def _wait_for(folder: Path, name: str, words: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while words not in (folder / f"{name}.out").read_text(encoding="utf-8"):
        assert time.monotonic() < end, f"{name} never said {words!r}"
        time.sleep(0.2)


def test_twenty_hospitals(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "policy.toml").write_text(PLAIN_POLICY, encoding="utf-8")
    _write(tmp_path / "pool.csv", -(-QUERIES * 10 // 9) + 1, 0)  # nine tenths of the pool may be asked about
    names = [f"h{number:02d}" for number in range(HOSPITALS)]
    for number, name in enumerate(names):
        _write(tmp_path / f"{name}.csv", RECORDS, number + 1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    started, processes = time.monotonic(), []
    options = ("--server", address, "--insecure", "--policy", "policy.toml")
    try:
        hospitals = {
            name: _start(
                tmp_path, name, "pate_fed.client", "--hospital", name, "--data", f"{name}.csv", *options
            )
            for name in names
        }
        processes = [*hospitals.values()]
        time.sleep(30)
        server = ("pate_fed.server", "--config", "study.toml", "--insecure", "--address", address)
        processes.append(_start(tmp_path, "server", *server, "--run-dir", "run"))
        begun = time.monotonic()
        _wait_for(tmp_path, names[0], "connected;", 300)
        at_rest = _memory_mb(hospitals[names[0]])
        _wait_for(tmp_path, names[0], "teachers ready", 900)
        taught, torch = _memory_mb(hospitals[names[0]]), any(map(_loads_torch, hospitals.values()))
        codes = [process.wait(900) for process in reversed(processes)]
        seconds = time.monotonic() - begun
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0] * (HOSPITALS + 1)
    said = [(tmp_path / f"{name}.out").read_text(encoding="utf-8") for name in names]
    sent = [int(re.findall(r"sent=(\d+)B", text)[0]) for text in said]
    log = (tmp_path / "hospital-h00" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    trips = sum(json.loads(line)["event"] == "handled" for line in log)
    print(f"\n{HOSPITALS} hospitals, {QUERIES} queries, {CLASSES} classes, {os.cpu_count()} cores")
    print(
        f"  server started to all ended        {seconds:8.1f} s  (hospitals {begun - started:.0f} s before)"
    )
    print(f"  hospital at rest, and SuperNode    {at_rest[0]:8.0f} + {at_rest[1]:.0f} MB")
    print(f"  hospital, taught, and SuperNode    {taught[0]:8.0f} + {taught[1]:.0f} MB")
    print(f"  torch loaded                       {torch!s:>8}")
    print(f"  sent by a hospital, most           {max(sent):8d} bytes")
    print(f"  round trips of a hospital          {trips:8d}")

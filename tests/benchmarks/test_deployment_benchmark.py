"""12 and 30 hospital processes: time, CPU and memory at rest, traffic; `pytest -m benchmark -s`."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psutil
import pytest
from builders import PLAIN_POLICY

pytestmark = pytest.mark.benchmark

CLASSES, QUERIES, RECORDS, REST_S = 10, 1000, 400, 60.0
ROOT = Path(__file__).resolve().parents[2]
STUDY = """
[study]
name = "many"
seed = 5
[privacy]
allow_weak = true
[parties]
num_clients = {hospitals}
teachers_per_client = 3
[data]
dataset = "table"
pool = "pool.csv"
[data.table]
label = "kind"
classes = [{classes}]
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
labels = {queries}
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


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """A command's own process and its SuperNode or SuperLink."""
    own = psutil.Process(process.pid)
    return [own, *own.children()]


def _memory_mb(process: subprocess.Popen[bytes]) -> list[float]:
    """Of the hospital's own process and of its SuperNode, shared pages counted in full."""
    return [member.memory_info().rss / 1e6 for member in _family(process)]


def _cpu_s(processes: Iterable[subprocess.Popen[bytes]]) -> float:
    times = [member.cpu_times() for process in processes for member in _family(process)]
    return float(sum(each.user + each.system for each in times))


def _free_mb() -> float:
    return float(psutil.virtual_memory().available) / 1e6


def _wait_for(folder: Path, name: str, words: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while words not in (folder / f"{name}.out").read_text(encoding="utf-8"):
        assert time.monotonic() < end, f"{name} never said {words!r}"
        time.sleep(0.2)


@pytest.mark.parametrize("count", [12, 30])
def test_many_hospitals(count: int, tmp_path: Path) -> None:
    """All but one wait for the last one, which is when their CPU is measured; then the study runs."""
    names = [f"h{number:02d}" for number in range(count)]
    classes = ", ".join(f'"k{number}"' for number in range(CLASSES))
    study = STUDY.format(hospitals=count, classes=classes, queries=QUERIES)
    (tmp_path / "study.toml").write_text(study, encoding="utf-8")
    (tmp_path / "policy.toml").write_text(PLAIN_POLICY, encoding="utf-8")
    _write(tmp_path / "pool.csv", -(-QUERIES * 10 // 9) + 1, 0)  # nine tenths of the pool may be asked about
    for number, name in enumerate(names):
        _write(tmp_path / f"{name}.csv", RECORDS, number + 1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = ("--server", address, "--insecure", "--policy", "policy.toml")

    def join(name: str) -> subprocess.Popen[bytes]:
        own = ("--hospital", name, "--data", f"{name}.csv", *options)
        return _start(tmp_path, name, "pate_fed.client", *own)

    begun, free = time.monotonic(), _free_mb()
    coordinator = ("pate_fed.server", "--config", "study.toml", "--insecure", "--address", address)
    server = _start(tmp_path, "server", *coordinator, "--run-dir", "run")
    hospitals = list[subprocess.Popen[bytes]]()
    try:
        for name in names[:-1]:
            hospitals.append(join(name))
            time.sleep(1)
        _wait_for(tmp_path, "server", f"{count - 1} of {count} connected", 600)
        time.sleep(10)  # until nothing of the start goes on
        connected = time.monotonic() - begun
        before, before_server, rest = _cpu_s(hospitals), _cpu_s([server]), time.monotonic()
        time.sleep(REST_S)
        rest = time.monotonic() - rest
        share = 100 * (_cpu_s(hospitals) - before) / rest / (count - 1)
        server_share = 100 * (_cpu_s([server]) - before_server) / rest
        at_rest, used = _memory_mb(hospitals[0]), (free - _free_mb()) / 1e3
        last = time.monotonic()
        hospitals.append(join(names[-1]))
        codes = [process.wait(900) for process in (server, *hospitals)]
        seconds = time.monotonic() - last
    finally:
        for process in (server, *hospitals):
            process.kill()
            process.wait()
    assert codes == [0] * (count + 1)
    said = [(tmp_path / f"{name}.out").read_text(encoding="utf-8") for name in names]
    sent = [int(re.findall(r"sent=(\d+)B", text)[0]) for text in said]
    log = (tmp_path / "hospital-h00" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    trips = sum(json.loads(line)["event"] == "handled" for line in log)
    print(f"\n{count} hospitals, {QUERIES} queries, {CLASSES} classes, {os.cpu_count()} cores")
    print(f"  until all but one are connected    {connected:8.1f} s")
    print(f"  last one started to all ended      {seconds:8.1f} s")
    print(
        f"  CPU of a hospital at rest          {share:8.2f} % of a core, the coordinator {server_share:.2f} %"
    )
    print(f"  hospital at rest, and SuperNode    {at_rest[0]:8.0f} + {at_rest[1]:.0f} MB")
    print(f"  memory of all at rest              {used:8.1f} GB")
    print(f"  sent by a hospital, most           {max(sent):8d} bytes")
    print(f"  round trips of a hospital          {trips:8d}")

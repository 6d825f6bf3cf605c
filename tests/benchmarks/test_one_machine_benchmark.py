"""Many light parties on one machine, and how a hospital's process starts: CPU seconds, wall, memory.

    pytest -m benchmark -s tests/benchmarks/test_one_machine_benchmark.py -k "parties and 5000"

CPU and memory are those of the study's whole tree of processes, whatever the backend. A study asks for as few
labels as it may; 10,000 parties take half an hour of a core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).resolve().parents[2]
FEW = ("--teacher", "encoder-head", "--student", "encoder-head", "--labels", "50", "--max-queries", "100")
START = "import clients.process, clients.app, pate_fed.flower.supernode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of a command with all its children: CPU and wall seconds, and the peak of their memory in MB."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def _watched(command: list[str]) -> Cost:
    """Run it; children are looked at ten times a second, as those of Ray are waited for by nobody."""
    start, spent, peak = time.monotonic(), dict[tuple[int, float], float](), 0.0
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    root = psutil.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while root.poll() is None:
        held = 0.0
        for each in (root, *root.children(recursive=True)):
            try:
                with each.oneshot():
                    times, memory = each.cpu_times(), each.memory_info()
                    spent[each.pid, each.create_time()] = times.user + times.system
                    held += (memory.rss - getattr(memory, "shared", 0)) / 2**20
            except psutil.Error:
                continue  # it has just ended
        peak = max(peak, held)
        time.sleep(0.1)
    assert root.returncode == 0
    return Cost(cpu_s=sum(spent.values()), wall_s=time.monotonic() - start, peak_mb=peak)


@pytest.mark.parametrize("parties", [1000, 5000, 10_000])
def test_light_parties(parties: int, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "pate_fed.simulation", "--num-clients", str(parties), *FEW]
    cost = _watched([*command, "--seed", "1", "--quiet", "--run-dir", str(run_dir)])
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    seconds = metrics["seconds"]
    print(
        f"\n{parties} light parties: {cost.cpu_s:.0f} s of CPU, {cost.wall_s:.0f} s, {cost.peak_mb:.0f} MB; "
        f"teaching {seconds['teach']:.0f} s, voting {seconds['vote']:.0f} s, "
        f"{1000 * cost.cpu_s / parties:.0f} ms of CPU a party"
    )
    assert metrics["status"] == "success"


def test_start_of_a_hospital_without_torch() -> None:
    """What its process loads before it connects; PyTorch comes with the first study of images."""
    costs = [_watched([sys.executable, "-c", START]) for _ in range(5)]
    least = min(cost.cpu_s for cost in costs)
    print(f"\nstart of a hospital's process: {least:.2f} s of CPU, the least of {len(costs)}")
    assert least > 0

"""Many light parties on one machine, and how a hospital's process starts: CPU seconds, wall, memory.

    pytest -m benchmark -s tests/benchmarks/test_one_machine_benchmark.py -k "parties and 5000"

CPU and memory are those of the study's whole tree of processes, whatever the backend. A study asks for as few
labels as it may; 10,000 parties take half an hour of a core.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from costs import watched

pytestmark = pytest.mark.benchmark

FEW = ("--teacher", "encoder-head", "--student", "encoder-head", "--labels", "50", "--max-queries", "100")
START = "import clients.process, clients.app, pate_fed.flower.supernode"


@pytest.mark.parametrize("parties", [1000, 5000, 10_000])
def test_light_parties(parties: int, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "pate_fed.simulation", "--num-clients", str(parties), *FEW]
    cost = watched([*command, "--seed", "1", "--quiet", "--run-dir", str(run_dir)])
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
    costs = [watched([sys.executable, "-c", START]) for _ in range(5)]
    least = min(cost.cpu_s for cost in costs)
    print(f"\nstart of a hospital's process: {least:.2f} s of CPU, the least of {len(costs)}")
    assert least > 0

"""What masks add to the default study of 250 parties; run with `pytest -m benchmark -s` (about 6 minutes)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
WAYS = {
    "votes as they are": (),
    "masked": ("--secure-sum",),
    "masked, noise of the hospitals": ("--secure-sum", "--noise-at", "hospitals"),
}


@pytest.mark.benchmark
def test_the_default_study_with_and_without_masks(tmp_path: Path) -> None:
    base = 0.0
    print(f"\n{'flower-simulation --num-clients 250':<36} {'teach':>7} {'vote':>7} {'total':>7}  s")
    for number, (way, options) in enumerate(WAYS.items()):
        run_dir = tmp_path / f"run{number}"
        command = [sys.executable, "-m", "pate_fed.simulation", "--num-clients", "250", "--quiet", *options]
        subprocess.run(
            [*command, "--run-dir", str(run_dir)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        )
        metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
        seconds, epsilon = metrics["seconds"], metrics["privacy"]["coordinator"]["epsilon"]
        base = base or seconds["total"]
        print(
            f"{way:<36} {seconds['teach']:7.1f} {seconds['vote']:7.1f} {seconds['total']:7.1f}  "
            f"{seconds['total'] / base - 1:+.0%}, ε={metrics['privacy']['student']['data_independent']:.2f}, "
            f"coordinator ε={'unbounded' if epsilon is None else f'{epsilon:.2f}'}, "
            f"{metrics['queries_asked']} asked, {metrics['queries_answered']} answered, "
            f"student {metrics['accuracy']['student']:.1%}"
        )

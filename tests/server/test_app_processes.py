"""Coordinators in processes of their own: interrupted, killed, and two that want one directory."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from commands import forks, simulate

from pate_fed.privacy import verify

Start = Callable[..., BaseProcess]


@pytest.fixture(scope="module")
def start(cache: Path) -> Start:
    """Starts `pate_fed.simulation` in a process of its own, forked where the libraries are loaded."""
    context, number = forks(), count()

    def start(config: Path, run_dir: Path, *options: str) -> BaseProcess:
        study = ["--config", str(config), "--run-dir", str(run_dir), "--device", "cpu", "--backend", "inline"]
        process = context.Process(target=simulate, args=([*study, *options], f"{run_dir}-{next(number)}"))
        process.start()
        return process

    return start


def test_of_two_runs_at_once_one_gets_the_directory(start: Start, config: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    both = [start(config, run_dir, "--quiet") for _ in range(2)]
    for process in both:
        process.join(120)
    assert sorted([both[0].exitcode, both[1].exitcode]) == [0, 2]
    [loser] = [text for text in (path.read_text() for path in tmp_path.glob("*.err")) if text]
    assert "--run-dir" in loser
    assert "Traceback" not in loser
    assert verify(run_dir / "ledger.sqlite").answered > 0


def _wait_for(path: Path, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


def test_ctrl_c_ends_cleanly_with_what_was_spent(start: Start, config: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(config, run_dir, "--student-epochs", "100000")
    _wait_for(run_dir / "ledger.sqlite")
    end = time.monotonic() + 60
    while '"event": "epoch"' not in (run_dir / "log.jsonl").read_text(encoding="utf-8"):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(180)
    assert process.exitcode == 130
    [out, err] = [next(tmp_path.glob(f"*.{kind}")).read_text(encoding="utf-8") for kind in ("out", "err")]
    assert "Traceback" not in err
    assert out.splitlines()[-1].startswith("ABORTED  ε=")
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["status"] == "aborted"
    assert metrics["privacy"]["student"]["data_independent"] > 0
    assert verify(run_dir / "ledger.sqlite").answered == metrics["queries_answered"] > 0
    assert metrics["accuracy"]["student"] is None


def _releases(run_dir: Path) -> list[dict[str, int]]:
    log = run_dir / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    found = [line for line in lines if line.startswith('{"event": "release"') and line.endswith("}")]
    return [json.loads(line) for line in found]


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_killed_at_any_moment_the_ledger_holds_every_label(
    kills: int, start: Start, config: Path, tmp_path: Path
) -> None:
    """Small batches, so that many kills fall between a vote, its ledger row and its use."""
    small = config.read_text(encoding="utf-8").replace("batch_size = 50", "batch_size = 3")
    (tmp_path / "study.toml").write_text(small, encoding="utf-8")
    moments = random.Random(20)
    for attempt in range(kills):
        run_dir = tmp_path / f"run{attempt}"
        process = start(tmp_path / "study.toml", run_dir, "--labels", "300")
        _wait_for(run_dir / "ledger.sqlite")
        wanted, end = moments.randint(attempt, 25), time.monotonic() + 60
        while len(_releases(run_dir)) < wanted:
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.02))
        process.kill()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        report, released = verify(run_dir / "ledger.sqlite"), _releases(run_dir)
        assert len(released) >= wanted  # so the test could have failed
        assert report.asked >= sum(line["asked"] for line in released)
        assert report.answered >= sum(line["answered"] for line in released)
        assert not (run_dir / "labels.npz").exists()  # it was killed before the end

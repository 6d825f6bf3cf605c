"""A whole study as a command: in one process, on Ray with the same labels, and from another directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pate_fed.privacy import verify
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.report.log import read_result

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _run(
    config: Path, environment: dict[str, str], run_dir: Path, *options: str, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    base = [sys.executable, "-m", "pate_fed.simulation", "--config", str(config), "--run-dir", str(run_dir)]
    command = [*base, "--device", "cpu", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def inline(
    networks: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    run_dir = tmp_path_factory.mktemp("inline") / "run"
    return run_dir, _run(networks, environment, run_dir, "--backend", "inline", "--seed", "7")


def test_an_inline_study_succeeds_and_leaves_everything(
    inline: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    run_dir, done = inline
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1].startswith("SUCCESS  ε=")
    names = {path.name for path in run_dir.iterdir()}
    assert names >= {
        "study.toml",
        "ledger.sqlite",
        "labels.npz",
        "student.pt",
        "report.html",
        "log.jsonl",
        "metrics.json",
    }
    assert not {name for name in names if "teacher" in name or name.endswith(".part")}
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["status"] == "success"
    assert metrics["num_clients"] == metrics["num_teachers"] == 6
    assert 0 < metrics["queries_answered"] <= 40
    assert metrics["privacy"]["coordinator"]["epsilon"] is None
    assert metrics["privacy"]["student"]["data_independent"] > 0
    assert metrics["accuracy"]["ensemble"] is not None
    assert metrics["seconds"]["total"] >= metrics["seconds"]["teach"] > 0


def test_labels_ledger_and_metrics_agree(inline: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run_dir, _ = inline
    report = verify(run_dir / "ledger.sqlite")
    metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
    with np.load(run_dir / "labels.npz") as labels:
        assert labels["index"].tolist() == list(range(report.asked))
        assert int(labels["answered"].sum()) == report.answered == metrics["queries_answered"]
        assert ((labels["label"] >= 0) == labels["answered"]).all()
    assert report.asked == metrics["queries_asked"]
    promised = guaranteed_epsilon(report.chain.terms)
    assert promised is not None
    assert metrics["privacy"]["student"]["data_independent"] == pytest.approx(promised, abs=1e-5)
    assert metrics["privacy"]["student"]["data_independent"] >= promised > report.epsilon


def test_teachers_vote_on_what_was_asked_and_on_the_test_inputs(
    inline: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    events = [json.loads(line) for line in (inline[0] / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    study = next(event for event in events if event["event"] == "study")
    *asked, measured = [event["queries"] for event in events if event["event"] == "vote"]
    assert 0 < sum(asked) <= study["terms"]["max_queries"] and measured == study["test_size"] > 0
    assert sum(asked) + measured < study["terms"]["pool_size"]


def test_epsilon_is_shown_along_the_run(inline: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run_dir, _ = inline
    spent, report = read_result(run_dir).spending, verify(run_dir / "ledger.sqlite")
    assert spent is not None
    assert len(spent.asked) > len(report.chain.entries)
    assert (spent.asked[-1], spent.answered[-1]) == (report.asked, report.answered)
    assert spent.epsilon[-1] == pytest.approx(report.epsilon, rel=1e-6)
    assert list(spent.epsilon) == sorted(spent.epsilon)


def test_seeded_noise_is_called_not_private(inline: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run_dir, _ = inline
    assert "not private: seeded noise" in (run_dir / "report.html").read_text(encoding="utf-8")


def test_the_installed_package_has_all_it_needs(
    inline: tuple[Path, subprocess.CompletedProcess[str]], environment: dict[str, str], tmp_path: Path
) -> None:
    """From another directory, so that what was installed is used and not the checkout."""
    command = [sys.executable, "-m", "pate_fed.cli", "report", str(inline[0]), "--publishable"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "wrote" in done.stdout
    code = "import pate_fed.flower; pate_fed.flower.prepare_environment(); import clients.app, server.app"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=120)


def test_ray_gives_the_same_labels_for_the_same_seed(
    inline: tuple[Path, subprocess.CompletedProcess[str]],
    networks: Path,
    environment: dict[str, str],
    tmp_path: Path,
    plant_foreign_code: Callable[[Path], None],
) -> None:
    run_dir, _ = inline
    plant_foreign_code(tmp_path)  # a whole study, up to its student, imports none of it
    there = {**environment, "PYTHONPATH": str(ROOT)}
    options = ("--backend", "ray", "--seed", "7", "--quiet")
    done = _run(networks, there, tmp_path / "run", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    with np.load(run_dir / "labels.npz") as ours, np.load(tmp_path / "run" / "labels.npz") as theirs:
        for name in ("index", "answered", "label"):
            np.testing.assert_array_equal(ours[name], theirs[name])
    # Evaluation totals over the whole pool are equal too, as far as the two accuracies can tell.
    first, second = (
        json.loads((path / "metrics.json").read_text(encoding="utf-8"))["accuracy"]
        for path in (run_dir, tmp_path / "run")
    )
    assert first == second
    assert done.stderr == "warning: with --seed the noise can be repeated, so it protects nobody\n"
    assert len(done.stdout.splitlines()) == 1

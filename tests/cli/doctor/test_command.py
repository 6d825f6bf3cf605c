"""`pate-fed doctor` as a user runs it: its table, its JSON and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pate_fed.cli.doctor import command, machine
from pate_fed.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
CHECKS = "libraries,disk,permissions,open files,memory,clock,masks,noise,Flower,GPU".split(",")


def _doctor(folder: Path, *options: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, in which every place that it could write to is the test's."""
    for name in ("here", "home", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    found = [str(each) for each in (path, ROOT) if each is not None]
    return subprocess.run(
        [sys.executable, "-m", "pate_fed.cli", "doctor", *options],
        cwd=folder / "here",
        capture_output=True,
        text=True,
        timeout=120,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(found),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
        },
    )


@pytest.mark.processes
def test_without_options_it_looks_at_this_machine_and_leaves_nothing(tmp_path: Path) -> None:
    done = _doctor(tmp_path, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert [row["check"] for row in found["checks"]] == CHECKS
    assert {row["result"] for row in found["checks"]} <= {"ok", "warning"}
    assert all(row["said"] for row in found["checks"])
    assert len(found["not_checked"]) == 2
    assert [path for path in tmp_path.rglob("*") if path.parent != tmp_path] == []
    assert done.stderr == ""


def test_libraries_of_other_versions_and_a_broken_flower(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "rich-15.1.dist-info").mkdir(parents=True)
    (other / "rich-15.1.dist-info" / "METADATA").write_text("Name: rich\nVersion: 15.1\n")
    (other / "flwr").mkdir()
    (other / "flwr" / "__init__.py").write_text("raise ImportError('no flwr here')\n")
    (other / "torch.py").write_text("raise ImportError('no torch here')\n")
    done = _doctor(tmp_path, path=other)
    assert done.returncode == 1
    rows = {line[9:23].strip(): line for line in done.stdout.splitlines()}
    assert rows["libraries"].startswith("problem") and "rich is 15.1, not <15,>=14" in rows["libraries"]
    assert rows["Flower"].startswith("problem")
    assert "does not start (ImportError: no flwr here)" in rows["Flower"]
    assert rows["masks"].startswith("ok")
    assert done.stdout.splitlines()[-1].startswith("3 problems")


def test_an_installation_that_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "cryptography.py").write_text("raise ImportError('no cryptography here')\n")
    done = _doctor(tmp_path, "--tls-dir", "identity", path=tmp_path / "other")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "no cryptography here" in done.stderr and "pate-fed doctor without options" in done.stderr


def test_nothing_that_others_wrote_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    command._show("problem", "TLS", "from CN=\x1b[2Jevil\n")
    assert capsys.readouterr().out == "problem  TLS           from CN=?[2Jevil?\n"


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "machine_findings", lambda *_: iter(()))


@pytest.mark.usefixtures("healthy")
def test_the_table_on_a_terminal_and_in_a_file(
    site: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["doctor", "--tls-dir", "identity-north", "--data", "north.csv"]
    assert main(command) == 0
    piped = capsys.readouterr().out
    assert "benign" not in piped and "ok       records" in piped
    assert "--server 127.0.0.1:" in piped  # the address of the admission, which nobody connected to
    assert piped.splitlines()[-1] == "nothing is wrong"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "95 records" in shown
    own = [line for line in shown.splitlines() if "state-home" not in line]  # a path is not broken
    assert max(map(len, own)) <= 80
    assert main([*command, "--format", "json"]) == 0
    assert "benign" not in capsys.readouterr().out


@pytest.mark.usefixtures("healthy")
def test_the_exit_code_is_that_of_the_first_problem(site: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("policy.toml").write_text("most_queries = 3")
    hospital = ["doctor", "--hospital", "north", "--tls-dir", "identity-north", "--policy", "policy.toml"]
    assert main([*hospital, "--data", "none.csv"]) == 5
    assert capsys.readouterr().out.splitlines()[-1] == "2 problems"
    assert main([*hospital, "--data", "none.csv", "--format", "json"]) == 5
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 5
    assert [row["check"] for row in found["checks"] if row["result"] == "problem"] == ["policy", "data"]
    assert main(["doctor", "--tls-dir", "authority"]) == 0  # the folder tells whose keys are in it
    assert "4 admitted" in capsys.readouterr().out
    assert main([*hospital, "--address", "127.0.0.1:1"]) == 2
    assert "one side at a time" in capsys.readouterr().err

"""`pate-fed doctor` about this machine, as a user runs it, and broken machines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pate_fed.cli.doctor import command, machine
from pate_fed.cli.doctor.findings import PROBLEM, WARNING, CheckResult, Finding, run_check
from pate_fed.cli.doctor.machine import Requirements
from pate_fed.cli.main import main
from pate_fed.privacy import SystemNoise
from pate_fed.secure_sum.masks import Masker

ROOT = Path(__file__).resolve().parents[3]
CHECKS = [
    "libraries",
    "disk",
    "permissions",
    "open files",
    "memory",
    "clock",
    "masks",
    "noise",
    "Flower",
    "GPU",
]


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
    (other / "flwr-1.41.0.dist-info").mkdir(parents=True)
    (other / "flwr-1.41.0.dist-info" / "METADATA").write_text("Name: flwr\nVersion: 1.41.0\n")
    (other / "flwr").mkdir()
    (other / "flwr" / "__init__.py").write_text("raise ImportError('no flwr here')\n")
    done = _doctor(tmp_path, path=other)
    assert done.returncode == 1
    rows = {line[9:23].strip(): line for line in done.stdout.splitlines()}
    assert rows["libraries"].startswith("problem") and "flwr is 1.41.0, not <1.40,>=1.39" in rows["libraries"]
    assert rows["Flower"].startswith("problem")
    assert "does not start (ImportError: no flwr here)" in rows["Flower"]
    assert rows["masks"].startswith("ok")
    assert done.stdout.splitlines()[-1].startswith("2 problems")


def test_an_installation_that_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "cryptography.py").write_text("raise ImportError('no cryptography here')\n")
    done = _doctor(tmp_path, "--tls-dir", "identity", path=tmp_path / "other")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "no cryptography here" in done.stderr and "pate-fed doctor without options" in done.stderr


def test_nothing_that_others_wrote_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    command._show("problem", "TLS", "from CN=\x1b[2Jevil\n")
    assert capsys.readouterr().out == "problem  TLS           from CN=?[2Jevil?\n"


def _rows(ask: Any) -> list[Finding]:
    return list(run_check("it", ask))


def _requirements(**values: Any) -> Requirements:
    return Requirements(**{"what": "a study", "memory": 1.0, "files": 1, "folders": tuple, **values})


def test_too_small_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = _rows(partial(machine._open_files, _requirements(files=10**12)))
    assert (row.severity, row.exit_code) == (PROBLEM, 1) and "ulimit -n" in row.text
    (row,) = _rows(partial(machine._memory, _requirements(memory=1e18)))
    assert row.severity == WARNING and "end other programs" in row.text
    for free, result, code in ((10**6, PROBLEM, 6), (10**8, WARNING, 0), (10**12, "ok", 0)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        (row,) = _rows(partial(machine._disk, _requirements(folders=lambda: (tmp_path / "not" / "yet",))))
        assert (row.severity, row.exit_code) == (result, code)
        assert str(tmp_path) in row.text


def test_a_folder_that_cannot_be_written_and_none_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (row,) = _rows(partial(machine._disk, _requirements(folders=lambda: (tmp_path / "file" / "runs",))))
    assert (row.severity, row.exit_code) == (PROBLEM, 2) and "cannot be written" in row.text

    def nowhere() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    (row,) = _rows(machine._flower)
    assert row.severity == WARNING and "TMPDIR" in row.text
    (row,) = _rows(partial(machine._disk, machine.simulation()))
    assert (row.severity, row.exit_code) == (PROBLEM, 1) and "temporary directory" in row.text


def test_a_gpu_that_torch_sees_and_one_that_it_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def old_driver() -> bool:
        warnings.warn("the NVIDIA driver is too old", UserWarning, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", old_driver)
    (row,) = _rows(machine._gpu)
    assert row.severity == WARNING and "driver is too old" in row.text
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (139 * 10**9, 150 * 10**9))
    (row,) = _rows(machine._gpu)
    assert row.severity == "ok" and "NVIDIA H200 (139.0 GB free)" in row.text


@pytest.mark.parametrize(
    ("mask", "result"), [(0o022, "ok"), (0o077, "ok"), (0o000, WARNING), (0o700, PROBLEM)]
)
def test_permissions_of_new_files(mask: int, result: str) -> None:
    before = os.umask(mask)
    try:
        (row,) = _rows(machine._permissions)
        assert os.umask(mask) == mask  # looking does not change it
    finally:
        os.umask(before)
    assert row.severity == result


def test_a_clock_that_was_never_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    (row,) = _rows(machine._clock)
    assert row.severity == PROBLEM and "1970-01-01" in row.text and "set the clock" in row.text


@pytest.mark.parametrize(("kept", "result"), [(True, "ok"), (False, WARNING), (None, "ok")])
def test_a_clock_that_nobody_keeps(kept: bool | None, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_is_synchronised", lambda: kept)
    (row,) = _rows(machine._clock)
    assert row.severity == result


def test_masks_that_do_not_cancel_and_noise_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _rows(machine._masks)[0].severity == "ok"
    monkeypatch.setattr(Masker, "take", lambda self, total, key: None)
    (row,) = _rows(machine._masks)
    assert (row.severity, row.exit_code) == (PROBLEM, 6)
    for drawn in (lambda: np.zeros(4000), lambda: np.random.default_rng().normal(0, 20, 4000)):
        monkeypatch.setattr(SystemNoise, "discrete_gaussian", lambda self, shape, sigma, drawn=drawn: drawn())
        (row,) = _rows(machine._noise)
        assert row.severity == PROBLEM and "spread" in row.text


def test_a_check_that_fails_in_a_way_of_its_own_is_a_finding_and_ends_nothing() -> None:
    def broken() -> CheckResult:
        raise RuntimeError("P017 is 43 years old")

    (row,) = run_check("it", broken)
    assert (row.severity, row.exit_code) == (PROBLEM, 1) and "RuntimeError" in row.file_text
    (row,) = run_check("it", broken, private=True)
    assert "P017" in row.text and "P017" not in row.file_text


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "machine_findings", lambda load: iter(()))


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
    assert max(map(len, shown.splitlines())) <= 80
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


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from pate_fed.cli.main import make_parser\n"
        "make_parser().format_help()\n"
        "heavy = {'torch', 'flwr', 'ray', 'scipy', 'sklearn', 'cryptography', 'psutil'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

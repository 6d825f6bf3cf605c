"""README.md: short enough, and its blocks do what they say."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pate_fed.cli.demo import make_demo

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", TEXT)
[PYTHON] = [body for language, body in BLOCKS if language == "python"]


def test_it_is_a_screen_and_a_half() -> None:
    assert len(TEXT.splitlines()) <= 150
    assert len([line for line in PYTHON.splitlines() if line]) <= 10


def test_the_second_command_is_the_one_that_continuous_integration_reads() -> None:
    after = TEXT.split("<!-- test command -->\n```\n")[1].split("\n```")[0]
    assert "pip install -q '.[test]'" in after and after.endswith("-m pytest -n 2")


def test_the_factors_are_those_of_their_ε_rounded_up() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \|", TEXT, re.M)
    assert len(rows) == 4
    for epsilon, factor in rows:
        assert math.exp(float(epsilon)) <= float(factor) <= 1.01 * math.exp(float(epsilon))


def test_the_five_commands_are_the_demonstration_s(tmp_path: Path) -> None:
    [block] = [body for _, body in BLOCKS if "demo hospitals" in body]
    assert block.splitlines()[1:] == make_demo(tmp_path / "demo").lines()


@pytest.mark.slow
def test_the_lines_of_python_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PYTHON],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    [(epsilon, accuracy)] = re.findall(r"(?m)^(\S+) (0\.\d+)$", done.stdout)
    assert float(epsilon) <= 2.0 and float(accuracy) > 0.5


@pytest.mark.slow
def test_own_csv_files_become_a_report_with_two_commands(tmp_path: Path) -> None:
    [block] = [body for _, body in BLOCKS if "study new" in body]
    make_demo(tmp_path / "demo")
    for path in (tmp_path / "demo").glob("*.csv"):
        path.rename(tmp_path / path.name)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    for command in block.splitlines():
        environment = {**os.environ, "PATH": path}
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout.splitlines()[-1]
    [report] = (tmp_path / "runs").glob("*/report.html")
    assert report.stat().st_size > 10_000
    told = (ROOT / "docs" / "reference" / "run-directory.md").read_text(encoding="utf-8")
    assert not [path.name for path in report.parent.iterdir() if f"`{path.name}" not in told]
    metrics = json.loads((report.parent / "metrics.json").read_text(encoding="utf-8"))
    assert not [key for key in metrics if f"`{key}" not in told]

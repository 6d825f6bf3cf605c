"""`pate-fed`: its commands put together, started as a user starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pate_fed
from pate_fed.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "pate_fed.cli", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"pate_fed {pate_fed.__version__}\n")


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from pate_fed.cli.main import make_parser\n"
        "make_parser().format_help()\n"
        "heavy = {'torch', 'flwr', 'ray', 'scipy', 'sklearn', 'cryptography', 'psutil', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_an_interrupted_command_says_so(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pate_fed.config.template.study_template", interrupted)
    assert run("study", "new", "--out", str(tmp_path / "study.toml"))[::2] == (130, "interrupted\n")


def test_on_a_terminal_lines_end_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", "--epsilon", "2", "--teachers", "20", "--classes", "3", "--max-queries", "50"]
    assert main(command) == 0
    plain = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert max(map(len, plain.splitlines())) > 100 and max(map(len, shown.splitlines())) <= 60
    assert shown.split() == plain.split()

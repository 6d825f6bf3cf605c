"""A hospital's command: wrong input ends it with one sentence before anything starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from pate_fed.client import main

Refused = Callable[[Callable[[Sequence[str]], int], Sequence[str]], tuple[str, str]]
RECORDS = ("--hospital", "a", "--data", "x")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((*RECORDS, "--server", "h:1", "--insecure-anywhere"), "say it twice"),
        (("--hospital", "a b", "--data", "x", "--server", "h:1", "--insecure"), "--hospital"),
        ((*RECORDS, "--server", "h:1"), "--tls-dir"),
        ((*RECORDS, "--server", "127.0.0.1", "--insecure"), "HOST:PORT"),
        (("--hospital", "a", "--dta", "x"), "did you mean --data?"),
        (("--hospital", "a"), "required: --data"),
    ],
)
def test_wrong_input_ends_with_a_sentence_before_anything_starts(
    options: tuple[str, ...], words: str, refused: Refused
) -> None:
    out, error = refused(main, options)
    assert words in error and out.startswith("FAILED  hospital=")


def test_a_hospital_starts_without_torch_and_without_flowers_server() -> None:
    """Both together would take its process several seconds before it connects."""
    code = """import sys, clients.process, clients.app, pate_fed.flower.supernode
heavy = {"torch", "ray", "sqlalchemy", "alembic", "matplotlib", "scipy", "fastapi", "requests"}
found = heavy & sys.modules.keys()
sys.exit(f"loaded: {found}" if found else 0)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""The frame of the commands that run a study: an exit code and an outcome line, whatever happens."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from pate_fed.errors import PateFedError, QuorumError
from pate_fed.runtime.command import run_study_command


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (QuorumError("too few"), 4, "failed"),
        (PateFedError("gone"), 1, "failed"),
        (KeyboardInterrupt(), 130, "aborted"),
    ],
)
@pytest.mark.parametrize("resumes", [False, True])
def test_every_end_has_its_exit_code_and_outcome_line(
    error: BaseException,
    code: int,
    status: str,
    resumes: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "ledger.sqlite").touch()

    def run(*_: object) -> int:
        raise error

    given = Namespace(format="json", run_dir=str(tmp_path))
    assert run_study_command(lambda: given, run, resumes=resumes) == code
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["status"], outcome["epsilon"]) == (status, None if resumes else 0)


def test_what_the_study_returns_is_the_exit_code() -> None:
    given = Namespace(format="text", run_dir=None)
    assert run_study_command(lambda: given, lambda arguments, stop, started: 3, resumes=True) == 3

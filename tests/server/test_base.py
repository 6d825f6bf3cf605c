"""How a study's end is told: a status, an exit code and one line, and a full disk in words."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pate_fed.errors import BudgetError, IntegrityError
from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.serverapp import Grid

from pate_fed.kinds.terms import Terms
from pate_fed.report.log import Waiting
from pate_fed.structure.faults import Fault
from server.base import BaseCoordinator, explain_disk_error
from server.exchange import Stopped

TERMS = cast(Terms, SimpleNamespace(digest="ab" * 32))


class _Study(BaseCoordinator):
    def __init__(self, error: Exception | None) -> None:
        super().__init__(TERMS, threading.Event())
        self.raised = error

    def note_waiting(self, event: Waiting) -> None:
        raise AssertionError("nobody is waited for")

    def _note_fault(self, fault: Fault) -> None:
        raise AssertionError("nobody plays parties")

    def _summary(self) -> str:
        return "ε=1 labels=2"

    def _serve(self, grid: Grid) -> None:
        if self.raised is not None:
            raise self.raised


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (None, "success", 0),
        (Stopped(), "aborted", 130),
        (BudgetError("no"), "failed", 3),
        (ValueError("Ann Smith"), "failed", 2),  # raised in code that is not ours
    ],
)
def test_an_end_is_told_without_the_words_of_a_fault(error: Exception | None, status: str, code: int) -> None:
    study = _Study(error)
    app: Any = study._server_app()
    app(SimpleNamespace(), SimpleNamespace(run_config={}))
    notice = study.outcome_notice()
    assert (notice.status, notice.exit_code, notice.summary) == (status, code, "ε=1 labels=2")
    assert study.terms_digest == "ab" * 32
    study._require_served()
    assert study.exit_code == code


def test_an_app_that_never_ran_is_a_fault() -> None:
    study = _Study(None)
    study._require_served()
    assert (study.status, study.exit_code) == ("failed", 1)


def test_a_full_disk_is_explained_and_other_errors_are_not() -> None:
    full = explain_disk_error(OSError(errno.ENOSPC, "No space left on device"), Path("run"))
    assert isinstance(full, IntegrityError) and "run: cannot be written (No space" in str(full)
    for error in (OSError(errno.ENOENT, "No such file"), ValueError("x")):
        assert explain_disk_error(error, Path("run")) is error

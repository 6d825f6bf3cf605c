"""How a study's end is told: a status, an exit code and one line, and a full disk in words."""

from __future__ import annotations

import errno
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import make_terms

from pate_fed.config.backend import Engine
from pate_fed.errors import BudgetError, InputError, IntegrityError
from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.serverapp import Grid

from pate_fed.privacy import LedgerTerms, SeededNoise
from pate_fed.report.result import StudyRecord
from pate_fed.report.terminal import make_progress
from pate_fed.runtime.signals import INTERRUPTED
from server.app import BaseCoordinator
from server.base import RunDirError, explain_disk_error
from server.exchange import Stopped
from server.kinds import Setup


class _Setup(Setup):
    def record(self, fixed: LedgerTerms) -> StudyRecord:
        raise AssertionError("nothing is logged")


class _Study(BaseCoordinator):
    def __init__(self, error: Exception | None, run_dir: Path) -> None:
        engine, noise = Engine(backend="inline"), SeededNoise(1)
        setup = _Setup(terms=make_terms(), run_dir=run_dir, engine=engine, text="", noise=noise)
        progress = make_progress(True)
        super().__init__(setup, threading.Event(), started=0.0, progress=progress, quiet=True, resume=False)
        self.raised = error

    def _serve(self, grid: Grid) -> None:
        if self.raised is not None:
            raise self.raised


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (None, "success", 0),
        (Stopped(), "aborted", 130),
        (BudgetError("no"), "failed", 3),
        (OSError(errno.ENOSPC, "No space left"), "failed", 2),
        (ValueError("Ann Smith"), "failed", 2),  # raised in code that is not ours
    ],
)
def test_an_end_is_told_without_the_words_of_a_fault(
    error: Exception | None, status: str, code: int, tmp_path: Path
) -> None:
    study = _Study(error, tmp_path)
    app: Any = study._server_app()
    app(SimpleNamespace(), SimpleNamespace(run_config={}))
    notice = study.outcome_notice()
    told = INTERRUPTED if isinstance(error, OSError) else code  # they wait for whoever goes on
    assert (notice.status, notice.exit_code, notice.summary) == (status, told, "ε=0 δ=1e-5 labels=0")
    assert study.terms.digest == make_terms().digest
    study._require_served()
    assert study.exit_code == code


def test_an_app_that_never_ran_is_a_fault(tmp_path: Path) -> None:
    study = _Study(None, tmp_path)
    study._require_served()
    assert (study.status, study.exit_code) == ("failed", 1)


def test_a_full_disk_is_explained_and_other_errors_are_not(tmp_path: Path) -> None:
    full = explain_disk_error(OSError(errno.ENOSPC, "No space left on device"), Path("run"))
    assert isinstance(full, InputError) and "run: cannot be written (No space" in str(full)
    with closing(sqlite3.connect(tmp_path / "ledger")) as ledger, pytest.raises(sqlite3.Error) as refused:
        ledger.execute("PRAGMA max_page_count = 1")
        ledger.execute("CREATE TABLE rows (value)")
    written = IntegrityError("the ledger could not be written")
    written.__cause__ = refused.value
    assert isinstance(explain_disk_error(written, Path("run")), InputError)
    written.__cause__ = sqlite3.IntegrityError("a row twice")
    assert explain_disk_error(written, Path("run")) is written
    one = InputError("run/student.npz: cannot be written (No space left on device)")
    one.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    told = explain_disk_error(one, tmp_path)
    assert isinstance(told, RunDirError) and str(told).startswith(f"{one}. Make room")
    for number in (errno.EACCES, errno.ENOENT):
        lost = OSError(number, "gone", str(tmp_path / "private" / "batch.json"))
        assert isinstance(explain_disk_error(lost, tmp_path), RunDirError)
        assert explain_disk_error(lost, tmp_path / "other") is lost
    for error in (OSError(errno.ENOENT, "No such file"), ValueError("x")):
        assert explain_disk_error(error, Path("run")) is error

"""A run of any kind: where the student goes, and what the log tells after a death."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import make_terms
from saved_runs import RECORD

from pate_fed.flower import prepare_environment

prepare_environment()

from pate_fed.config.backend import Engine
from pate_fed.config.study import Study
from pate_fed.report.log import RunLog, read_result
from pate_fed.report.result import ReleasedBatch
from server import run
from server.kinds import RunContext, StudySetup
from server.release import releases_told
from server.state import CoordinatorState


def _setup(study: Study, run_dir: Path) -> StudySetup:
    nothing: Any = None
    return StudySetup(
        study=study,
        dataset=nothing,
        terms=make_terms(),
        run_dir=run_dir,
        engine=getattr(study, "engine", nothing),
        text="",
        noise=nothing,
    )


@pytest.mark.parametrize(
    ("name", "file"), [("supervised", "student.pt"), ("ridge", "student.npz"), ("forest", "student.npz")]
)
def test_a_student_of_plain_numbers_has_a_file_of_its_own(name: str, file: str, tmp_path: Path) -> None:
    study: Any = SimpleNamespace(student=SimpleNamespace(name=name))
    assert _setup(study, tmp_path).student_path == tmp_path / file


@pytest.mark.parametrize(("backend", "apart"), [("inline", False), ("ray", False), ("grpc", True)])
def test_only_a_study_of_processes_is_gone_on_with(backend: str, apart: bool, tmp_path: Path) -> None:
    assert _setup(Study(engine=Engine(backend=backend)), tmp_path).apart is apart


def test_what_was_charged_before_a_death_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has two rows, the log knows of the first alone."""
    rows = [
        SimpleNamespace(event=SimpleNamespace(asked=asked, answered=4), epsilon=epsilon, batch_digest="ab")
        for asked, epsilon in ((10, 1.0), (5, 1.5))
    ]
    ledger: Any = SimpleNamespace(entries=lambda: rows)
    monkeypatch.setitem(run.COURSES, "votes", lambda *arguments, **options: None)
    other: Any = None
    with RunLog(tmp_path / "log.jsonl") as log:
        log.write(RECORD)
        log.write(ReleasedBatch(batch=0, asked=10, answered=4, epsilon=1.0))
        context = RunContext(state=CoordinatorState(None), keys=None, log=log, progress=other, stop=other)
        for _ in range(2):
            run.Run(_setup(Study(), tmp_path), ledger, context, noise=other)
    assert read_result(tmp_path).releases == (
        ReleasedBatch(batch=0, asked=10, answered=4, epsilon=1.0),
        ReleasedBatch(batch=1, asked=5, answered=4, epsilon=1.5),
    )
    assert releases_told(tmp_path) == (10, 5)

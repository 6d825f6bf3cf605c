"""A kind of one's own at the coordinator: the second question follows from the ledger, faults are charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying import dying
from kinds import BINS, ExactOwnStudy, OwnStudy, StudyKind
from own_kind import Median

from pate_fed.privacy import Ledger
from pate_fed.report.log import read_result
from pate_fed.report.watching import read_snapshot, snapshot_rows
from server.kinds.base import Course
from server.kinds.own import OwnCourse

STUDIES = pytest.mark.parametrize("made", [OwnStudy, ExactOwnStudy])


@pytest.fixture
def study(made: type[StudyKind], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyKind:
    return made(tmp_path, monkeypatch)


def _places(study: StudyKind) -> list[int]:
    """The first place of each question that was released, and the number."""
    index, _, label = Ledger.read(study.run_dir).chain.released()
    return [*index.tolist(), *label.tolist()]


@STUDIES
def test_the_second_question_depends_on_what_was_released(study: StudyKind) -> None:
    assert study.run() == 0
    first, second, coarse, _ = _places(study)
    assert (first, second) == (0, BINS * (1 + coarse))


@STUDIES
def test_killed_between_its_questions_it_asks_the_second_by_the_ledger(study: StudyKind) -> None:
    with dying(Ledger, "charge", after=True):
        study.run()
    [one] = study.entries()
    asked = study.events("answered")
    assert study.run() == 0
    assert study.entries()[0] == one and len(study.events("answered")) == 2 * len(asked)
    first, second, coarse, _ = _places(study)
    assert (first, second) == (0, BINS * (1 + coarse))
    study.check()


@STUDIES
def test_the_exact_totals_reach_its_code_with_noise_alone(
    study: StudyKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def release(self: Median, noisy: Any, source: Any) -> int:
        seen.append(noisy.copy())
        return 5

    monkeypatch.setattr(Median, "release", release)
    assert study.run() == 0
    real = [each for each in seen if each.any()]  # not those that only try it
    assert len(real) >= 2 and all(each.shape == (BINS,) and each.min() < 0 for each in real[-2:])


@STUDIES
def test_a_release_that_fails_is_charged_and_shows_nothing_of_totals(
    study: StudyKind, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Median.release

    def release(self: Median, noisy: Any, source: Any) -> int:
        if noisy.min() < 0:
            raise ValueError(f"secret {noisy}")
        return whole(self, noisy, source)

    monkeypatch.setattr(Median, "release", release)
    assert study.run() == 6
    assert [entry.event.answered for entry in study.entries()] == [0]
    told = capsys.readouterr()
    assert "release fails (ValueError" in told.err and "secret" not in told.err + told.out
    log = (study.run_dir / "log.jsonl").read_text(encoding="utf-8")
    assert "secret" not in log
    assert study.run() == 3 and len(study.entries()) == 1  # hospitals answer it once


@STUDIES
@pytest.mark.parametrize("places", [[0], list(range(BINS))[::-1], list(range(-1, BINS - 1)), "none"])
def test_a_question_that_no_hospital_would_answer_is_not_asked(
    places: Any, study: StudyKind, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Median, "ask", lambda *_: np.array(places))
    assert study.run() == 2
    assert "rising places" in capsys.readouterr().err and not study.entries()


@STUDIES
def test_what_came_out_is_reported_and_watched(study: StudyKind) -> None:
    assert study.run() == 0
    *_, coarse, fine = _places(study)
    told = Median(bins=BINS, scale=4.0).tell([coarse, fine])
    page = (study.run_dir / "report.html").read_text(encoding="utf-8")
    assert told in page and "own_kind:Median" in page and "not proven" in page
    assert read_result(study.run_dir).study.student == ""  # nothing learns
    now = read_snapshot(study.run_dir)
    assert now is not None and "2 numbers of 2 questions" in json.dumps(snapshot_rows(now))


def test_a_course_has_all_that_every_kind_has() -> None:
    assert issubclass(OwnCourse, Course) and OwnCourse.once and "answers it again" in OwnCourse.lost

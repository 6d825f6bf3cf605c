"""The default student with one choice otherwise, judged on inputs that studies do not test on."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.learning import TeacherSettings
from pate_fed.learning.students import gan
from pate_fed.reproduce import Reproduction, default_student, reproduce, rows, student_schedule
from pate_fed.reproduce.student_schedule import VARIANTS, ScheduledStudent


@pytest.fixture
def on_one_set(small: Reproduction, monkeypatch: pytest.MonkeyPatch) -> Reproduction:
    monkeypatch.setattr(default_student, "LABELS", 60)
    monkeypatch.setattr(student_schedule, "DATASETS", ("fashion-mnist",))
    monkeypatch.setattr(student_schedule, "ASKED_OF", 150)
    small.out_dir.mkdir()
    assert small.data_dir is not None
    kept = small.out_dir / f"totals-fashion-mnist-{TeacherSettings().name}.npz"
    np.savez(kept, totals=np.load(small.data_dir / "b.npy"))
    return small


def test_each_student_differs_in_one_choice(
    on_one_set: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = ("as it is", "batches as they come", "the head itself")
    monkeypatch.setattr(student_schedule, "VARIANTS", {name: VARIANTS[name] for name in three})
    usual, seen = gan.balanced, list[bool]()
    train = student_schedule.train_and_test

    def watched(*given: object, **named: object) -> object:
        seen.append(gan.balanced is usual)
        return train(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(student_schedule, "train_and_test", watched)
    lines = reproduce("student-schedule", on_one_set)
    path = on_one_set.out_dir / "student-schedule-fashion-mnist-runs.csv"
    made = rows.read_rows(path, ScheduledStudent)
    assert [row.variant for row in made] == list(three) and seen == [True, False, True]
    assert len({row.labels_wrong for row in made}) == 1  # the same labels
    assert gan.balanced is usual
    assert sum(any(name in line for name in three) for line in lines) == 3


def test_students_learn_and_are_judged_before_the_last_inputs(
    on_one_set: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[np.ndarray]()

    def watched(plan: object, dataset: object, index: np.ndarray, *rest: object, **named: object) -> object:
        asked.append(index)
        assert named["tested"] == slice(150, 200)  # of 260, the last 60 for tests
        return None, {"labels_wrong": 0.0, "accuracy": 1.0, "accuracy_single": 1.0}

    monkeypatch.setattr(student_schedule, "train_and_test", watched)
    reproduce("student-schedule", on_one_set)
    assert len(asked) == len(VARIANTS) and max(index.max() for index in asked) < 150


def test_every_choice_names_what_there_is() -> None:
    for variant in VARIANTS.values():
        assert all(hasattr(gan, name) for name in variant.loop)
        assert len(variant.settings) + len(variant.loop) <= 1

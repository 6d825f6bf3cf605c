"""Early stop: who is held out, when a stage ends, whose weights answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.learning import EpochRecord, StudentSettings
from pate_fed.learning.students import train as training
from pate_fed.learning.students.gan import GANTrainer
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.trainer import EarlyStop, TrainingSets, held_out_part

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]
TrainOn = Callable[..., Student]


PATIENT = StudentSettings(name="gan", epochs=8, batch_size=50, patience=2, held_out=0.25, ema_decay=0.0)


def _answers(student: Student, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """As its networks are, before they were calibrated."""
    student.sharpness = 1.0
    return student.predict_proba(images)


class Scores:
    """Says how many held-out labels are met, a number an epoch, and keeps what each student answers."""

    def __init__(self, shares: list[float], images: NDArray[np.uint8]) -> None:
        self._left, self._images = iter(shares), images
        self.answers: list[NDArray[np.float32]] = []

    def __call__(self, student: Student, *, images: NDArray[np.uint8] | None, labels: object) -> float | None:
        if images is None:
            return None  # there is no test part
        self.answers.append(student.predict_proba(self._images))
        return next(self._left)


def test_the_part_is_the_same_each_time_and_of_the_share() -> None:
    first, again = (held_out_part(200, PATIENT, seed=3) for _ in range(2))
    other = held_out_part(200, PATIENT, seed=4)
    assert first is not None and again is not None and other is not None
    assert first.sum() == other.sum() == 50 and torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize(("count", "share"), [(37, 0.25), (99, 0.09), (10, 0.99)])
def test_too_few_labels_hold_nothing_out(count: int, share: float) -> None:
    assert held_out_part(count, replace(PATIENT, held_out=share), seed=0) is None
    assert held_out_part(1000, replace(PATIENT, patience=None), seed=0) is None
    part = held_out_part(40, PATIENT, seed=0)
    assert part is not None and part.sum() == 10


def test_with_too_few_labels_all_teach_for_all_epochs(stripes: MakeStripes, train_on: TrainOn) -> None:
    images, labels = stripes(60)
    settings = replace(PATIENT, epochs=3, patience=1)
    student = train_on(images, labels[:20], settings)
    assert [record.held_out_share for record in student.history] == [None] * 3
    plain = train_on(images, labels[:20], replace(settings, patience=None))
    assert np.array_equal(student.predict_proba(images), plain.predict_proba(images))


def test_held_out_labels_do_not_teach(
    stripes: MakeStripes, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(80)
    seen: list[TrainingSets] = []
    true = GANTrainer.run_epoch

    def spy(trainer: GANTrainer, epoch: int, sets: TrainingSets) -> EpochRecord:
        seen.append(sets)
        return true(trainer, epoch, sets)

    monkeypatch.setattr(GANTrainer, "run_epoch", spy)
    train_on(images, labels[:60], replace(PATIENT, epochs=1))
    (sets,) = seen
    held = held_out_part(60, PATIENT, seed=0)
    assert held is not None
    assert sets.labelled.tolist() == np.flatnonzero(~held.numpy()).tolist()
    assert set(np.flatnonzero(held.numpy())) < set(sets.unlabelled.tolist())  # but they are public inputs
    assert len(sets.labelled) + len(sets.unlabelled) == 80


@pytest.mark.parametrize("name", ["gan", "vat", "fixmatch"])
def test_the_last_epoch_as_good_as_the_best_answers(
    stripes: MakeStripes, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    images, labels = stripes(60)
    scores = Scores([0.5, 0.9, 0.85, 0.4], images)  # of 15 labels: 0.85 is as good as 0.9
    monkeypatch.setattr(training, "_accuracy", scores)
    student = train_on(images, labels, replace(PATIENT, name=name))
    assert [record.held_out_share for record in student.history] == [0.5, 0.9, 0.85, 0.4]
    found = _answers(student, images)
    assert [np.array_equal(found, each) for each in scores.answers] == [False, False, True, False]


def test_the_best_weights_answer_where_no_stage_ends_early(
    stripes: MakeStripes, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(60)
    scores = Scores([0.5, 0.9, 0.4], images)
    monkeypatch.setattr(training, "_accuracy", scores)
    student = train_on(images, labels, replace(PATIENT, epochs=3))
    assert np.array_equal(_answers(student, images), scores.answers[1])


def test_each_stage_ends_by_itself(
    stripes: MakeStripes, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(60)
    scores = Scores([0.5, 0.4, 0.4, *(0.1, 0.2, 0.2, 0.3, 0.3, 0.3)], images)
    monkeypatch.setattr(training, "_accuracy", scores)
    student = train_on(images, labels, replace(PATIENT, name="pate++", noise_rate=0.2))
    assert [record.stage for record in student.history] == [1] * 3 + [2] * 6
    assert [record.epoch for record in student.history] == list(range(1, 10))
    assert np.array_equal(_answers(student, images), scores.answers[8])  # 0.3 again, the last one
    assert student.removed is not None and len(student.removed) == 45


def test_without_patience_nothing_stops() -> None:
    stop = EarlyStop(None, count=0)
    assert not stop.over and stop.state() == {"best": -1.0, "since": 0, "kept": []}

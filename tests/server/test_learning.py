"""A student that stops early says so; one that was stopped goes on from its checkpoint."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import make_rows
from numpy.typing import NDArray

from pate_fed.config.sections import Data
from pate_fed.config.study import Study, study_from_dict
from pate_fed.data import Dataset, GlyphSettings, load_dataset
from pate_fed.learning import StudentSettings
from pate_fed.learning.students.student import Student
from pate_fed.report.result import Epoch, Samples
from pate_fed.report.terminal import make_progress
from server.exchange import Stopped
from server.kinds import RunContext
from server.learning import Learner
from server.state import CoordinatorState

Ints = NDArray[np.int64]


class Log:
    """Keeps the epochs that a run's log would have."""

    def __init__(self) -> None:
        self.epochs: list[Epoch] = []
        self.at: tuple[int, threading.Event] | None = None  # the epoch that stops the study

    def write(self, event: object) -> None:
        if isinstance(event, Epoch):
            self.epochs.append(event)
            if self.at is not None and event.epoch == self.at[0]:
                self.at[1].set()
        else:
            assert isinstance(event, Samples)


def _learner(
    folder: Path, student: StudentSettings, log: Log, stop: threading.Event, *, simulated: bool = False
) -> tuple[Learner, Ints]:
    """A coordinator's learner with its run directory, and the true labels of its pool."""
    glyph = GlyphSettings(classes=3, private=60, public=120)
    study = Study(data=Data(glyph=glyph), student=student).resolve()
    dataset = load_dataset("glyph", glyph=glyph, cache_dir=folder.parent)
    folder.mkdir(exist_ok=True)
    context = RunContext(
        state=CoordinatorState(None if simulated else folder / "private"),
        keys=None,
        log=log,  # type: ignore[arg-type]
        progress=make_progress(False, io.StringIO()),
        stop=stop,
    )
    learner = Learner(study, dataset, context, path=folder / "student.pt")
    return learner, np.asarray(dataset.public_labels)


def test_a_coordinator_that_died_while_learning_goes_on_where_it_was(tmp_path: Path) -> None:
    settings = StudentSettings(name="pate++", epochs=2, noise_rate=0.2)  # of each of pate++'s two stages
    index = np.arange(60)
    whole, first, second = Log(), Log(), Log()
    learner, truth = _learner(tmp_path / "whole", settings, whole, threading.Event())
    expected = learner.learn(index, truth[index])
    stop = threading.Event()
    first.at = (3, stop)
    learner, _ = _learner(tmp_path / "other", settings, first, stop)
    with pytest.raises(Stopped):
        learner.learn(index, truth[index])
    learner, _ = _learner(tmp_path / "other", settings, second, threading.Event())
    found = learner.learn(index, truth[index])
    assert [each.epoch for each in first.epochs + second.epochs] == [1, 2, 3, 4]
    assert isinstance(found, Student) and isinstance(expected, Student)
    assert found.history == expected.history
    assert not list((tmp_path / "other" / "private").iterdir())
    assert {each.values["noise_rate"] for each in second.epochs} == {0.2}


def test_a_simulation_keeps_no_checkpoint(tmp_path: Path) -> None:
    log, stop = Log(), threading.Event()
    log.at = (1, stop)
    learner, truth = _learner(tmp_path / "run", StudentSettings(epochs=1), log, stop, simulated=True)
    with pytest.raises(Stopped):
        learner.learn(np.arange(12), truth[:12])
    assert list((tmp_path / "run").iterdir()) == []


def test_the_noise_rate_is_at_least_what_the_noise_turns(tmp_path: Path) -> None:
    """Twelve labels tell nothing, so β would be 0.2; two teachers under much noise turn more."""
    log = Log()
    learner, truth = _learner(
        tmp_path / "run", StudentSettings(name="pate++", epochs=1), log, threading.Event()
    )
    loud = replace(learner._study.aggregation, sigma2=1000.0)
    learner._study = replace(learner._study, aggregation=loud)
    learner.learn(np.arange(12), truth[:12])
    rates = {each.values["noise_rate"] for each in log.epochs}
    assert len(rates) == 1 and rates.pop() == pytest.approx(0.57, abs=0.05)


def _table_learner(stop: threading.Event) -> tuple[Learner, Dataset]:
    """A coordinator's learner of 40 rows whose only column's sign is their class."""
    table = {"label": "y", "classes": ["no", "yes"], "columns": {"a": "number"}}
    settings = {"data": {"dataset": "table", "pool": "p.csv", "table": table}, "student": {"trees": 5}}
    dataset = make_rows(40, 40)
    context = RunContext(
        state=CoordinatorState(None),
        keys=None,
        log=Log(),  # type: ignore[arg-type]
        progress=make_progress(True),
        stop=stop,
    )
    study = study_from_dict(settings).resolve()
    learner = Learner(study, dataset, context, path=Path("student.npz"))
    return learner, dataset


def test_a_left_out_part_is_told_by_a_student_of_the_other_labels() -> None:
    """The labels of the part are all wrong; a student that had learnt from them would repeat some."""
    learner, dataset = _table_learner(threading.Event())
    far = np.flatnonzero(np.abs(dataset.public_images[:, 0]) > 0.5)[:6]
    label = dataset.public_labels.copy()
    label[far] = 1 - label[far]
    index = np.arange(40)
    taught = learner.learn(index, label).predict(dataset.public_images[far])
    assert (taught == label[far]).any()
    (told,) = learner.predict_left_out(index, label, [far])
    assert (told == dataset.public_labels[far]).all()


def test_a_forest_learns_from_what_comes_with_the_labels() -> None:
    """Every row is said to be of the first class, with two in three: no class alone could say that."""
    learner, dataset = _table_learner(threading.Event())
    index, shares = np.arange(40), np.tile(np.array([2 / 3, 1 / 3], dtype=np.float32), (40, 1))
    forest = learner.learn(index, dataset.public_labels, shares)
    np.testing.assert_allclose(forest.predict_proba(dataset.public_images), shares, atol=1e-6)
    (told,) = learner.predict_left_out(index, dataset.public_labels, [index[:9]], shares)
    assert (told == 0).all()


def test_where_no_label_is_left_outside_nothing_is_told() -> None:
    learner, dataset = _table_learner(threading.Event())
    index = np.array([1, 2])
    told, other = learner.predict_left_out(index, dataset.public_labels[index], [np.array([1, 2, 3]), [4]])
    assert told.tolist() == [-1, -1, -1] and other.min() >= 0


def test_a_study_can_be_stopped_while_its_student_is_tested() -> None:
    stop = threading.Event()
    learner, dataset = _table_learner(stop)
    stop.set()
    with pytest.raises(Stopped):
        learner.predict_left_out(np.arange(9), dataset.public_labels[:9], [np.arange(4)])


def test_a_head_in_closed_form_is_trained_again_without_a_part(tmp_path: Path) -> None:
    log = Log()
    learner, truth = _learner(tmp_path / "run", StudentSettings(name="encoder-head"), log, threading.Event())
    index, part = np.arange(60), np.arange(50, 60)
    (told,) = learner.predict_left_out(index, truth[index], [part])
    assert told.shape == (10,) and not log.epochs  # the study's student alone is in the log
    again = learner.learn(index[:50], truth[:50])
    assert (again.predict(learner._dataset.public_images[part]) == told).all()

"""A stopped run goes on to the same student; another run's checkpoint is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning import EpochRecord, StudentSettings
from pate_fed.learning.students.student import Student

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]


TrainOn = Callable[..., Student]
QUICK = StudentSettings(epochs=3, batch_size=50, learning_rate=3e-3, noise_rate=0.2)
SETTINGS = {
    **{name: replace(QUICK, name=name) for name in ("supervised", "gan", "vat", "fixmatch")},
    "pate++": replace(QUICK, name="pate++", epochs=2),
    "pate++ of dense": replace(QUICK, name="pate++", network="dense", epochs=2, batch_size=25),
}


class Stop(Exception):
    pass


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=name, marks=[pytest.mark.slow] if settings.network else [])
        for name, settings in SETTINGS.items()
    ],
)
def test_a_stopped_run_goes_on_to_the_same_student(
    stripes: MakeStripes, train_on: TrainOn, tmp_path: Path, settings: StudentSettings
) -> None:
    images, labels = stripes(80, size=8)
    path = tmp_path / "student.checkpoint"

    def copy(record: EpochRecord) -> None:
        shutil.copy(path, tmp_path / f"after {record.epoch}")

    whole = train_on(images, labels[:45], settings, checkpoint=path, on_epoch=copy)
    assert not path.exists()
    stops = (1,) if settings.network else sorted({1, min(3, len(whole.history) - 1)})
    for stop in stops:
        (tmp_path / f"after {stop}").rename(path)
        seen: list[EpochRecord] = []
        resumed = train_on(images, labels[:45], settings, checkpoint=path, on_epoch=seen.append)
        assert [record.epoch for record in seen] == list(range(stop + 1, len(whole.history) + 1))
        assert resumed.history == whole.history
        assert np.array_equal(resumed.predict_proba(images), whole.predict_proba(images))
        assert not path.exists()


def test_a_run_without_a_checkpoint_gives_the_same_student_as_one_that_was_stopped(
    stripes: MakeStripes, train_on: TrainOn, tmp_path: Path
) -> None:
    images, labels = stripes(80, size=8)
    path = tmp_path / "student.checkpoint"

    def stop(record: EpochRecord) -> None:
        if record.epoch == 2:
            raise Stop

    with pytest.raises(Stop):
        train_on(images, labels[:45], QUICK, checkpoint=path, on_epoch=stop)
    resumed, whole = (
        train_on(images, labels[:45], QUICK, checkpoint=path),
        train_on(images, labels[:45], QUICK),
    )
    assert resumed.history == whole.history
    assert np.array_equal(resumed.predict_proba(images), whole.predict_proba(images))


def test_another_runs_checkpoint_is_refused(stripes: MakeStripes, train_on: TrainOn, tmp_path: Path) -> None:
    images, labels = stripes(60)
    path = tmp_path / "student.checkpoint"

    def stop(record: EpochRecord) -> None:
        raise Stop

    with pytest.raises(Stop):
        train_on(images, labels[:20], QUICK, checkpoint=path, on_epoch=stop)
    with pytest.raises(InputError, match="another seed"):
        train_on(images, labels[:20], QUICK, checkpoint=path, seed=1)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(IntegrityError, match="checkpoint"):
        train_on(images, labels[:20], QUICK, checkpoint=path)

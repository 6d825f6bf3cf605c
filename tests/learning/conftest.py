"""Small pictures, and students of them, for the learning room's tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.learning import StudentSettings
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.train import train_student
from pate_fed.learning.students.trainer import LabelledPool

Pictures = tuple[NDArray[np.uint8], NDArray[np.int64]]


class MakeStripes(Protocol):
    """Images and labels."""

    def __call__(
        self, count: int, *, classes: int = 4, size: int = 16, channels: int = 1, seed: int = 0
    ) -> Pictures: ...


@pytest.fixture(scope="session")
def stripes() -> MakeStripes:
    """Noisy images whose class is the angle of a grating."""
    return make_stripes


def make_stripes(
    count: int, *, classes: int = 4, size: int = 16, channels: int = 1, seed: int = 0
) -> Pictures:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    angle = labels[:, None, None] * np.pi / classes
    rows, columns = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    wave = np.sin(1.2 * (rows * np.cos(angle) + columns * np.sin(angle)) + rng.uniform(0, 6, (count, 1, 1)))
    noisy = 127 + 60 * wave + rng.normal(0, 30, wave.shape)
    images = np.repeat(noisy.clip(0, 255).astype(np.uint8)[..., None], channels, axis=3)
    return images, labels.astype(np.int64)


class MakePool(Protocol):
    """Images of four classes; those at `index`, or else the first so many, have the labels."""

    def __call__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        *,
        index: NDArray[np.int64] | None = None,
        true_labels: NDArray[np.int64] | None = None,
        test: Pictures | None = None,
    ) -> LabelledPool: ...


@pytest.fixture(scope="session")
def pool_of() -> MakePool:
    return make_pool


def make_pool(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    index: NDArray[np.int64] | None = None,
    true_labels: NDArray[np.int64] | None = None,
    test: Pictures | None = None,
) -> LabelledPool:
    return LabelledPool(
        images=images,
        labelled_index=np.arange(len(labels)) if index is None else index,
        labels=labels,
        num_classes=4,
        true_labels=true_labels,
        test_images=None if test is None else test[0],
        test_labels=None if test is None else test[1],
    )


class TrainOn(Protocol):
    """A student of such a pool; `options` are those of the pool and of `train_student`."""

    def __call__(
        self, images: NDArray[np.uint8], labels: NDArray[np.int64], settings: StudentSettings, **options: Any
    ) -> Student: ...


@pytest.fixture(scope="session")
def train_on() -> TrainOn:
    def train(
        images: NDArray[np.uint8], labels: NDArray[np.int64], settings: StudentSettings, **options: Any
    ) -> Student:
        given = {key: options.pop(key) for key in ("index", "true_labels", "test") if key in options}
        return train_student(make_pool(images, labels, **given), settings, **{"seed": 0} | options)

    return train


@pytest.fixture(scope="session")
def noisy_student(train_on: TrainOn) -> Callable[[str], Student]:
    """The student of a name, trained once on 120 labels, every fifth wrong; for reading only."""

    @cache
    def trained(name: str) -> Student:
        images, truth = make_stripes(400)
        labels = truth[:120].copy()
        labels[::5] = (labels[::5] + 1) % 4
        epochs = 8 if name in ("supervised", "fixmatch") else 3
        settings = StudentSettings(name=name, epochs=epochs, batch_size=50, noise_rate=0.2)
        return train_on(images, labels, settings, test=make_stripes(300, seed=1))

    return trained

"""Small pictures for the learning room's tests."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

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

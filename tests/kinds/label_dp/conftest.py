"""Public inputs that a small network learns in a second: the way of the stripes tells the class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pate_fed.kinds.label_dp.public import PublicInputs

CLASSES = 4


@pytest.fixture(scope="session")
def easy() -> Callable[..., Any]:
    """Images uint8 (n, 16, 16, 1) and labels int64 (n,)."""

    def make(count: int, *, seed: int = 0, channels: int = 1) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, CLASSES, count)
        labels[:CLASSES] = np.arange(CLASSES)
        down, right = np.mgrid[:16, :16]
        ways = np.stack([down, right, down + right, down - right])[labels]  # (n, 16, 16)
        bright = (ways + rng.integers(0, 6, (count, 1, 1))) % 6 < 3
        images = rng.integers(0, 60, (count, 16, 16, channels)) + 150 * bright[..., None]
        return images.astype(np.uint8), labels

    return make


@pytest.fixture(scope="session")
def public(easy: Callable[..., Any]) -> PublicInputs:
    return PublicInputs(easy(600)[0], num_classes=CLASSES)


@pytest.fixture(scope="session")
def truth(easy: Callable[..., Any]) -> np.ndarray:
    return easy(600)[1]


@pytest.fixture(scope="session")
def few(easy: Callable[..., Any]) -> PublicInputs:
    """Of the same kind, for what is the same of any inputs."""
    return PublicInputs(easy(120)[0], num_classes=CLASSES)

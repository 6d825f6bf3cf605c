"""What a teacher of each kind takes, on which `--backend auto` rests: seconds of one core.

    pytest -m benchmark -s tests/benchmarks/test_backend_benchmark.py

A deep network's time is that of one pass over its records times the passes.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from pate_fed.learning import TeacherSettings
from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.teachers.forests import train_forest
from pate_fed.learning.teachers.network import train_teacher

pytestmark = pytest.mark.benchmark

PART = 240


def _core_seconds(name: str, *, epochs: int) -> float:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (PART, 28, 28, 1), dtype=np.uint8)
    labels, encoder = rng.integers(0, 10, PART), fit_encoder(images)
    settings = TeacherSettings(name=name, epochs=epochs)
    start = time.process_time()
    train_teacher(images, labels, num_classes=10, settings=settings, seed=0, encoder=encoder)
    return time.process_time() - start


def test_a_teacher_of_each_kind() -> None:
    torch.set_num_threads(1)
    for name in ("encoder-head", "hog-linear", "small-cnn"):
        found = min(_core_seconds(name, epochs=20) for _ in range(3))
        print(f"{name:18} {found:6.2f} s of one core, alone")
        assert found > 0
    print(f"{'deep-cnn':18} {20 * _core_seconds('deep-cnn', epochs=1):6.2f} s")
    rng = np.random.default_rng(0)
    rows, labels = rng.random((PART, 20)), rng.integers(0, 10, PART)
    for name in ("random-forest", "gradient-boosting"):
        start = time.process_time()
        train_forest(rows, labels, num_classes=10, method=name, trees=100, seed=0)
        print(f"{name:18} {time.process_time() - start:6.2f} s")

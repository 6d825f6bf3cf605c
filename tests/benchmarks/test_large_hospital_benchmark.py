"""Seconds in which one hospital's light teacher learns from 1,000, 10,000 and 100,000 records.

pytest -m benchmark -s tests/benchmarks/test_large_hospital_benchmark.py
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from pate_fed.learning import TeacherSettings
from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.teachers.network import train_teacher

SIZES = (1_000, 10_000, 100_000)

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize("name", ["encoder-head", "hog-linear"])
def test_ten_times_the_records_take_a_few_times_as_long(name: str) -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (SIZES[-1], 28, 28, 1), dtype=np.uint8)
    labels = rng.integers(0, 10, SIZES[-1])
    encoder, settings, seconds = fit_encoder(images[:3000]), TeacherSettings(name=name), []
    for size in SIZES:
        start = time.process_time()
        train_teacher(
            images[:size], labels[:size], num_classes=10, settings=settings, seed=0, encoder=encoder
        )
        seconds.append(time.process_time() - start)
        print(f"{name}, {size:,} records: {seconds[-1]:.1f} s of CPU")
    print(f"100,000 against 10,000: {seconds[2] / seconds[1]:.1f} times")
    assert seconds[2] < 4 * seconds[1]

"""Small networks trained in one program against one after another, in one run: seconds, and the ratio.

    pytest -m benchmark -s tests/benchmarks/test_many_teachers_benchmark.py

PATE_FED_BENCH_TEACHERS (25 on a CPU, 250 on a GPU) sets their number; 240 images each, default settings. Of
those one after another the first five are timed. The GPU's part is left out without CUDA.
"""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import torch

from pate_fed.learning import TeacherSettings
from pate_fed.learning.teachers.batched import train_many
from pate_fed.learning.teachers.network import train_teacher

pytestmark = pytest.mark.benchmark

PART, TIMED = 240, 5


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_program_against_one_after_another(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    count = int(os.environ.get("PATE_FED_BENCH_TEACHERS", "25" if device == "cpu" else "250"))
    torch.set_num_threads(1)
    clock = time.process_time if device == "cpu" else time.perf_counter  # others may use the cores
    rng, settings = np.random.default_rng(0), TeacherSettings(name="small-cnn")
    images = [rng.integers(0, 256, (PART, 28, 28, 1), dtype=np.uint8) for _ in range(count)]
    labels = [rng.integers(0, 10, PART) for _ in range(count)]
    train_teacher(images[0], labels[0], num_classes=10, settings=settings, seed=0, device=device)  # warm
    start = clock()
    for part, own in zip(images[:TIMED], labels, strict=False):
        train_teacher(part, own, num_classes=10, settings=settings, seed=0, device=device)
    alone = (clock() - start) / TIMED
    start = clock()
    train_many(images, labels, num_classes=10, settings=settings, seeds=range(count), device=device)
    if device == "cuda":
        torch.cuda.synchronize()
    together = (clock() - start) / count
    print(f"\n{device}: one after another {alone:.3f} s a teacher, {count} in one program {together:.3f} s")
    print(f"{device}: {alone / together:.1f} times as fast")

"""Small networks trained in one program against one after another, in one run: seconds, and the ratio.

    pytest -m benchmark -s tests/benchmarks/test_many_teachers_benchmark.py

PATE_FED_BENCH_TEACHERS (25 on a CPU; 250 1000 5000 on a GPU) sets their numbers; 240 images each, default
settings. Of those one after another the first three are timed. On a GPU also the memory that is taken beside
the memory that was counted before, and a deep-cnn alone. The GPU's part is left out without CUDA.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.learning import TeacherSettings
from pate_fed.learning.settings import STACKED
from pate_fed.learning.teachers.batched import group_bytes, train_many
from pate_fed.learning.teachers.network import train_teacher

pytestmark = pytest.mark.benchmark

PART, TIMED = 240, 3
Parts = tuple[list[NDArray[np.uint8]], list[NDArray[np.int64]]]


def _parts(count: int) -> Parts:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (PART, 28, 28, 1), dtype=np.uint8) for _ in range(count)]
    return images, [rng.integers(0, 10, PART) for _ in range(count)]


def _alone(name: str, device: str, clock: Callable[[], float]) -> float:
    """Seconds of one teacher, after a first one."""
    settings, start = TeacherSettings(name=name), 0.0
    for place, (part, own) in enumerate(zip(*_parts(TIMED + 1), strict=True)):
        if place == 1:
            start = clock()
        train_teacher(part, own, num_classes=10, settings=settings, seed=0, device=device)
    return (clock() - start) / TIMED


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_program_against_one_after_another(device: str) -> None:
    on_card = device == "cuda"
    if on_card and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    torch.set_num_threads(1)

    def clock() -> float:
        if on_card:
            torch.cuda.synchronize()
        return time.perf_counter() if on_card else time.process_time()  # others may use the cores

    alone = _alone(STACKED, device, clock)
    print(f"\n{device}: {STACKED}, one after another {alone:.3f} s a teacher")
    if on_card:
        print(f"{device}: deep-cnn, one after another {_alone('deep-cnn', device, clock):.3f} s a teacher")
    counts = os.environ.get("PATE_FED_BENCH_TEACHERS", "250 1000 5000" if on_card else "25")
    for count in map(int, counts.split()):
        images, labels = _parts(count)
        settings, before = TeacherSettings(name=STACKED), 0
        if on_card:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        start = clock()
        train_many(images, labels, num_classes=10, settings=settings, seeds=range(count), device=device)
        took = clock() - start
        line = f"{device}: {count} in one program {took:.2f} s, {alone * count / took:.1f} times as fast"
        if on_card:
            peak = torch.cuda.max_memory_allocated() - before
            counted = group_bytes(count, PART, (28, 28, 1), 10, batch=settings.batch_size)
            line += f", peak {peak / 1e9:.2f} GB, counted before {counted / 1e9:.2f} GB"
        print(line)

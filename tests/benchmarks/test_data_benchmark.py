"""Figures: CPU seconds to draw Glyph, to open it again, and to deal records out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import GlyphSettings, load_dataset, partition


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """The least CPU time of so many runs: wall time on a busy machine tells of the others."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


@pytest.mark.benchmark
@pytest.mark.parametrize("classes", [10, 150])
def test_drawing_glyph(tmp_path: Path, classes: int) -> None:
    settings = GlyphSettings(classes=classes)
    first = seconds(lambda: load_dataset("glyph", glyph=settings, cache_dir=tmp_path))
    again = seconds(lambda: load_dataset("glyph", glyph=settings, cache_dir=tmp_path), 3)
    print(
        f"\nglyph, {classes} classes, 70,000 images: drawn {first:.1f} s, opened {1000 * again:.1f} ms of CPU"
    )


@pytest.mark.benchmark
@pytest.mark.parametrize("scheme", ["iid", "dirichlet:0.5"])
def test_dealing_records_out(scheme: str) -> None:
    labels = np.arange(60_000) % 10
    for parties in (250, 5000):
        taken = seconds(lambda: partition(labels, num_parties=parties, scheme=scheme, seed=0), 5)  # noqa: B023
        print(f"\n{scheme}: 60,000 records to {parties} parties in {1000 * taken:.1f} ms")

"""SCAN finds classes without labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pate_fed.kinds.label_dp.clusters import Scan
from pate_fed.kinds.label_dp.public import PublicInputs


def test_scan_finds_classes_without_labels(easy: Callable[..., Any]) -> None:
    images, labels = easy(160)
    inputs = PublicInputs(images, num_classes=4)
    lines: list[str] = []
    scan = Scan(
        network="small-cnn",
        contrast_epochs=4,
        cluster_epochs=8,
        label_epochs=2,
        neighbours=5,
        batch_size=32,
        confidence=0.6,
        log=lines.append,
    )
    found = scan(inputs, 4, seed=0)
    assert found.shape == (160,) and found.min() >= 0 and found.max() < 4
    counts = np.zeros((4, 4))
    np.add.at(counts, (found, labels), 1)
    assert counts.max(axis=1).sum() > 0.5 * len(labels)  # a quarter by chance
    assert len(lines) == 14 and np.array_equal(found, scan(inputs, 4, seed=0))

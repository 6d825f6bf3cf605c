"""A task of the benchmark that every method can learn: 600 rows of two classes at four hospitals."""

from __future__ import annotations

import numpy as np

from pate_fed.bench.protocol import Task

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, 900)
ROWS = RNG.normal(size=(900, 3)) + 2.5 * LABELS[:, None]
ROWS[::7, 1] = np.nan
TASK = Task(
    name="t",
    title="t",
    inputs=ROWS[:600],
    labels=LABELS[:600],
    owners=np.arange(600) % 4,
    pool=ROWS[600:700],
    test=ROWS[700:],
)

"""Totals of neighbouring studies: random ones, of which one vote moves from the first class to the second."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def moved_pairs(seed: int, sigma: float) -> Iterator[tuple[Ints, Ints]]:
    """About 100,000 pairs in all, int64 (930, classes) each, a few votes of `sigma`'s size apart."""
    rng = np.random.default_rng(seed)
    for classes in (2, 3, 3, 4) * 9:
        totals = rng.integers(0, max(3, round(2.5 * sigma)), (930, classes))
        totals[:, 0] += 1
        moved = totals.copy()
        moved[:, 0] -= 1
        moved[:, 1] += 1
        yield totals, moved

"""ε from below: what an adversary reaches who chooses each query's votes from all earlier outcomes.

After some outcomes r = e^ε P'/P. The value of the best adversary is convex in r. Here it is kept from below,
by a tangent at each place of a grid: of an outcome with laws p, q and any choice of tangents, Σ p (a + b (r
q/p - r_j)) is affine in r, and nowhere above the value of one outcome more. So every number found is
reached, but for rounding, whatever the grid. Nothing of `pate_fed` is used.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Law = tuple[Floats, Floats]  # chances of each outcome, under the votes and under their neighbour


def reached(
    laws: list[Law], times: int, delta: float, *, step: float, least: float = -0.7, most: float = 3.0
) -> float:
    """ε at δ that choosing one of `laws`, or one exchanged, at each of so many outcomes reaches."""
    x = np.arange(least, most, step)
    r, last = np.exp(x), len(x) - 1
    # Before the first outcome: max(0, 1 - r).
    height, slope = np.maximum(0.0, 1 - r), np.where(r < 1, -1.0, 0.0)
    choices = [*laws, *((q, p) for p, q in laws)]
    for _ in range(times):
        best, fall = np.full(len(r), -1.0), slope
        for p, q in choices:
            value, rise = np.zeros((2, len(r)))
            for mine, other in zip(p.tolist(), q.tolist(), strict=True):
                at = np.arange(len(r)) + math.floor(math.log(other / mine) / step)
                moved = r * (other / mine)
                low, high = np.clip(at, 0, last), np.clip(at + 1, 0, last)
                one = height[low] + slope[low] * (moved - r[low])
                two = height[high] + slope[high] * (moved - r[high])
                value += mine * np.maximum(one, two)
                rise += other * np.where(two > one, slope[high], slope[low])
            fall = np.where(value > best, rise, fall)
            best = np.maximum(value, best)
        height, slope = best, fall
    at = int(np.flatnonzero(height >= delta)[-1])
    return math.log(r[at] + (delta - height[at]) / slope[at])

"""Which public inputs to ask about next, from what a student of the labels so far says (P17, appendix B.2).

P17 is Papernot et al., arXiv 1610.05755. Nothing here sees a vote: a choice is a function of released labels
and public inputs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["STRATEGIES", "choose_order"]

STRATEGIES: tuple[str, ...] = ("random", "least-confident", "binary-experts")
SURE, DOUBT, DOUBTERS = 0.9, 0.1, 4  # an expert's score; P17, appendix B.2


def choose_order(strategy: str, scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """All inputs, those first that are worth most; equal ones in their own order.

    "random" keeps their order. "least-confident" takes the least of the largest probabilities first.
    "binary-experts" takes first where the best expert is below 0.9 sure and at least four others (or all
    others, with fewer classes) are above 0.1; then the rest; within both the least sure first.

    Shapes: float (pool, classes), probabilities or experts' scores, to int64 (pool,).
    """
    ranked = np.sort(scores, axis=1)
    top = ranked[:, -1]
    if strategy == "random":
        return np.arange(len(scores), dtype=np.int64)
    if strategy == "least-confident":
        return np.argsort(top, kind="stable").astype(np.int64)
    others = min(DOUBTERS, scores.shape[1] - 1)
    doubtful = (top < SURE) & (ranked[:, -1 - others] > DOUBT)
    return np.lexsort((top, ~doubtful)).astype(np.int64)

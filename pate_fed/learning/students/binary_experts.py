"""One binary expert a class, each trained on "this class or not" (P17, arXiv 1610.05755, appendix B.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.learning.inputs import to_tensor
from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.networks.linear import fit_experts
from pate_fed.learning.teachers.forests import train_forest

__all__ = ["expert_scores"]

TREES = 100


def expert_scores(
    inputs: NDArray[Any], *, index: NDArray[np.int64], labels: NDArray[np.int64], num_classes: int, seed: int
) -> NDArray[np.float32]:
    """How sure each class's expert is that an input is its own, 0 to 1; rows need not sum to 1.

    For images a kernel regression on the public encoder, for tables a random forest. Shapes: uint8
    (n, H, W, C) or float64 (n, features), index int64 (m,) into them, labels (m,), to float32 (n, classes).

    Raises:
        InputError: inputs or labels that are none.
    """
    if inputs.ndim == 4:
        pixels = to_tensor(inputs, "cpu")
        return fit_experts(pixels, index, labels, num_classes=num_classes, encoder=fit_encoder(inputs))
    scores = np.empty((len(inputs), num_classes), dtype=np.float32)
    for each in range(num_classes):
        own = (labels == each).astype(np.int64)
        forest = train_forest(inputs[index], own, num_classes=2, trees=TREES, seed=seed)
        scores[:, each] = forest.scores(inputs)[:, 1]
    return scores

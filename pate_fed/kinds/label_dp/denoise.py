"""DenoiseSSL's first half: pseudo labels from clusters, and which private labels they confirm.

LDP, Algorithm 7 and Equation 8. The pseudo label of a record is the majority of the private labels in its
cluster; all of it is post-processing. Where there are many small clusters, majorities borrow from clusters
nearby: counts spread over the graph of the clusters' mean features, as far as the released labels themselves
say it helps (pseudo labels from one half of them, agreement with the other half).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.kinds.label_dp.release import NO_LABEL
from pate_fed.learning.students.label_graph import Graph

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ALPHAS = (0.0, 0.5, 0.8, 0.95)  # how far counts spread
_STEPS = 40


def equation8(accuracy: float, epsilon: float) -> float:
    """Share of right labels among those that randomised response and pseudo labels agree on.

    e^ε/(e^ε + (1 - Acc0)/Acc0) with Acc0 the pseudo labels' `accuracy` (LDP, Equation 8); 0 at Acc0 = 0.
    """
    if accuracy <= 0:
        return 0.0
    return 1 / (1 + (1 - accuracy) / accuracy * math.exp(-epsilon))


def estimated_accuracy(agreement: float, *, keep_probability: float, other: float) -> float:
    """Acc0 from the share of private labels that pseudo labels agree with, without a look at a true label.

    A right pseudo label agrees with `keep_probability`, a wrong one with `other`.
    """
    return float(np.clip((agreement - other) / (keep_probability - other), 0.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Denoised:
    """What is kept: `pseudo` int64 (n,), `agreed` bool (n,), the spread `alpha` and the left-out agreement.

    `agreement` is the share of labels that pseudo labels from the other half agree with.
    """

    pseudo: Ints
    agreed: NDArray[np.bool_]
    alpha: float
    agreement: float


def denoise(
    label: Ints,
    clusters: Ints,
    *,
    num_clusters: int,
    num_classes: int,
    centres: NDArray[np.float32] | None = None,
    seed: int = 0,
) -> Denoised:
    """Pseudo labels of all records, and the private labels that they confirm.

    Shapes: `label` int64 (n,), -1 where there is none; `clusters` int64 (n,); `centres` float32
    (clusters, d), without which nothing spreads.
    """
    graph = None if centres is None or num_clusters < 2 * num_classes else Graph(centres)
    shape = num_clusters, num_classes
    half = np.random.default_rng(seed).random(len(label)) < 0.5
    parts = [_counts(label, clusters, shape, rows) for rows in (half, ~half)]
    best = (-1.0, 0.0)
    for alpha in ALPHAS if graph is not None else ALPHAS[:1]:
        first, second = (_spread(graph, counts, alpha).argmax(axis=1) for counts in parts)
        other = np.where(half, second[clusters], first[clusters])  # named by the half a record is not in
        asked = label != NO_LABEL
        agreement = float((other == label)[asked].mean()) if asked.any() else 0.0
        best = max(best, (agreement, -alpha))
    agreement, alpha = best[0], -best[1]
    pseudo = _spread(graph, parts[0] + parts[1], alpha).argmax(axis=1)[clusters]
    return Denoised(pseudo=pseudo, agreed=(pseudo == label), alpha=alpha, agreement=agreement)


def _counts(label: Ints, clusters: Ints, shape: tuple[int, int], rows: NDArray[np.bool_]) -> Floats:
    rows = rows & (label != NO_LABEL)
    flat = np.bincount(clusters[rows] * shape[1] + label[rows], minlength=shape[0] * shape[1])
    return flat.reshape(shape).astype(np.float64)


def _spread(graph: Graph | None, counts: Floats, alpha: float) -> Floats:
    if graph is None or alpha == 0:
        return counts
    return graph.smooth(counts, alpha=alpha, steps=_STEPS)

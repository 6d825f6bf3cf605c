"""The student "class-sums" of a number: where a record stands in a range, linear in a public feature map.

Sums of both ends of the range are fitted as those of classes are (`class_sums`), by post-processing.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from pate_fed.errors import InputError
from pate_fed.learning.features.feature_map import FeatureMap
from pate_fed.learning.students.class_sums import SumsStudent, class_counts, mean_gram, priors

Ints = NDArray[np.int64]

_TINY = 1e-12  # of the Gram matrix, so that its factor exists without noise too
_VARIANCES = (1 / 4, 1 / 16, 1 / 64, 1 / 256)  # of places in the range, about the student's
_WEIGHTS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # squared ones that may be expected, against such a variance


def fit_target_student(
    noisy: Ints,
    feature_map: FeatureMap,
    pool: NDArray[Any],
    *,
    sigma: float,
    target_range: tuple[float, float],
) -> SumsStudent:
    """Ridge regression of places in the range, 0 to 1, from noisy sums of both ends and the public pool.

    With S₀ and S₁ the sums of the ends and ā the mean place that they tell, B = (1 - ā) S₁ - ā S₀ is
    Σ φ (place - ā) with noise of σ²(ā² + (1 - ā)²). With G = n E φφᵀ of the pool, weights w of N(0, τ²D) and
    places that waver by s² about φ·w, B is N(0, V) with V = τ² GDG + s²(1 + n/p) G + noise, p the pool's
    inputs (`fit_sums_student`). s, τ and D are those of a few under which B is the most likely, and
    w = τ² DG V⁻¹ B.

    Shapes: noisy int64 (dimension, 2), the range's lower end first; `sigma` in steps.

    Raises:
        InputError: sums of another shape than the map's, or an empty pool.
    """
    if noisy.shape != (feature_map.dimension, 2) or not len(pool):
        raise InputError(
            f"the sums are {noisy.shape} and the pool has {len(pool)} inputs: sums "
            f"({feature_map.dimension}, 2) and one input at least are meant"
        )
    unit = float(np.sqrt(feature_map.squared_norm))
    low, high = (noisy / unit).T
    features = feature_map.scaled(pool)
    gram = mean_gram(features)
    counts = class_counts(noisy / unit, gram, features.mean(axis=0, dtype=np.float64))
    records = max(1.0, float(counts.sum()))
    middle = min(1.0, max(0.0, float(counts[1]) / records))
    pulled, noise = (1 - middle) * high - middle * low, (sigma / unit) ** 2 * (middle**2 + (1 - middle) ** 2)
    whole, best = records * gram, -np.inf
    weights = np.zeros(len(noisy))
    for prior in priors(feature_map):
        squares = (whole * prior) @ whole
        for variance, expected in product(_VARIANCES, _WEIGHTS):
            bracket = variance * (expected * squares + (1 + records / len(pool)) * whole)
            bracket[np.diag_indices_from(bracket)] += noise + _TINY * records**2
            factor = cho_factor(bracket, lower=True, overwrite_a=True, check_finite=False)
            found = cho_solve(factor, pulled)
            evidence = -float(pulled @ found) / 2 - float(np.log(np.diag(factor[0])).sum())
            if evidence > best:
                best, weights = evidence, variance * expected * prior * (whole @ found)
    both = np.stack([-weights, weights], axis=1)
    offset = np.array([1 - middle, middle])
    return SumsStudent(feature_map, both, offset=offset, target_range=target_range)

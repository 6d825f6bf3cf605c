"""The student "class-sums" of what is no class: of a number, or of several labels, each yes or no.

Sums of both ends of the number's range, and of each label's no and yes, are fitted as those of classes are
(`class_sums`), by post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import brentq
from scipy.special import expit

from pate_fed.errors import InputError
from pate_fed.learning.features.feature_map import FeatureMap
from pate_fed.learning.students.class_sums import SumsStudent, class_counts, mean_gram, priors

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_TINY = 1e-12  # of the Gram matrix, so that its factor exists without noise too
_UNTOLD = 0.1  # of a label's variance, at least, so that no probability is a certainty
_RARE = 1e-3  # the share of a label's yes, at least, and of its no
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
    if noisy.shape != (feature_map.dimension, 2):
        raise InputError(f"the sums are {noisy.shape}: ({feature_map.dimension}, 2) is meant")
    known = _Known.of(noisy, feature_map, pool, sigma=sigma)
    middle = float(known.shares[0])
    weights = known.fit()[:, 0]
    both = np.stack([-weights, weights], axis=1)
    offset = np.array([1 - middle, middle])
    return SumsStudent(feature_map, both, offset=offset, target_range=target_range)


def fit_labels_student(
    noisy: Ints, feature_map: FeatureMap, pool: NDArray[Any], *, sigma: float, several: int
) -> SumsStudent:
    """A ridge regression of each label, 0 or 1, as of a number (`fit_target_student`), side by side.

    What the sums of no and yes have in common is the same for every label, so that its noise is less in their
    mean. A label's log odds are linear in φ·w, of a slope as in a discriminant analysis, and in the mean the
    pool has it as often as the sums say.

    Shapes: noisy int64 (dimension, 2 · several), of each label no first; `sigma` in steps.

    Raises:
        InputError: sums of another shape than the map's, or an empty pool.
    """
    if noisy.shape != (feature_map.dimension, 2 * several):
        raise InputError(f"the sums are {noisy.shape}: ({feature_map.dimension}, {2 * several}) is meant")
    known = _Known.of(noisy, feature_map, pool, sigma=sigma)
    weights, offset = list[Floats](), list[float]()
    for each, share in zip(known.fit().T, known.shares, strict=True):
        share = min(max(share, _RARE), 1 - _RARE)
        told, variance = known.features @ each, share * (1 - share)
        slope = 1 / (variance * max(_UNTOLD, 1 - float(told.var()) / variance))
        weights += [np.zeros(len(each)), slope * each]
        offset += [0.0, _offset(slope * told, share)]
    return SumsStudent(feature_map, np.stack(weights, axis=1), offset=np.array(offset), several=several)


def _offset(scores: Floats, share: float) -> float:
    """What makes the mean of 1/(1 + exp(-scores - offset)) the share that is known."""
    far = float(np.abs(scores).max()) + math.log(1 / _RARE)
    return float(brentq(lambda at: float(expit(scores + at).mean()) - share, -far, far))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Known:
    """What sums of pairs of columns and the pool tell, in units of the greatest length.

    Shapes: `pulled` float64 (d, pairs), Σ φ (y - mean of y) of each pair's y from 0 to 1, `shares` those
    means (pairs,), `features` the pool's float32 (p, d). `noise` is the variance in `pulled`, the mean of all
    pairs.
    """

    feature_map: FeatureMap
    features: NDArray[np.float32]
    gram: Floats
    records: float
    shares: Floats
    pulled: Floats
    noise: float

    @classmethod
    def of(cls, noisy: Ints, feature_map: FeatureMap, pool: NDArray[Any], *, sigma: float) -> _Known:
        """Of int64 (dimension, 2 · pairs).

        A pair's sum is that of all records, the same for every pair: their mean has less noise, so
        Σ φ (y - ȳ) is half a pair's difference and (1/2 - ȳ) of that mean.
        """
        if not len(pool):
            raise InputError("the pool has no inputs: one at least is meant")
        unit, features = float(np.sqrt(feature_map.squared_norm)), feature_map.scaled(pool)
        gram, sums = mean_gram(features), noisy / unit
        counts = class_counts(sums, gram, features.mean(axis=0, dtype=np.float64))
        no, yes = sums[:, 0::2], sums[:, 1::2]
        records = max(1.0, float((counts[0::2] + counts[1::2]).mean()))
        shares = np.clip(counts[1::2] / records, 0.0, 1.0)
        together = (no + yes).mean(axis=1, keepdims=True)
        return cls(
            feature_map=feature_map,
            features=features,
            gram=gram,
            records=records,
            shares=shares,
            pulled=(yes - no) / 2 + (1 / 2 - shares) * together,
            noise=(sigma / unit) ** 2 * float((1 + (1 - 2 * shares) ** 2 / len(shares)).mean()) / 2,
        )

    def fit(self) -> Floats:
        """Weights of each pair, float64 (d, pairs), the most likely by `fit_target_student`."""
        whole, weights = self.records * self.gram, np.zeros(self.pulled.shape)
        best = np.full(len(self.shares), -np.inf)
        for prior in priors(self.feature_map):
            squares = (whole * prior) @ whole
            for variance, expected in product(_VARIANCES, _WEIGHTS):
                bracket = variance * (expected * squares + (1 + self.records / len(self.features)) * whole)
                bracket[np.diag_indices_from(bracket)] += self.noise + _TINY * self.records**2
                factor = cho_factor(bracket, lower=True, overwrite_a=True, check_finite=False)
                found = cho_solve(factor, self.pulled)
                evidence = -(self.pulled * found).sum(axis=0) / 2 - np.log(np.diag(factor[0])).sum()
                better = evidence > best
                best[better] = evidence[better]
                weights[:, better] = variance * expected * prior[:, None] * (whole @ found[:, better])
        return weights

"""Noisy class sums: noise on the hospitals' sum, and the student in closed form that it gives.

INTERFACE for a federation:
    noisy_sums(mechanism, total, noise) -> int64 (dimension, classes)     noise added in one place
    noise_share(mechanism, noise)       -> int64 (dimension, classes)     one hospital's share
    fit_sums_student(noisy, feature_map, pool, sigma=, ...) -> SumsStudent    .predict_proba, .save, .load
Everything behind the noisy sum is post-processing of it and of the public pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar

from pate_fed.errors import InputError
from pate_fed.learning.features.feature_map import FeatureMap
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.privacy.mechanisms.class_sums import ClassSums, SharedClassSums
from pate_fed.privacy.mechanisms.noise import NoiseSource

__all__ = ["fit_sums_student", "noise_share", "noisy_sums"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

STRENGTH = 2.0  # λ in σ: chosen on digits and on parts of Adult and Fashion-MNIST that no table reports
ALIKE = 1e-3  # how closely a function that is 1 on the pool is sought, against its noise
TINY = 1e-12  # of the Gram matrix, so that its factor exists without noise too
SHARPNESS = (-1.0, 6.0)  # range of its logarithm
BELIEVED = 0.93  # of the pool's greatest scores


def noisy_sums(mechanism: ClassSums, total: Ints, noise: NoiseSource) -> Ints:
    """The exact sum with discrete Gaussian noise on every entry, int64 (dimension, classes).

    Raises:
        InputError: a sum of another shape.
    """
    shape = mechanism.dimension, mechanism.num_classes
    if total.shape != shape or total.dtype.kind not in "iu":
        raise InputError(f"the sum is {total.dtype} {total.shape}: whole numbers {shape} are meant")
    return total.astype(np.int64) + noise.discrete_gaussian(shape, sigma=mechanism.sigma)


def noise_share(mechanism: SharedClassSums, noise: NoiseSource) -> Ints:
    """One hospital's share of the noise, int64 (dimension, classes), which it adds to its own sum."""
    shape = mechanism.dimension, mechanism.num_classes
    return noise.discrete_gaussian(shape, sigma=mechanism.sigma_party)


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """The public pool under the map, in units of the greatest length.

    Shapes: features float32 (n, d), gram float64 (d, d) the mean of φφᵀ, mean float64 (d,).
    """

    features: NDArray[np.float32]
    gram: Floats
    mean: Floats

    @classmethod
    def of(cls, feature_map: FeatureMap, pool: NDArray[Any]) -> _Pool:
        features = feature_map.scaled(pool)
        gram = (features.T @ features).astype(np.float64) / len(features)
        return cls(features, gram, features.mean(axis=0, dtype=np.float64))


def fit_sums_student(
    noisy: Ints, feature_map: FeatureMap, pool: NDArray[Any], *, sigma: float, balanced: bool = False
) -> SumsStudent:
    """Ridge regression on classes from noisy sums and the public pool, in closed form, and its calibration.

    With G = n E φφᵀ of the pool, S = G W* + noise where scores φ·W* are class probabilities. The noise of σ
    is on S, so what is fitted is S: W = (G² + cG + λ²)⁻¹ G (S - mean over classes), the minimum of |S - GW|²
    + λ²|W|² where c is 0. λ = 2σ: weights of a half are what a prior expects. Chance has its part in n records
    and in a pool of p: as they are drawn S and G waver by a variance of about G, and of G n/p, for weights of
    a half, so c = 1 + n/p. n is what the sums say of a function that is 1 on the pool.

    With `balanced` each class counts alike, however many records it has. Sharpness has the greatest
    likelihood of the labels in the sums, less what the noise adds to it (Stein's lemma). Shapes: noisy int64
    (dimension, classes); pool as the map takes it; `sigma` in steps, of the noise that is known to be in it.

    Raises:
        InputError: sums of another shape than the map's.
    """
    if noisy.ndim != 2 or len(noisy) != feature_map.dimension:
        raise InputError(f"the sums are {noisy.shape}: ({feature_map.dimension}, classes) is meant")
    unit = float(np.sqrt(feature_map.squared_norm))
    public, sums, noise = _Pool.of(feature_map, pool), noisy / unit, sigma / unit
    counts = _class_counts(sums, public)
    records = max(float(counts.sum()), 1.0)
    gram = records * public.gram
    whole = gram @ gram + (1 + records / len(public.features)) * gram
    whole[np.diag_indices_from(whole)] += (STRENGTH * noise) ** 2 + TINY * records**2
    lower = cho_factor(whole, lower=True, overwrite_a=True, check_finite=False)
    centred = sums - sums.mean(axis=1, keepdims=True)
    weights = cho_solve(lower, gram @ centred)
    freedom = (sums.shape[1] - 1) * float(np.trace(cho_solve(lower, gram)))
    fit = float((sums * weights).sum()) - noise**2 * freedom
    sharpness = _sharpness(fit / records, public.features @ weights)
    offset = np.zeros(sums.shape[1])
    if balanced:
        shares = np.maximum(counts, 1.0) / np.maximum(counts, 1.0).sum()
        offset = -np.log(shares)
    return SumsStudent(feature_map, weights, sharpness=sharpness, offset=offset)


def _class_counts(sums: Floats, public: _Pool) -> Floats:
    """Records of each class, float64 (classes,), by a function of features that is about 1 on the pool."""
    gram = public.gram.copy()
    gram[np.diag_indices_from(gram)] += ALIKE
    ones = cho_solve(cho_factor(gram, lower=True), public.mean)
    return np.asarray(ones @ sums) / float(ones @ public.mean)


def _sharpness(fit: float, scores: NDArray[Any]) -> float:
    """The s with the greatest likelihood s·fit - mean ln Σ exp(s·scores), scores (n, classes).

    Labels that fit as well as the pool's greatest scores would ask for certainty; so much is never believed,
    as hospitals' records and the pool are not quite alike.
    """
    top = scores.max(axis=1, keepdims=True)
    fit = min(fit, BELIEVED * float(top.mean()))

    def loss(log_s: float) -> float:
        s = np.exp(log_s)
        return float((np.log(np.exp(s * (scores - top)).sum(axis=1)) + s * top[:, 0]).mean() - s * fit)

    return float(np.exp(minimize_scalar(loss, bounds=SHARPNESS, method="bounded").x))

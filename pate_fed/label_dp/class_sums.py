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

from pate_fed.errors import InputError
from pate_fed.learning.features.feature_map import FeatureMap
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.privacy.mechanisms.class_sums import ClassSums, SharedClassSums
from pate_fed.privacy.mechanisms.noise import NoiseSource

__all__ = ["fit_sums_student", "noise_share", "noisy_sums"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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
class _Spectrum:
    """The pool's second moments E φφᵀ = V diag(values) Vᵀ; float64 (d,), (d, d)."""

    values: Floats
    vectors: Floats


def fit_sums_student(
    noisy: Ints, feature_map: FeatureMap, pool: NDArray[Any], *, sigma: float
) -> SumsStudent:
    """Ridge regression on classes from noisy sums and the pool's Gram matrix, in closed form.

    W = (n E φφᵀ + λ)⁻¹ S. `sigma` is that of the noise in `noisy`, in steps. λ has the least Stein's unbiased
    estimate of the squared error that the noise leaves; the number of records n is the released counts'.

    Shapes: noisy int64 (dimension, classes), pool as the map takes it.
    """
    features = feature_map.scaled(pool)
    unit = float(np.sqrt(feature_map.squared_norm))
    sums, noise = noisy / unit, sigma / unit
    counts = noisy[0] / feature_map.constant
    records = max(float(counts.sum()), 1.0)
    values, vectors = np.linalg.eigh(features.T @ features / len(features))
    spectrum = _Spectrum(np.clip(values, 0, None) * records, vectors)
    turned = vectors.T @ sums
    strengths = noise * np.geomspace(0.03, 100, 36)
    risks = [_risk(spectrum.values, turned, noise, strength) for strength in strengths]
    strength = strengths[int(np.argmin(risks))]
    weights = vectors @ (turned / (spectrum.values + strength)[:, None])
    return SumsStudent(feature_map, weights, sharpness=4.0)


def _risk(values: Floats, turned: Floats, noise: float, strength: float) -> float:
    """Stein's unbiased estimate of the squared error, but for a constant."""
    shrink = 1 / (values + strength)
    weights = turned * shrink[:, None]
    fit = (values[:, None] * weights**2 - 2 * turned * weights).sum()
    return float(fit + 2 * noise**2 * turned.shape[1] * shrink.sum())

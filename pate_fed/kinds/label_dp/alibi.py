"""ALIBI: Laplace noise on one-hot labels, and Bayes' rule to make probabilities of what comes out.

Malek, Mironov, Prasad, Shilov and Tramèr, "Antipodes of label differential privacy" (NeurIPS 2021). A
replaced label changes a one-hot row by 2 in L1, so the scale is 2/ε. The noise is the discrete Laplace on a
grid of 1/1024, sampled with integers: a continuous one in floats would not have δ = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.kinds.label_dp.exact import PureMechanism
from pate_fed.kinds.label_dp.release import PrivateLabels, check_labels
from pate_fed.privacy.checks import check_scale
from pate_fed.privacy.label_dp import LabelResponse, LaplaceResponse
from pate_fed.privacy.mechanisms.noise import NoiseSource

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GRID = 1024  # steps of the grid in one label


@dataclass(frozen=True, slots=True, kw_only=True)
class Alibi(PureMechanism):
    """One-hot rows plus discrete Laplace noise of scale at least 2/ε, in labels."""

    row: ClassVar[type[LabelResponse]] = LaplaceResponse

    def __post_init__(self) -> None:
        PureMechanism.__post_init__(self)
        check_scale("scale", self.scale)

    @property
    def scale(self) -> float:
        """Scale of the noise in steps of the grid, rounded up: 2 · 1024/scale is at most ε."""
        found = 2 * GRID / self.epsilon
        while Fraction(2 * GRID) > Fraction(found) * Fraction(self.epsilon):
            found = math.nextafter(found, math.inf)
        return found

    @property
    def how(self) -> str:
        """The mechanism as text."""
        return f"Laplace noise of scale {self.scale / GRID:.4g} on one-hot labels"

    def noisy_rows(self, labels: ArrayLike, noise: NoiseSource) -> Ints:
        """The released rows in steps of the grid, int64 (n, K).

        Raises:
            InputError: labels that are none, or outside the classes.
        """
        true = check_labels(labels, self.num_classes)
        rows = noise.discrete_laplace((len(true), self.num_classes), scale=self.scale)
        rows[np.arange(len(true)), true] += GRID
        return rows

    def posterior(self, rows: Ints, prior: Floats | None = None) -> Floats:
        """Probabilities of the true class given the released rows, float64 (n, K); `prior` uniform if None.

        Only class k's own entry tells k apart: ln Pr[rows | k] = (|o_k| - |o_k - 1|)/scale + constant.
        """
        log = (np.abs(rows) - np.abs(rows - GRID)) / self.scale
        if prior is not None:
            log = log + np.log(np.maximum(prior, 1e-300))
        joint = np.exp(log - log.max(axis=1, keepdims=True))
        return np.asarray(joint / joint.sum(axis=1, keepdims=True))

    def private_labels(self, rows: Ints, noise: NoiseSource, prior: Floats | None = None) -> PrivateLabels:
        """The likeliest class of each released row and its posterior; a `prior` must be public."""
        posterior = self.posterior(rows, prior)
        return PrivateLabels.by(self, posterior.argmax(axis=1).astype(np.int64), noise, posterior)

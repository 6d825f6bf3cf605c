"""Directions in which public inputs differ most: what a whole hospital's records are added up along.

Features here have signs, and no bound of one record's length: they are for sums that are cut as a whole.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from pate_fed.errors import IntegrityError
from pate_fed.learning.features.feature_map import KERNEL, LINEAR, FeatureMap, FeatureSettings
from pate_fed.structure import to_plain

Ints = NDArray[np.int64]

_FARTHEST = 31  # lengths at which a feature is cut: 16 bits then hold it with the usual lattice
_SEPARATE = 0.8  # of the variance along as many directions as classes: what classes may differ by
_UNEXPLAINED = 0.25  # squared residual of a record under a useful model


class DirectionFeatures(FeatureMap):
    """A constant and the first directions of another map's features of the pool, drawn nearer to each other.

    Features are centred by the pool's mean. Along a direction of variance v they are divided by v to the
    power `whitening`; then the pool's mean squared length becomes 1, but for the constant. `turn` float32
    (the other map's dimension, directions), `centre` float32 (directions,), the constant first in both.
    """

    def __init__(
        self, settings: FeatureSettings, base: FeatureMap, turn: NDArray[Any], centre: NDArray[Any]
    ) -> None:
        self.settings, self.base, self.turn, self.centre = settings, base, turn, centre

    @property
    def dimension(self) -> int:
        """The constant and the directions."""
        return int(self.turn.shape[1])

    @property
    def largest(self) -> int:
        """So many lengths."""
        return _FARTHEST * self.settings.lattice

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """The other map's."""
        return self.base.image_shape

    @property
    def digest(self) -> str:
        """SHA-256 hex over settings, the other map's digest, and the directions."""
        text = json.dumps(to_plain(self.settings), sort_keys=True) + self.base.digest
        parts = (part.astype("<f4").tobytes() for part in (self.turn, self.centre))
        return hashlib.sha256(text.encode() + b"".join(parts)).hexdigest()

    def to_bytes(self) -> bytes:
        """A safetensors file: settings, the other map's file, and the directions."""
        from safetensors.numpy import save

        text = json.dumps(to_plain(self.settings)).encode()
        bytes_of = {"settings": text, "base": self.base.to_bytes()}
        arrays = {name: np.frombuffer(each, dtype=np.uint8) for name, each in bytes_of.items()}
        return save(arrays | {"turn": np.ascontiguousarray(self.turn), "centre": self.centre})

    def steps(self, inputs: NDArray[Any]) -> Ints:
        """Whole numbers with signs; int64 (n, dimension)."""
        lattice, most = self.settings.lattice, self.largest
        found = np.rint(lattice * (self.base.scaled(inputs) @ self.turn - self.centre))
        return np.asarray(np.clip(np.nan_to_num(found), -most, most), dtype=np.int64)

    def features(self, inputs: NDArray[Any]) -> Ints:
        """The same: nothing holds a record's length, as the whole sum is cut."""
        return self.steps(inputs)

    def usual_lengths(self, records: int, classes: int, public: NDArray[Any]) -> tuple[int, float]:
        """How long a hospital's sum of so many records mostly is, at first and of residuals later on.

        In records' lengths, by theory and the public pool's variances alone: at first each class of a record
        may lie apart along a direction of its own; later on residuals point anywhere.
        """
        spread = np.sort(self.scaled(public)[:, 1:].var(axis=0))[::-1]
        apart = _SEPARATE * float(spread[: classes - 1].sum()) / classes
        first = math.sqrt(apart * records**2 + records * (1 - 1 / classes))
        return max(1, round(first)), math.sqrt(_UNEXPLAINED * records)


def base_settings(settings: FeatureSettings) -> FeatureSettings:
    """Of the map whose directions are meant: the default of tables, or of images."""
    name = LINEAR if settings.columns else KERNEL
    return replace(settings, name=name, dimension=None, whitening=None)


def fit_directions(settings: FeatureSettings, base: FeatureMap, pool: NDArray[Any]) -> DirectionFeatures:
    """The map of a pool (n, ...), from its features by `base` alone."""
    features = base.scaled(pool).astype(np.float64)
    mean = features.mean(axis=0)
    covariance = features.T @ features / len(features) - np.outer(mean, mean)
    count = min(settings.most_anchors, len(mean) - 1, len(pool) - 1)
    values, vectors = eigh(covariance, subset_by_index=[len(mean) - count, len(mean) - 1])
    values, vectors = np.maximum(values[::-1], 1e-12), vectors[:, ::-1]
    scale = values**-settings.power
    scale /= math.sqrt(float((values * scale**2).sum()))
    turn = np.hstack([np.zeros((len(mean), 1)), vectors * scale]).astype(np.float32)
    centre = (mean @ turn).astype(np.float32)
    centre[0] = -scale[0] * math.sqrt(values[0])  # as far as the first direction mostly is
    return DirectionFeatures(settings, base, turn, centre)


def directions_from_arrays(
    settings: FeatureSettings, base: FeatureMap, arrays: dict[str, NDArray[Any]]
) -> DirectionFeatures:
    """Read the parts of what `DirectionFeatures.to_bytes` gave.

    Raises:
        IntegrityError: they do not fit together.
    """
    turn, centre = (arrays.get(name, np.zeros(0)) for name in ("turn", "centre"))
    fits = turn.dtype == centre.dtype == np.float32 and turn.ndim == 2 and centre.shape == turn.shape[1:]
    fits = fits and len(turn) == base.dimension and base.settings == base_settings(settings)
    if not fits or not (np.isfinite(turn).all() and np.isfinite(centre).all()):
        raise IntegrityError("the message: the features' parts do not fit together")
    return DirectionFeatures(settings, base, turn, centre)

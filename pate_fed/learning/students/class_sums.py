"""The student "class-sums": scores linear in a public feature map, from one noisy release of class sums."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import write_result
from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.features.build import feature_map_from_bytes
from pate_fed.learning.features.feature_map import FeatureMap

Floats = NDArray[np.float64]


class SumsStudent:
    """Scores φ(x)·W of a public feature map, as probabilities softmax(sharpness · scores + offset).

    Shapes: `weights` float64 (dimension, classes), for features in units of the greatest length; `offset`
    float64 (classes,).
    """

    def __init__(
        self,
        feature_map: FeatureMap,
        weights: Floats,
        *,
        sharpness: float = 1.0,
        offset: Floats | None = None,
    ) -> None:
        self.feature_map, self.weights, self.sharpness = feature_map, weights, sharpness
        self.offset = np.zeros(weights.shape[1]) if offset is None else offset
        self.num_classes = int(weights.shape[1])
        self.class_names: tuple[str, ...] = ()

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels of the images that it takes; None for rows of a table."""
        return self.feature_map.image_shape

    def logits(self, inputs: NDArray[Any]) -> Floats:
        """Logarithms of probabilities but for a constant, float64 (n, classes)."""
        return np.asarray(self.sharpness * (self.feature_map.scaled(inputs) @ self.weights) + self.offset)

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        """The class of each input; int64 (n,)."""
        return np.asarray(self.logits(inputs).argmax(axis=1), dtype=np.int64)

    def predict_proba(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Class probabilities, float32 (n, classes), rows sum to 1."""
        logits = self.logits(inputs)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True), dtype=np.float32)

    def save(self, path: Path) -> None:
        """Write the student to `path` (.npz), whole or not at all, readable by the owner only.

        Raises:
            InputError: the folder cannot be written to.
        """
        content = io.BytesIO()
        np.savez(
            content,
            feature_map=np.frombuffer(self.feature_map.to_bytes(), dtype=np.uint8),
            digest=np.array(self.feature_map.digest),
            weights=self.weights,
            sharpness=np.array(self.sharpness),
            offset=self.offset,
            class_names=np.array(self.class_names, dtype=np.str_),
        )
        write_result(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> SumsStudent:
        """Read what `save` wrote; no code in the file is run.

        Raises:
            InputError: no such file.
            IntegrityError: the file is damaged or is no such student.
        """
        try:
            with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                data, digest = file["feature_map"].tobytes(), str(file["digest"])
                weights, sharpness, offset = file["weights"], float(file["sharpness"]), file["offset"]
                names = tuple(map(str, file["class_names"]))
        except FileNotFoundError as error:
            raise InputError(f"{path}: there is no such file") from error
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise IntegrityError(f"{path}: the file is damaged or holds no student") from error
        feature_map = feature_map_from_bytes(data, digest=digest)
        fits = weights.dtype == np.float64 and weights.ndim == 2 and len(weights) == feature_map.dimension
        fits = fits and offset.dtype == np.float64 and offset.shape == weights.shape[1:]
        if not fits or not all(np.isfinite(part).all() for part in (weights, sharpness, offset)):
            raise IntegrityError(f"{path}: the file is damaged or holds no student")
        student = cls(feature_map, weights, sharpness=sharpness, offset=offset)
        student.class_names = names
        return student


def holds_sums(path: Path) -> bool:
    """Whether a student.npz is one of class sums, and no forest."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "feature_map.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False

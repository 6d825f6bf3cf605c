"""Features of images: a Gaussian kernel on the public encoder, at anchors of the public pool, never negative.

With anchors c_j and their kernel matrix K, (K + jitter)^(-1/2) k(x, c) are Nyström features, whose inner
products are the kernel. The symmetric root leaves each near its own anchor, so that few are negative; these
become 0, and what is left is scaled to length 1 and rounded down to the lattice.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.features.feature_map import FeatureMap
from pate_fed.learning.features.settings import FeatureSettings
from pate_fed.learning.inputs import check_images, to_tensor
from pate_fed.learning.networks.encoder import Encoder, fit_encoder
from pate_fed.learning.networks.heads import gaussian_kernel
from pate_fed.structure import from_plain, to_plain

__all__ = ["ImageFeatures", "fit_image_features"]

Ints = NDArray[np.int64]

CONSTANT = 8  # a part of the length: 1/64 of its square counts the classes
JITTER = 1e-3  # of a kernel's unit diagonal


class KernelFeatures(nn.Module):
    """Encoded images (n, d) to a constant and non-negative features (n, 1 + anchors), in whole steps."""

    def __init__(self, anchors: int, width: int, lattice: int) -> None:
        super().__init__()
        self.anchors: Tensor
        self.root: Tensor
        self.lattice: Tensor
        self.constant: Tensor
        self.register_buffer("anchors", torch.zeros(anchors, width))
        self.register_buffer("root", torch.zeros(anchors, anchors))
        self.register_buffer("lattice", torch.tensor(float(lattice)))
        self.register_buffer("constant", torch.tensor(float(lattice // CONSTANT)))

    def forward(self, encoded: Tensor) -> Tensor:
        """(n, d) to (n, 1 + anchors), at most `lattice` steps long."""
        found = (gaussian_kernel(encoded, self.anchors) @ self.root).clamp(min=0)
        length = found.square().sum(dim=1, keepdim=True).sqrt().clamp(min=1e-12)
        rest = (self.lattice.square() - self.constant.square()).sqrt()
        return nn.functional.pad((found * (rest / length)).floor(), (1, 0), value=float(self.constant))


class ImageFeatures(FeatureMap):
    """The map of images: the pool's encoder and anchors, float16 (anchors, d), chosen among its images."""

    def __init__(self, settings: FeatureSettings, encoder: Encoder, anchors: NDArray[np.float16]) -> None:
        self.settings, self.encoder, self.anchors = settings, encoder, anchors
        self._preprocess = encoder.preprocessing()
        self._kernel = KernelFeatures(*anchors.shape, settings.lattice)
        points = torch.from_numpy(anchors.astype(np.float64))
        among = gaussian_kernel(points, points) + JITTER * torch.eye(len(points), dtype=torch.float64)
        values, vectors = torch.linalg.eigh(among)
        self._kernel.anchors.copy_(points)
        self._kernel.root.copy_((vectors * values.clamp(min=JITTER).rsqrt()) @ vectors.T)

    @property
    def dimension(self) -> int:
        """Features of one image."""
        return 1 + len(self.anchors)

    @property
    def squared_norm(self) -> int:
        """The lattice's steps in a length of 1, squared."""
        return self.settings.lattice**2

    @property
    def constant(self) -> int:
        """An eighth of the length."""
        return self.settings.lattice // CONSTANT

    @property
    def digest(self) -> str:
        """SHA-256 hex over settings, encoder and anchors."""
        head = json.dumps([to_plain(self.settings), self.encoder.digest, list(self.anchors.shape)])
        content = np.ascontiguousarray(self.anchors, dtype="<f2").tobytes()
        return hashlib.sha256(head.encode() + content).hexdigest()

    def to_bytes(self) -> bytes:
        """A safetensors file: settings, encoder and anchors."""
        from safetensors.numpy import save

        arrays = {
            "settings": np.frombuffer(json.dumps(to_plain(self.settings)).encode(), dtype=np.uint8),
            "encoder": np.frombuffer(self.encoder.to_bytes(), dtype=np.uint8),
            "anchors": np.ascontiguousarray(self.anchors),
        }
        return save(arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> ImageFeatures:
        """Read what `to_bytes` gave.

        Raises:
            IntegrityError: damaged, or no such map.
        """
        from safetensors.numpy import load

        try:
            arrays = load(data)
            settings = from_plain(FeatureSettings, json.loads(arrays["settings"].tobytes()), where="features")
            encoder, anchors = Encoder.from_bytes(arrays["encoder"].tobytes()), arrays["anchors"]
        except Exception as error:  # what the readers of the header, JSON and NumPy meet first
            raise IntegrityError("the message: not an image's features, or damaged") from error
        fits = anchors.dtype == np.float16 and anchors.ndim == 2 and len(anchors) > 0
        if not fits or anchors.shape[1] != encoder.basis.shape[1] or not np.isfinite(anchors).all():
            raise IntegrityError("the message: the features' parts do not fit together")
        return cls(settings, encoder, anchors)

    def steps(self, inputs: NDArray[Any]) -> Ints:
        """Whole numbers of images uint8 (n, H, W, C), int64 (n, dimension)."""
        check_images(inputs, self.encoder.image_shape)
        with torch.inference_mode():
            found = self._kernel(self._preprocess(to_tensor(inputs, "cpu")))
        return np.asarray(found.numpy(), dtype=np.int64)


def fit_image_features(settings: FeatureSettings, pool: NDArray[np.uint8]) -> ImageFeatures:
    """The map of the public images `pool` uint8 (n, H, W, C): its encoder, and anchors evenly spaced in it.

    Raises:
        InputError: the images are none.
    """
    encoder = fit_encoder(pool)
    if settings.columns:
        raise InputError("columns: meant for a table, and these are images")
    chosen = np.unique(np.linspace(0, len(pool) - 1, min(len(pool), settings.dimension)).astype(np.int64))
    return ImageFeatures(settings, encoder, encoder.transform(pool[chosen]).astype(np.float16))

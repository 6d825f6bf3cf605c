"""Images as public numbers: on the pool's encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pate_fed.learning.features.feature_map import Embedding
from pate_fed.learning.features.kernel import WholeMatrix, row_product
from pate_fed.learning.networks import encoder as encoders
from pate_fed.learning.networks.classifiers import Shape
from pate_fed.learning.tensors import check_images, image_shape, to_tensor


def _measured(preprocess: encoders.HistogramFeatures, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What is measured of images uint8 (n, H, W, C), alike beside any others: float32 (n, size).

    So few at once that one thread has them all: where its share ends arctangents have other last bits.
    """
    found = np.empty((len(images), len(preprocess.mean)), dtype=np.float32)
    by = encoders.reduction(image_shape(images))
    height, width = (side // by + 2 * max(encoders.CELLS) for side in images.shape[1:3])
    count = max(1, encoders.AT_ONCE // (height * width))
    with torch.inference_mode():
        for start in range(0, len(images), count):
            part = to_tensor(images[start : start + count], "cpu")
            found[start : start + count] = preprocess.measure(part, alone=True).numpy()
    return found


class ImageEmbedding(Embedding):
    """The public encoder, which was fitted to the pool without a label."""

    def __init__(self, encoder: encoders.Encoder) -> None:
        self.encoder, self._preprocess = encoder, encoder.preprocessing()
        self._basis = WholeMatrix.of(encoder.basis.astype(np.float64))

    @property
    def width(self) -> int:
        """The encoder's dimensions."""
        return int(self.encoder.basis.shape[1])

    @property
    def image_shape(self) -> Shape:
        """The encoder's."""
        return self.encoder.image_shape

    def encode(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """Images uint8 (n, H, W, C) to float32 (n, width); InputError where they do not fit."""
        check_images(inputs, self.encoder.image_shape)
        centred = _measured(self._preprocess, inputs) - self.encoder.mean.astype(np.float32)
        return row_product(centred, self._basis, most=1.0).astype(np.float32)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The encoder's file, as an array of bytes."""
        return {"encoder": np.frombuffer(self.encoder.to_bytes(), dtype=np.uint8)}

    @classmethod
    def of_array(cls, data: NDArray[np.uint8]) -> ImageEmbedding:
        """Read what `to_arrays` gave; IntegrityError where it is damaged, or no encoder."""
        return cls(encoders.Encoder.from_bytes(data.tobytes()))


def fit_image_embedding(pool: NDArray[np.uint8]) -> ImageEmbedding:
    """The encoder of the public images `pool` uint8 (n, H, W, C), n ≥ 1; InputError where they are none."""
    return ImageEmbedding(encoders.fit_encoder(pool))

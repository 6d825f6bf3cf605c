"""Images on the pool's encoder: one image's numbers follow from it alone, and come back from a file."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.learning.features.images import ImageEmbedding, fit_image_embedding

IMAGES = np.random.default_rng(0).integers(0, 255, (9, 16, 16, 1)).astype(np.uint8)


def test_an_image_s_numbers_follow_from_it_alone_and_come_back_from_a_file() -> None:
    made = fit_image_embedding(IMAGES)
    encoded = made.encode(IMAGES)
    assert encoded.shape == (9, made.width) and encoded.dtype == np.float32
    assert np.array_equal(made.encode(IMAGES[3:4])[0], encoded[3])
    again = ImageEmbedding.of_array(made.to_arrays()["encoder"])
    assert again.image_shape == (16, 16, 1) and np.array_equal(again.encode(IMAGES), encoded)


def test_images_of_another_shape_are_refused() -> None:
    with pytest.raises(InputError):
        fit_image_embedding(IMAGES).encode(IMAGES[:, :12])

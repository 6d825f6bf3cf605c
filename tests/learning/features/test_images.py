"""Features of images: whole steps within the length that is charged, and read back as they were."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.errors import IntegrityError
from pate_fed.learning.features.images import fit_hog, hog_from_plain
from pate_fed.learning.features.settings import FeatureSettings

SETTINGS = FeatureSettings()
IMAGES = np.random.default_rng(0).integers(0, 255, (5, 16, 16, 1)).astype(np.uint8)


def test_steps_are_within_the_charged_length_and_of_the_shape_alone() -> None:
    made, other = fit_hog(SETTINGS, IMAGES), fit_hog(SETTINGS, IMAGES[:1])
    steps = made.steps(IMAGES)
    assert steps.shape == (5, made.dimension) and steps.dtype == np.int64 and steps.min() >= 0
    assert (steps**2).sum(axis=1).max() <= made.squared_norm
    assert made.digest == other.digest == hog_from_plain(SETTINGS, [16, 16, 1]).digest
    assert made.digest != fit_hog(SETTINGS, IMAGES[:, :12]).digest


@pytest.mark.parametrize("shape", [None, [16, 16], [16, "x", 1], [4, 16, 1], [16, 5000, 1], [16, 16, 2]])
def test_a_damaged_shape_is_refused(shape: object) -> None:
    with pytest.raises(IntegrityError):
        hog_from_plain(SETTINGS, shape)

"""Scattering: waves at their angles, no negative number, and little moved by a moved image."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.reproduce.scattering import ANGLES, JointFeatures, ScatteringFeatures, scattering


def waves(turn: float, *, pixels: float = 3.0, side: int = 24) -> NDArray[np.uint8]:
    """One image (1, side, side, 1) of a wave so many pixels long."""
    y, x = np.mgrid[:side, :side]
    along = x * np.cos(turn) + y * np.sin(turn)
    return (127 + 120 * np.sin(2 * np.pi * along / pixels)).astype(np.uint8)[None, :, :, None]


@pytest.mark.parametrize("angle", range(ANGLES))
@pytest.mark.parametrize(("scale", "pixels"), [(0, 8 / 3), (1, 16 / 3)])
def test_a_wave_is_seen_at_its_own_angle_and_scale(angle: int, scale: int, pixels: float) -> None:
    found = scattering(waves(np.pi * angle / ANGLES, pixels=pixels))
    assert found.shape == (1, 81, 36) and found.dtype == np.float32 and found.min() >= 0
    middle = found[0].reshape(81, 6, 6)[1 : 1 + 2 * ANGLES, 2:4, 2:4].mean(axis=(1, 2))
    assert middle.argmax() == scale * ANGLES + angle


def test_a_flat_image_has_its_mean_alone_and_a_moved_one_nearly_the_same() -> None:
    flat = scattering(np.full((1, 24, 24, 1), 51, dtype=np.uint8))[0]
    np.testing.assert_allclose(flat[0], 0.2, atol=1e-5)
    assert flat[1:].max() < 1e-5
    images = np.random.default_rng(0).integers(0, 256, (20, 24, 24, 1), dtype=np.uint8)
    plain, moved = (scattering(each).reshape(20, -1) for each in (images, np.roll(images, 1, axis=2)))
    pixels = (images.astype(float) - np.roll(images, 1, axis=2)).std() / images.std()
    assert (plain - moved).std() < 0.5 * pixels * plain.std()


def test_features_of_a_pool_have_the_lengths_that_they_are_charged_for() -> None:
    rng = np.random.default_rng(1)
    pool, other = rng.integers(0, 256, (2, 30, 16, 16, 1), dtype=np.uint8)
    features = ScatteringFeatures(pool)
    found = features.features(other)
    assert found.shape == (30, features.dimension) and found.min() >= 0
    squares = (found**2).sum(axis=1)
    assert squares.max() <= features.squared_norm and squares.min() > 0.5 * features.squared_norm
    assert features.digest == ScatteringFeatures(pool).digest != ScatteringFeatures(other).digest
    joint = JointFeatures(pool)
    assert np.mean(np.sum(joint(pool) ** 2, axis=1)) == pytest.approx(1, rel=1e-2)
    np.testing.assert_allclose(joint(pool)[3:5], joint(pool[3:5]), atol=1e-5)

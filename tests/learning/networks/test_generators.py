"""Generators beside the discriminators they belong to."""

from __future__ import annotations

import pytest
import torch

from pate_fed.learning.networks.classifiers import Pixels, build_discriminator
from pate_fed.learning.networks.generators import DenseGenerator, FeatureGenerator


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3), (8, 9, 1), (13, 30, 3)])
def test_any_image_fits(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    network, generator = build_discriminator("dense", shape, 7), DenseGenerator(shape)
    images = generator.draw(3)
    assert images.shape == (3, shape[2], *shape[:2]) and 0 <= images.min() <= images.max() <= 1
    preprocessed = network.preprocess(images)
    assert network.features(preprocessed).shape == (3, 250)
    assert network(images).shape == (3, 7)


@pytest.mark.parametrize("shape", [(16, 16, 1), (9, 13, 3), (70, 64, 1)])
def test_features_are_drawn_and_shown_as_images(shape: tuple[int, int, int]) -> None:
    generator = FeatureGenerator(shape, 12)
    seen = generator.draw_inputs(5, Pixels())
    assert seen.shape == (5, 12) and seen.requires_grad
    images = generator.draw(5).detach()
    assert images.shape == (5, shape[2], *shape[:2])
    assert float(images.min()) >= 0 and float(images.max()) <= 1


def test_images_are_read_off_their_features() -> None:
    torch.manual_seed(0)
    features = torch.randn(200, 12)
    pixels = (0.5 + 0.05 * features @ torch.randn(12, 64)).view(200, 1, 8, 8).clamp(0, 1)
    generator = FeatureGenerator((8, 8, 1), 12)
    generator.fit(features, pixels)
    generator.layers = torch.nn.Sequential()  # features in, images out
    found = generator(features)
    assert float((found - pixels).abs().mean()) < 0.01 < float((pixels.mean(dim=0) - pixels).abs().mean())

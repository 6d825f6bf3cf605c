"""Generators beside the discriminators they belong to."""

from __future__ import annotations

import pytest
import torch

from pate_fed.learning.networks.classifiers import build_discriminator
from pate_fed.learning.networks.generators import DeconvGenerator, DenseGenerator, build_generator

NETWORKS = ("dense", "nin-cnn", "nin-cnn-wide")


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3), (8, 9, 1), (13, 30, 3)])
@pytest.mark.parametrize("name", NETWORKS)
def test_any_image_fits(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    network, generator = build_discriminator(name, shape, 7), build_generator(name, shape)
    images = generator.draw(3)
    assert images.shape == (3, shape[2], *shape[:2]) and 0 <= images.min() <= images.max() <= 1
    preprocessed = network.preprocess(images)
    assert network.features(preprocessed).shape == (3, {"dense": 250, "nin-cnn": 128}.get(name, 192))
    assert network(images).shape == (3, 7)
    assert isinstance(generator, DenseGenerator if name == "dense" else DeconvGenerator)

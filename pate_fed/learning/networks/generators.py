"""The generators, each with the discriminators it belongs to.

Sources: PATE++ (arXiv 2211.01628), section IV: a generator of three dense layers. Salimans et al., "Improved
techniques for training GANs" (NIPS 2016): three dense layers for MNIST.
Discriminators on the public encoder have a generator of its features: no step goes through histograms.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from pate_fed.learning.networks.classifiers import Preprocessing, Shape
from pate_fed.learning.networks.encoder import reduction

RIDGE = 1e-3  # of a feature's mean square


class Generator(nn.Module, ABC):
    """From z ~ U(0, 1)^100 to an image in [0, 1]."""

    LATENT = 100

    @abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """(n, 100) to (n, C, H, W)."""

    def draw(self, count: int) -> Tensor:
        """`count` images (count, C, H, W) from torch's current random state."""
        return self(self._latent(count))  # type: ignore[no-any-return]

    def draw_inputs(self, count: int, preprocess: Preprocessing) -> Tensor:
        """What the discriminators see of `count` images: preprocessed, (count, ...)."""
        return preprocess(self.draw(count))  # type: ignore[no-any-return]

    def _latent(self, count: int) -> Tensor:
        weight = next(self.parameters())
        return torch.rand(count, self.LATENT, device=weight.device, dtype=weight.dtype)


class DenseGenerator(Generator):
    """Three dense layers, softplus and batch norm between them."""

    def __init__(self, image_shape: Shape, width: int = 500) -> None:
        super().__init__()
        self.image_shape = image_shape
        rows, columns, channels = image_shape
        self.first = _drawn(nn.Linear(self.LATENT, width), self.LATENT**-0.5)
        self.second = _drawn(nn.Linear(width, width), width**-0.5)
        self.third = weight_norm(_drawn(nn.Linear(width, rows * columns * channels), width**-0.5))
        self.norms = nn.ModuleList([nn.BatchNorm1d(width), nn.BatchNorm1d(width)])

    def forward(self, z: Tensor) -> Tensor:
        """(n, 100) to (n, C, H, W)."""
        h = self.norms[0](F.softplus(self.first(z)))  # (n, width)
        h = self.norms[1](F.softplus(self.second(h)))  # (n, width)
        return torch.sigmoid(self.third(h)).view(-1, *self.image_shape).permute(0, 3, 1, 2)  # (n, C, H, W)


class FeatureGenerator(Generator):
    """Three dense layers, softplus and batch norm between them, to features of the public encoder.

    An image is what a ridge regression on the public inputs, which `fit` makes, reads off the features.
    """

    def __init__(self, image_shape: Shape, features: int, width: int = 256) -> None:
        super().__init__()
        rows, columns, channels = self.image_shape = image_shape
        by = reduction(image_shape)
        self.small = (channels, rows // by, columns // by)
        self.decoder: Tensor
        self.middle: Tensor
        self.register_buffer("decoder", torch.zeros(features, math.prod(self.small)))
        self.register_buffer("middle", torch.zeros(math.prod(self.small)))
        norm = nn.BatchNorm1d
        self.layers = nn.Sequential(
            *(nn.Linear(self.LATENT, width), nn.Softplus(), norm(width)),
            *(nn.Linear(width, width), nn.Softplus(), norm(width)),
            nn.Linear(width, features),
        )

    def fit(self, features: Tensor, pixels: Tensor) -> None:
        """Learn how images (n, C, H, W), large ones made smaller, follow from their features (n, d)."""
        small = F.avg_pool2d(pixels, reduction(self.image_shape)).flatten(1)  # (n, p)
        self.middle.copy_(small.mean(dim=0))
        gram = features.T @ features
        ridge = RIDGE * gram.diagonal().mean().clamp(min=1e-6)
        gram = gram + ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        lower = torch.linalg.cholesky(gram)
        self.decoder.copy_(torch.cholesky_solve(features.T @ (small - self.middle), lower))

    def forward(self, z: Tensor) -> Tensor:
        """(n, 100) to (n, C, H, W)."""
        small = (self.middle + self.layers(z) @ self.decoder).clamp(0, 1).view(-1, *self.small)
        return F.interpolate(small, self.image_shape[:2], mode="bilinear")

    def draw_inputs(self, count: int, preprocess: Preprocessing) -> Tensor:
        """Features of `count` images, (count, d), as the generator makes them."""
        return self.layers(self._latent(count))  # type: ignore[no-any-return]


def _drawn(layer: nn.Linear, std: float) -> nn.Linear:
    """Weights N(0, std²), biases 0."""
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer

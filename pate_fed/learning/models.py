"""All networks: two classifiers that serve as teachers and as discriminators, and the generator.

Images come as float (n, channels, height, width) in [0, 1]. Shapes stand at each step; for 28×28 grey images
the small network goes 28 → 14 → 7, any height and width of at least 8 works.

Sources: PATE++ (arXiv 2211.01628), section IV: seven convolutional layers, two dense ones and an output,
a generator of three dense layers. Salimans et al., "Improved techniques for training GANs" (NIPS 2016):
weight normalisation, Gaussian noise layers, feature matching on a layer near the top, K logits and no K+1-th.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

__all__ = ["Classifier", "GaussianNoise", "Generator", "build_classifier", "build_discriminator"]

Wrap = Callable[[nn.Module], nn.Module]


def half(size: int) -> int:
    """Height or width after a padded convolution of stride 2."""
    return (size + 1) // 2


class GaussianNoise(nn.Module):
    """Adds N(0, std²) while training."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.std = std

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return x + self.std * torch.randn_like(x) if self.training and self.std > 0 else x


class Regular(nn.Module):
    """Keeps a layer's input from being memorised: by dropout (teachers), Gaussian noise (discriminators)."""

    def __init__(self, *, dropout: float, noise: float) -> None:
        super().__init__()
        self.steps = nn.Sequential(GaussianNoise(noise), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return self.steps(x)  # type: ignore[no-any-return]


class Classifier(nn.Module):
    """A trunk that gives features and a dense output layer of K logits.

    `mean` and `std` of the training images are part of the model, so that it takes plain [0, 1] images.
    """

    def __init__(self, trunk: nn.Sequential, output: nn.Module) -> None:
        super().__init__()
        self.trunk, self.output = trunk, output
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("std", torch.ones(()))

    def fit_scale(self, images: Tensor) -> None:
        """Take mean and standard deviation of the pixels from `images`."""
        self.mean.copy_(images.mean())
        self.std.copy_(images.std(correction=0).clamp(min=1e-3))  # one flat image has none

    def features(self, x: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] to (n, features)."""
        return self.trunk((x - self.mean) / self.std)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] to logits (n, K)."""
        return self.output(self.features(x))  # type: ignore[no-any-return]


def _plain(layer: nn.Module) -> nn.Module:
    return layer


def build_classifier(
    name: str,
    image_shape: tuple[int, int, int],
    num_classes: int,
    *,
    dropout: float = 0.0,
    input_noise: float = 0.0,
    noise: float = 0.0,
    normalise_weights: bool = False,
) -> Classifier:
    """The network `name` for images (height, width, channels) of at least 8×8.

    Teachers have dropout; discriminators have Gaussian noise on the input and between layers, normalised
    weights and leaky ReLUs.
    """
    height, width, channels = image_shape
    normed = weight_norm if normalise_weights else _plain
    slope = 0.2 if normalise_weights else 0.0
    build = {"small-cnn": _small_trunk, "deep-cnn": _deep_trunk}[name]

    def regular() -> Regular:
        return Regular(dropout=dropout, noise=noise)

    layers, size = build(height, width, channels, normed, regular, slope)
    trunk = nn.Sequential(GaussianNoise(input_noise), *layers)
    return Classifier(trunk, normed(_initialised(nn.Linear(size, num_classes), 1.0)))


def build_discriminator(name: str, image_shape: tuple[int, int, int], num_classes: int) -> Classifier:
    """The network `name` as a discriminator: normalised weights, leaky ReLUs and Gaussian noise."""
    return build_classifier(
        name, image_shape, num_classes, input_noise=0.3, noise=0.5, normalise_weights=True
    )


def _initialised(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Module:
    """Weights N(0, gain²/fan-in), biases 0."""
    fan_in = layer.weight[0].numel()
    nn.init.normal_(layer.weight, std=gain / fan_in**0.5)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def _small_trunk(
    height: int, width: int, channels: int, normed: Wrap, regular: Callable[[], nn.Module], slope: float
) -> tuple[list[nn.Module], int]:
    """Two convolutions of stride 2 and a dense layer: 28×28×1 → 14×14×16 → 7×7×32 → 64."""
    flat = 32 * half(half(height)) * half(half(width))
    layers = [
        normed(_initialised(nn.Conv2d(channels, 16, 5, stride=2, padding=2), 2**0.5)),
        nn.LeakyReLU(slope),  # (n, 16, ⌈H/2⌉, ⌈W/2⌉)
        normed(_initialised(nn.Conv2d(16, 32, 3, stride=2, padding=1), 2**0.5)),
        nn.LeakyReLU(slope),  # (n, 32, ⌈H/4⌉, ⌈W/4⌉)
        nn.Flatten(),  # (n, 32·⌈H/4⌉·⌈W/4⌉)
        regular(),
        normed(_initialised(nn.Linear(flat, 64), 2**0.5)),
        nn.LeakyReLU(slope),  # (n, 64)
        regular(),
    ]
    return layers, 64


def _deep_trunk(
    height: int, width: int, channels: int, normed: Wrap, regular: Callable[[], nn.Module], slope: float
) -> tuple[list[nn.Module], int]:
    """Seven convolutions and two dense layers: 28×28×1 → 28×28×96 → 14×14×192 → 7×7×192 → 192 → 192."""
    layers: list[nn.Module] = []
    plan = [(96, 1), (96, 1), (96, 2), (192, 1), (192, 1), (192, 2), (192, 1)]
    before = channels
    for after, stride in plan:
        layers.append(normed(_initialised(nn.Conv2d(before, after, 3, stride, padding=1), 2**0.5)))
        layers.append(nn.LeakyReLU(slope))  # (n, after, H, W), halved after the third and the sixth
        layers += [regular()] if stride == 2 else []
        before = after
    layers.append(nn.Flatten())  # (n, 192·⌈H/4⌉·⌈W/4⌉)
    flat = before * half(half(height)) * half(half(width))
    for size_in in (flat, 192):
        layers.append(normed(_initialised(nn.Linear(size_in, 192), 2**0.5)))
        layers += [nn.LeakyReLU(slope), regular()]  # (n, 192)
    return layers, 192


class Generator(nn.Module):
    """Three dense layers from z ~ U(0, 1)^100 to an image in [0, 1]: softplus and batch norm between them."""

    LATENT = 100

    def __init__(self, image_shape: tuple[int, int, int], width: int = 500) -> None:
        super().__init__()
        rows, columns, channels = image_shape
        self.shape = (channels, rows, columns)
        self.first = _initialised(nn.Linear(self.LATENT, width), 1.0)
        self.second = _initialised(nn.Linear(width, width), 1.0)
        self.third = weight_norm(_initialised(nn.Linear(width, channels * rows * columns), 1.0))
        self.norms = nn.ModuleList([nn.BatchNorm1d(width), nn.BatchNorm1d(width)])

    def forward(self, z: Tensor) -> Tensor:
        """(n, 100) to (n, C, H, W)."""
        h = self.norms[0](F.softplus(self.first(z)))  # (n, width)
        h = self.norms[1](F.softplus(self.second(h)))  # (n, width)
        return torch.sigmoid(self.third(h)).view(-1, *self.shape)  # (n, C, H, W)

    def draw(self, count: int) -> Tensor:
        """`count` images from torch's current random state."""
        weight = self.second.weight
        return self(torch.rand(count, self.LATENT, device=weight.device, dtype=weight.dtype))  # type: ignore

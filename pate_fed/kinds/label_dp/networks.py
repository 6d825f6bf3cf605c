"""Networks that learn from private labels: a light one on public features, and the paper's three on images.

LDP, section 5.1 and appendix A: ResNet-18 (He et al. 2016) and VGG-16 (Simonyan and Zisserman 2015), both
torchvision's with a stem for small images, and WRN-28-4 (Zagoruyko and Komodakis 2016), which it lacks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.errors import InputError, naming_mismatch
from pate_fed.learning.networks.classifiers import (
    Classifier,
    Preprocessing,
    Shape,
    Standardisation,
    build_classifier,
    build_encoder_network,
)
from pate_fed.learning.networks.encoder import Encoder

NETWORKS = ("light", "small-cnn", "deep-cnn", "resnet-18", "vgg-16", "wrn-28-4")
_SMALL_SIDE = 32  # below, VGG's fifth pooling would leave nothing
_SURE = 40.0  # logit of the one class of a centre: its probability is 1 in float32


def build_network(name: str, shape: Shape, num_classes: int, encoder: Encoder | None = None) -> Classifier:
    """A fresh network for images (height, width, channels); "light" is a hidden layer on the encoder.

    Raises:
        InputError: no such network, "light" without an encoder, or images too small for one.
    """
    if name not in NETWORKS:
        raise InputError(f"network is {name!r}: one of {', '.join(NETWORKS)} is meant")
    if name == "light":
        if encoder is None:
            raise InputError("network light needs the encoder of the public features, and none was given")
        return build_encoder_network(encoder.preprocessing(), encoder.basis.shape[1], num_classes)
    if name in ("small-cnn", "deep-cnn"):
        return build_classifier(name, shape, num_classes)
    if min(shape[:2]) < 16:
        raise InputError(f"network {name} on images of {shape[0]}×{shape[1]}: at least 16×16 is meant")
    front: Preprocessing = Standardisation(shape[2])
    if name == "resnet-18":
        return _resnet(front, shape[2], num_classes)
    if name == "vgg-16":
        return _vgg(front, shape, num_classes)
    return Classifier(front, [_WideResNet(shape[2])], nn.Linear(_WideResNet.FEATURES, num_classes))


def nearest_centre(
    front: Preprocessing, centres: NDArray[np.float32], classes: NDArray[np.int64], num_classes: int
) -> Classifier:
    """A classifier that gives an image the class of the nearest centre, and no other a chance.

    Shapes: `centres` float32 (c, d) of what `front` gives, `classes` int64 (c,).
    """
    return Classifier(front, [], _Nearest(centres, classes, num_classes)).eval()


class _Nearest(nn.Module):
    """Features (n, d) to logits (n, K) of the class of the nearest of some centres."""

    centres: Tensor
    halves: Tensor
    table: Tensor

    def __init__(self, centres: NDArray[np.float32], classes: NDArray[np.int64], num_classes: int) -> None:
        super().__init__()
        near = torch.from_numpy(np.asarray(centres, dtype=np.float32))
        self.register_buffer("centres", near)
        self.register_buffer("halves", near.square().sum(dim=1) / 2)  # (c,)
        self.register_buffer("table", _SURE * torch.eye(num_classes)[torch.from_numpy(classes)])  # (c, K)

    def forward(self, x: Tensor) -> Tensor:
        nearest = (x @ self.centres.T - self.halves).argmax(dim=1)
        return self.table[nearest]


def _resnet(front: Preprocessing, channels: int, num_classes: int) -> Classifier:
    """3×3 stem of stride 1 and no pooling after it, as for CIFAR."""
    with naming_mismatch():
        from torchvision.models import resnet18

    body: Any = resnet18(weights=None)
    body.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    body.maxpool, body.fc = nn.Identity(), nn.Identity()
    return Classifier(front, [body], nn.Linear(512, num_classes))  # (n, 512)


def _vgg(front: Preprocessing, shape: Shape, num_classes: int) -> Classifier:
    """With batch norm, one mean over what is left of the image, and one dense layer."""
    with naming_mismatch():
        from torchvision.models import vgg16_bn

    layers = list(vgg16_bn(weights=None).features.children())
    layers[0] = nn.Conv2d(shape[2], 64, 3, padding=1)
    if min(shape[:2]) < _SMALL_SIDE:
        layers = layers[:-1]
    trunk = [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5)]  # (n, 512)
    return Classifier(front, trunk, nn.Linear(512, num_classes))


class _Block(nn.Module):
    """Norm, ReLU and 3×3 convolution twice, plus the input or a 1×1 convolution of it."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        same = before == after and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n, before, H, W) to (n, after, H/stride, W/stride)."""
        ready = F.relu(self.norm1(x))
        shortcut = x if isinstance(self.short, nn.Identity) else self.short(ready)
        shown: Tensor = self.second(F.relu(self.norm2(self.first(ready)))) + shortcut
        return shown


class _WideResNet(nn.Module):
    """28 layers, 4 times as wide: three groups of four blocks."""

    FEATURES = 256

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = (16, 64, 128, 256)
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        blocks = []
        for before, after, stride in zip(widths, widths[1:], (1, 2, 2), strict=False):
            blocks += [_Block(before, after, stride), *(_Block(after, after, 1) for _ in range(3))]
        self.blocks, self.norm = nn.Sequential(*blocks), nn.BatchNorm2d(self.FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) to (n, 256)."""
        return F.relu(self.norm(self.blocks(self.stem(x)))).mean(dim=(2, 3))

"""All classifiers: those that serve as teachers and discriminators, and the improved GAN's.

Images come as float (n, channels, height, width) in [0, 1]; shapes stand at each step; any height and width
of at least 8 works.

Sources: PATE++ (arXiv 2211.01628), section IV: seven convolutional layers, two dense ones and an output.
Salimans et al., "Improved techniques for training GANs" (NIPS 2016): weight normalisation, Gaussian noise,
features to be matched near the top, K logits and no K+1-th; "dense" is its discriminator for MNIST, scaled by
data at the start (Salimans and Kingma, "Weight normalization", NIPS 2016).
Dalal and Triggs, "Histograms of oriented gradients" (CVPR 2005): gradient energy by orientation, normalised
over a neighbourhood.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

Shape = tuple[int, int, int]  # height, width, channels
Layers = list[nn.Module]
AT_ONCE = 1000  # images preprocessed together
INITIALISED_FROM = 500  # inputs, as in the improved GAN


class GaussianNoise(nn.Module):
    """Adds N(0, std²) while training."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.std = std

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return x + self.std * torch.randn_like(x) if self.training and self.std else x


class Dropout(nn.Module):
    """Zeroes each value with probability `share` while training, to the nearest 1/256, and scales the rest.

    Eight values share one random number of 64 bits: on a CPU some twenty times as fast as one draw a value,
    which would be a third of a step.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.dropped = min(round(256 * share), 255)  # all of them would leave nothing to scale

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        if not self.training or not self.dropped:
            return x
        if not (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)):
            x = x.contiguous()  # the mask takes the strides of `x`, so every value needs a place of its own
        drawn = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
        drawn = drawn.random_(-(2**63), None).view(torch.uint8)  # (≥ numel,)
        mask = torch.as_strided(drawn, x.shape, x.stride()) >= self.dropped
        return x * (mask * (256 / (256 - self.dropped)))


class Preprocessing(nn.Module, ABC):
    """Fixed preprocessing in front of the first learned layer.

    Nothing in it is trained on labels, so training computes it once for all images.
    """

    @abstractmethod
    def fit(self, x: Tensor) -> None:
        """Take what it needs to know of the images `x` (n, C, H, W)."""

    def in_parts(self, x: Tensor) -> Tensor:
        """The preprocessed images, 1,000 at once, which keeps memory low."""
        return torch.cat([self(part) for part in torch.split(x, AT_ONCE)])


class Standardisation(Preprocessing):
    """Standardised pixels: `fit` takes each channel's mean and standard deviation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))

    def measure(self, x: Tensor) -> Tensor:
        """(n, C, H, W) to what is standardised."""
        return x

    def fit(self, x: Tensor) -> None:
        """Take the scale from the images `x`."""
        measured = self.measure(x)
        self.mean.copy_(measured.mean(dim=(0, 2, 3)).view_as(self.mean))
        # A channel may be flat, as in one blank image.
        self.std.copy_(measured.std(dim=(0, 2, 3), correction=0).clamp(min=1e-3).view_as(self.std))

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] to the same standardised."""
        return self.turn(self.measure(x))

    def turn(self, measured: Tensor) -> Tensor:
        """What `measure` gave, standardised."""
        return (measured - self.mean) / self.std


class Pixels(Preprocessing):
    """Pixels as they are."""

    def fit(self, x: Tensor) -> None:
        """Nothing to know."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1], the same."""
        return x


class OrientedGradients(Standardisation):
    """Pixels at half size, and the energy of the grey gradient along four orientations.

    With the gradient g and a unit vector a, the energy is the mean of (a·g)² over a 2×2 cell, divided by
    the energy around it and square-rooted. Edges are what few records cannot teach a first layer.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels + 4)

    def measure(self, x: Tensor) -> Tensor:
        """(n, C, H, W) to (n, C + 4, ⌊H/2⌋, ⌊W/2⌋)."""
        grey = x.mean(dim=1, keepdim=True)  # (n, 1, H, W)
        # The edge again on every side; the gradient of `F.pad` is summed in no fixed order on a card.
        grey = torch.cat([grey[:, :, :1], grey, grey[:, :, -1:]], dim=2)
        grey = torch.cat([grey[..., :1], grey, grey[..., -1:]], dim=3)  # (n, 1, H + 2, W + 2)
        across = grey[:, :, 1:-1, 2:] - grey[:, :, 1:-1, :-2]  # (n, 1, H, W)
        down = grey[:, :, 2:, 1:-1] - grey[:, :, :-2, 1:-1]  # (n, 1, H, W)
        xx, yy, xy = (_halved(p) for p in (across * across, down * down, across * down))
        total = xx + yy  # (n, 1, ⌊H/2⌋, ⌊W/2⌋)
        energy = torch.cat([xx, yy, total / 2 + xy, total / 2 - xy], dim=1)  # along 0°, 90°, 45° and 135°
        around = F.pad(total, (1, 1, 1, 1))
        around = around[:, :, :-2] + around[:, :, 1:-1] + around[:, :, 2:]
        around = (around[..., :-2] + around[..., 1:-1] + around[..., 2:]) / 9  # its own shape again
        # The small number keeps the root's slope finite where an image is flat.
        edges = (energy.clamp(min=0) / (around + 0.02) + 1e-4).sqrt()
        return torch.cat([_halved(x), edges], dim=1)


def _halved(x: Tensor) -> Tensor:
    """Means over 2×2 cells: (n, C, H, W) to (n, C, ⌊H/2⌋, ⌊W/2⌋); on a CPU much faster than `avg_pool2d`."""
    rows, columns = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    x = x[:, :, 0:rows:2] + x[:, :, 1:rows:2]
    return (x[..., 0:columns:2] + x[..., 1:columns:2]) / 4


class Classifier(nn.Module):
    """Fixed preprocessing, a trunk that gives features, and a dense output of K logits."""

    def __init__(self, preprocess: Preprocessing, trunk: Layers, output: nn.Module) -> None:
        super().__init__()
        self.preprocess, self.trunk, self.output = preprocess, nn.Sequential(*trunk), output

    def initialise_from_data(self, preprocessed: Tensor) -> None:
        """Data-dependent initialisation, once and before any training; here nothing."""

    def features(self, preprocessed: Tensor) -> Tensor:
        """Preprocessed images to (n, features)."""
        return self.trunk(preprocessed)  # type: ignore[no-any-return]

    def logits(self, preprocessed: Tensor) -> Tensor:
        """Preprocessed images to (n, K)."""
        return self.output(self.trunk(preprocessed))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) in [0, 1] to logits (n, K)."""
        return self.logits(self.preprocess(x))


class ScaledByData(Classifier):
    """A classifier whose layers all answer some inputs with mean 0 and deviation 1 before it is trained.

    Weights have a trained direction; a scale only where `normed` left it free.
    """

    def initialise_from_data(self, preprocessed: Tensor) -> None:
        """Data-dependent initialisation (Salimans and Kingma) from the first 500 inputs, noise included."""
        layers = [each for each in self.modules() if isinstance(each, nn.Linear)]
        hooks = [layer.register_forward_hook(_standardise) for layer in layers]
        self.train()
        with torch.no_grad():
            self.logits(preprocessed[:INITIALISED_FROM])
        for hook in hooks:
            hook.remove()


def _standardise(layer: nn.Module, _: object, answer: Tensor) -> Tensor:
    """Give `layer`, whose bias is 0, the scale and bias at which each unit has mean 0 and deviation 1."""
    mean, spread = answer.mean(dim=0), answer.std(dim=0, correction=0)  # (units,)
    # A unit that answers all alike, as to one blank image, keeps its scale.
    scale = torch.where(spread > 1e-4, 1.0 / spread, 1.0)
    norm = _scale(layer)
    norm.mul_(scale.view_as(norm))
    layer.bias.copy_(-mean * scale)  # type: ignore[operator]
    return (answer - mean) * scale


def build_classifier(name: str, image_shape: Shape, num_classes: int) -> Classifier:
    """The network `name` as a teacher: ReLUs and dropout, for images (height, width, channels)."""
    style = _Style(lambda layer: layer, nn.ReLU, lambda: Dropout(0.3))
    return _BUILDERS[name](image_shape, num_classes, style)


def build_discriminator(
    name: str,
    image_shape: Shape,
    num_classes: int,
    *,
    dropout: float | None = None,
    input_noise: float | None = None,
) -> Classifier:
    """The network `name` as a discriminator: noise, dropout and normalised weights.

    None is the network's own: the improved GAN's has its recipe's, the others 0.5 each.
    """
    if name == "dense":
        return _dense(image_shape, num_classes, dropout, input_noise)

    # Noise on the input as in the recipe; above it dropout, which held off wrong labels better (measured).
    share = 0.5 if dropout is None else dropout
    style = _Style(weight_norm, partial(nn.LeakyReLU, 0.2), partial(Dropout, share))
    network = _BUILDERS[name](image_shape, num_classes, style)
    network.trunk.insert(0, GaussianNoise(0.5 if input_noise is None else input_noise))
    return network


def own_network(network: nn.Module, *, channels: int) -> Classifier:
    """A network of one's own, from standardised images to logits, whose norms are averaged as its weights."""
    return Classifier(Standardisation(channels), [network], nn.Identity())


def build_encoder_network(preprocess: Preprocessing, features: int, num_classes: int) -> Classifier:
    """One hidden layer on `features` of fitted preprocessing: quick, and hard to lead astray."""
    trunk: Layers = [nn.Linear(features, 256), nn.ReLU(), nn.Dropout(0.2)]  # (n, 256)
    return Classifier(preprocess, trunk, nn.Linear(256, num_classes))


def build_encoder_discriminator(
    preprocess: Preprocessing,
    features: int,
    num_classes: int,
    *,
    dropout: float | None = None,
    input_noise: float | None = None,
) -> Classifier:
    """The same as a discriminator: normalised weights, by default 0.3 of the hidden units dropped, no noise.

    A generator is taught through the preprocessing, too.
    """
    trunk = [
        _Scaled(features**0.5),  # from vectors of length 1 to numbers of mean square 1
        GaussianNoise(input_noise or 0.0),
        weight_norm(_drawn(nn.Linear(features, 256))),
        nn.LeakyReLU(0.2),
        Dropout(0.3 if dropout is None else dropout),
    ]  # (n, 256)
    return Classifier(preprocess, trunk, weight_norm(_drawn(nn.Linear(256, num_classes), 1.0)))


class _Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


@dataclass(frozen=True, slots=True)
class _Style:
    """What differs between a teacher's and a discriminator's layers."""

    normed: Callable[[nn.Module], nn.Module]
    active: Callable[[], nn.Module]
    regular: Callable[[], nn.Module]


def _small(shape: Shape, num_classes: int, style: _Style) -> Classifier:
    """Oriented gradients and one convolution: 28×28×1 → 14×14×5 → 7×7×32 → K."""
    rows, columns, channels = shape
    flat = 32 * ((rows // 2 + 1) // 2) * ((columns // 2 + 1) // 2)
    trunk = [
        style.normed(_drawn(nn.Conv2d(channels + 4, 32, 3, stride=2, padding=1))),  # (n, 32, ~H/4, ~W/4)
        style.active(),
        nn.Flatten(),  # (n, flat)
        style.regular(),
    ]
    return Classifier(
        OrientedGradients(channels), trunk, style.normed(_drawn(nn.Linear(flat, num_classes), 1.0))
    )


def _deep(shape: Shape, num_classes: int, style: _Style) -> Classifier:
    """Seven convolutions, two dense layers: 28×28×1 → 14×14×96 → 7×7×192 → 192 → 192 → K."""
    rows, columns, channels = shape
    trunk: Layers = []
    before = channels
    for after, stride in [(96, 1), (96, 1), (96, 2), (192, 1), (192, 1), (192, 2), (192, 1)]:
        trunk += [style.normed(_drawn(nn.Conv2d(before, after, 3, stride, padding=1))), style.active()]
        trunk += [style.regular()] if stride == 2 else []  # (n, after, ⌈H/2⌉, ⌈W/2⌉), then a quarter
        before = after
    trunk.append(nn.Flatten())  # (n, 192·⌈H/4⌉·⌈W/4⌉)
    for size in (before * ((rows + 3) // 4) * ((columns + 3) // 4), 192):
        trunk += [style.normed(_drawn(nn.Linear(size, 192))), style.active(), style.regular()]  # (n, 192)
    return Classifier(
        Standardisation(channels), trunk, style.normed(_drawn(nn.Linear(192, num_classes), 1.0))
    )


_BUILDERS = {"small-cnn": _small, "deep-cnn": _deep}


def _dense(shape: Shape, num_classes: int, dropout: float | None, input_noise: float | None) -> Classifier:
    """The improved GAN's for MNIST: H·W·C → 1000 → 500 → 250 → 250 → 250 → K, noise before every layer."""
    size = shape[0] * shape[1] * shape[2]
    trunk: Layers = [GaussianNoise(0.3 if input_noise is None else input_noise), nn.Flatten()]  # (n, H·W·C)
    for place, width in enumerate((1000, 500, 250, 250, 250)):
        trunk += [GaussianNoise(0.5), Dropout(dropout or 0.0)] if place else []
        trunk += [_directed(nn.Linear(size, width)), nn.ReLU()]  # (n, width)
        size = width
    # Features are matched below the last noise.
    output = nn.Sequential(GaussianNoise(0.5), _directed(nn.Linear(size, num_classes), scaled=True))  # (n, K)
    return ScaledByData(Pixels(), trunk, output)


def _directed(layer: nn.Linear, *, scaled: bool = False) -> nn.Module:
    """Normalised weights, their direction drawn and trained; their scale is trained only if `scaled`."""
    nn.init.normal_(layer.weight, std=0.1)
    nn.init.zeros_(layer.bias)
    normed: nn.Module = weight_norm(layer)
    _scale(normed).requires_grad_(scaled)
    return normed


def _scale(normed: nn.Module) -> Tensor:
    """The length of each unit's weights, (units, 1, ...)."""
    return normed.parametrizations.weight.original0  # type: ignore[union-attr,return-value]


def _drawn(layer: nn.Linear | nn.Conv2d, gain: float = 2.0) -> nn.Module:
    """Weights N(0, gain / fan-in), which keeps the size of a signal through ReLUs at gain 2; biases 0."""
    nn.init.normal_(layer.weight, std=(gain / layer.weight[0].numel()) ** 0.5)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer

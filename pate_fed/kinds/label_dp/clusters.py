"""Clusters of public inputs, found without a label, and the networks that are trained on them without one.

Any other clusterer fits in as one function. The light one is k-means on the encoder's self-supervised
features. `Scan` is the paper's. With many small clusters a majority says
more, but each majority is less sure: `noise_clusters` says how many NoiseCluster can name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.errors import InputError, PateFedError, naming_mismatch
from pate_fed.learning import tensors
from pate_fed.learning.networks.classifiers import (
    Classifier,
    Preprocessing,
    Shape,
    Standardisation,
    build_classifier,
    build_encoder_network,
)
from pate_fed.learning.networks.encoder import Encoder
from pate_fed.learning.students.fixmatch import ImageViews
from pate_fed.learning.tensors import seeded, to_tensor
from pate_fed.privacy.label_dp import equation5_sigma

if TYPE_CHECKING:
    from pate_fed.kinds.label_dp.public import PublicInputs

# Networks that learn from private labels: a light one on public features, and those on images.
#
# LDP, section 5.1: ResNet-18 (He et al. 2016), torchvision's with a stem for small images, and WRN-28-4
# (Zagoruyko and Komodakis 2016), which it lacks.

NETWORKS = ("light", "small-cnn", "deep-cnn", "resnet-18", "wrn-28-4")
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
    front = Standardisation(shape[2])
    if name == "resnet-18":
        return _resnet(front, shape[2], num_classes)
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


Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

MOST = 1200  # more small clusters cost time, and smoothing joins them again
_LARGE = 7.0  # records a cluster in units of σ, so that a majority stands out


class Clusterer(Protocol):
    """A function of public inputs: of `images`, uint8 (n, H, W, C), or of `features`, float32 (n, d)."""

    def __call__(self, inputs: PublicInputs, num_clusters: int, *, seed: int) -> Ints:
        """The cluster of each input, int64 (n,), 0 .. `num_clusters` - 1."""


def encoder_clusters(inputs: PublicInputs, num_clusters: int, *, seed: int) -> Ints:
    """K-means on the features of the encoder that was fitted to these inputs."""
    return _kmeans(inputs.features, num_clusters, seed)


def fine_clusters(records: int, num_classes: int) -> int:
    """How many clusters DenoiseSSL takes: 50 records each, 1,200 at most; smoothing joins what is alike."""
    return _within(records / 50, records, num_classes)


def noise_clusters(records: int, num_classes: int, *, epsilon: float, delta: float) -> int:
    """How many clusters NoiseCluster can name: 7σ records in each. Public numbers only.

    Raises:
        InputError: ε or δ out of range.
    """
    return _within(records / (_LARGE * equation5_sigma(epsilon, delta)), records, num_classes)


def cluster_means(features: Floats, clusters: Ints, num_clusters: int) -> Floats:
    """Mean features of each cluster, float32 (clusters, d); 0 for an empty one."""
    sums = np.zeros((num_clusters, features.shape[1]))
    np.add.at(sums, clusters, features)
    counts = np.bincount(clusters, minlength=num_clusters)
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)


def _within(wanted: float, records: int, num_classes: int) -> int:
    least = num_classes
    return min(records, max(least, min(MOST, math.floor(wanted))))


def _kmeans(features: Floats, num_clusters: int, seed: int) -> Ints:
    from sklearn.cluster import MiniBatchKMeans

    size = min(len(features), max(2048, 3 * num_clusters))
    fitted = MiniBatchKMeans(num_clusters, batch_size=size, n_init=1, max_iter=20, random_state=seed)
    return np.asarray(fitted.fit_predict(features), dtype=np.int64)


# SCAN: clusters by contrastive pretraining, agreement with nearest neighbours, and self-labelling.
#
# Van Gansbeke, Vandenhende, Georgoulis, Proesmans and Van Gool, "SCAN: Learning to classify images without
# labels" (ECCV 2020), on SimCLR (Chen, Kornblith, Norouzi and Hinton, ICML 2020), with torchvision's
# ResNet-18. No label is used, so it costs no privacy. The defaults are the papers' and want a GPU.

PROJECTED = 128
_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """SCAN's three stages; an instance is a clusterer.

    `network` is one of the room's networks on images. `contrast_epochs`, `cluster_epochs` and `label_epochs`
    are of the stages; `temperature` is SimCLR's, `entropy` the weight that keeps clusters alike in size,
    `confidence` what a cluster's probability must reach to label an input, and `batch_size` holds for all.

    Raises:
        InputError: a value that is out of range.
    """

    network: str = "resnet-18"
    contrast_epochs: int = 500
    cluster_epochs: int = 50
    label_epochs: int = 200
    neighbours: int = 20
    batch_size: int = 512
    temperature: float = 0.1
    entropy: float = 5.0
    confidence: float = 0.99
    log: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        counts = ("contrast_epochs", "cluster_epochs", "label_epochs", "neighbours", "batch_size")
        for name in counts:
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: a whole number of at least 1 is meant")
        if self.network == "light":
            raise InputError("SCAN learns features of its own: a network on images is meant, not light")

    def __call__(self, inputs: PublicInputs, num_clusters: int, *, seed: int) -> Ints:
        """The cluster of each input, int64 (n,)."""
        with seeded(seed, inputs.device):
            return _Scan(self, inputs, num_clusters).run()


class _Scan:
    """The network, its head for clusters, and the three stages."""

    def __init__(self, settings: Scan, inputs: PublicInputs, num_clusters: int) -> None:
        self.settings, self.device = settings, torch.device(inputs.device)
        self.pixels = to_tensor(inputs.images, inputs.device)
        network = build_network(settings.network, inputs.shape, num_clusters)
        self.network = network.to(self.device)
        self.network.preprocess.fit(self.pixels[:2000])
        self.views = ImageViews(self.pixels, self.network.preprocess, flip=inputs.flip)
        with torch.no_grad():
            size = self.network.eval().features(self.network.preprocess(self.pixels[:2])).shape[1]
        self.project = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, PROJECTED))
        self.project = self.project.to(self.device)

    def run(self) -> Ints:
        """All stages."""
        settings = self.settings
        body = [*self.network.trunk.parameters()]
        head = [*self.network.output.parameters()]
        self._stage(
            "contrast", settings.contrast_epochs, [*body, *self.project.parameters()], 1e-3, self._contrast
        )
        near = self._neighbours()
        self._stage(
            "clusters", settings.cluster_epochs, [*body, *head], 1e-4, lambda rows: self._cluster(rows, near)
        )
        self._stage("self-labels", settings.label_epochs, [*body, *head], 1e-4, self._self_label)
        return np.asarray(self._all(self.network.logits).argmax(dim=1).cpu().numpy(), dtype=np.int64)

    def _stage(
        self,
        name: str,
        epochs: int,
        weights: list[nn.Parameter],
        rate: float,
        loss_of: Callable[[Tensor], Tensor],
    ) -> None:
        optimiser = tensors.Adam(weights, lr=rate, weight_decay=1e-4)
        count = len(self.pixels)
        size = min(self.settings.batch_size, count)
        self.network.train()
        for epoch in range(1, epochs + 1):
            order = torch.randperm(count, device=self.device)
            for start in range(0, count - size + 1, size):
                loss = loss_of(order[start : start + size])
                optimiser.zero_grad(set_to_none=True)
                torch.autograd.backward([loss])
                optimiser.step()
            if not bool(torch.isfinite(loss)):
                raise PateFedError(f"SCAN: the loss of {name} is not finite in epoch {epoch}")
            if self.settings.log is not None:
                self.settings.log(f"SCAN, {name}: epoch {epoch} of {epochs}, loss {float(loss.detach()):.3f}")

    def _contrast(self, rows: Tensor) -> Tensor:
        """NT-Xent: each input's two strong views find each other among all views of the batch."""
        shown = torch.cat([self.views.strong(rows), self.views.strong(rows)])
        z = F.normalize(self.project(self.network.features(shown)), dim=1)  # (2b, 128)
        alike = z @ z.T / self.settings.temperature
        alike.fill_diagonal_(-torch.inf)
        partner = torch.arange(len(z), device=self.device).roll(len(rows))
        return F.cross_entropy(alike, partner)

    def _cluster(self, rows: Tensor, near: Tensor) -> Tensor:
        """SCAN, Equation 2: an input and a neighbour in one cluster, and the clusters alike in size."""
        pick = torch.randint(near.shape[1], (len(rows),), device=self.device)
        other = near[rows, pick]
        together = torch.cat([self.views.weak(rows), self.views.weak(other)])
        first, second = self.network.logits(together).softmax(dim=1).chunk(2)
        agree = -(first * second).sum(dim=1).clamp(min=1e-8).log().mean()
        mean = first.mean(dim=0).clamp(min=1e-8)
        return agree + self.settings.entropy * (mean * mean.log()).sum()

    def _self_label(self, rows: Tensor) -> Tensor:
        """Sure clusters of weak views label strong ones, each cluster with the same weight."""
        with torch.no_grad():
            sure, label = self.network.logits(self.views.weak(rows)).softmax(dim=1).max(dim=1)
        chosen = sure >= self.settings.confidence
        logits = self.network.logits(self.views.strong(rows))
        counts = torch.bincount(label[chosen], minlength=logits.shape[1]).clamp(min=1)
        weight = torch.where(chosen, 1.0 / counts[label], 0.0)
        losses = F.cross_entropy(logits, label, reduction="none")
        return (losses * weight).sum() / weight.sum().clamp(min=1e-8)

    def _neighbours(self) -> Tensor:
        """The nearest inputs of each by the pretrained features, int64 (n, neighbours)."""
        features = F.normalize(self._all(self.network.features), dim=1)
        most = min(self.settings.neighbours + 1, len(features))
        found = [
            (features[start : start + _ROWS] @ features.T).topk(most, dim=1).indices
            for start in range(0, len(features), _ROWS)
        ]
        return torch.cat(found)[:, 1:] if most > 1 else torch.cat(found)

    def _all(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        self.network.eval()
        with torch.no_grad():
            parts = [of(self.network.preprocess(x)) for x in torch.split(self.pixels, _ROWS)]
        return torch.cat(parts)

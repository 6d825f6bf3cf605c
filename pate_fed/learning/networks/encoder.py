"""What costs no privacy: fixed image features, and an encoder fitted to the public inputs without any label.

Sources: Dalal and Triggs, "Histograms of oriented gradients for human detection" (CVPR 2005): gradient
magnitudes in cells by orientation, normalised over overlapping blocks of 2×2 cells, clipped. The encoder
joins smoothed pixels to them, and adds what the public pool says about both: mean and leading directions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pate_fed.data.dataset import release_memory
from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.networks.classifiers import Preprocessing, Shape
from pate_fed.learning.settings import TeacherSettings
from pate_fed.learning.tensors import check_images, image_shape, tensor_batches, to_tensor

# On Fashion-MNIST's training images alone: 20 heads of 240 of the first 50,000, tested on the last 3,000.
CELLS, BINS = (3, 5), 6  # both sizes together are worth a point over 4 alone
CLIP, FLOOR = 0.3, 0.1  # of a normalised value; the energy below which a block counts as flat
FLAT = 1e-30  # steepness below which there is no direction; 8-bit pixels differ by far more
PIXELS = 0.7  # weight of the smoothed pixels
USUAL = 32  # pixels of the shorter side; larger images are first averaged down to about so many
DIMENSIONS, WHITENING = 120, 0.2  # 80 to 150 and 0 to 0.3 are alike
VECTOR = 64  # numbers of which a processor takes a whole number of times as many at once
AT_ONCE = 32_000  # numbers of which PyTorch gives all to one thread
BATCH = 250  # images measured at once: more leave a core's cache, and take twice as long each
ENOUGH = 3000  # images an encoder is fitted to, evenly spaced among more
MOST_SIDE = 4096  # pixels of an image
SPARE, ROUNDS = 40, 5  # of the iteration that finds the leading directions


def reduction(shape: Shape) -> int:
    """Pixels of an image of `shape` that become one before anything is measured."""
    return max(1, round(min(shape[:2]) / USUAL))


def histogram_size(shape: Shape, cell: int) -> int:
    """Features that `oriented_histograms` gives for images of `shape`."""
    rows, columns = (-(-side // cell) - 1 for side in shape[:2])
    return 4 * BINS * rows * columns


def oriented_histograms(x: Tensor, cells: Sequence[int], *, alone: bool = False) -> list[Tensor]:
    """Images (n, C, H, W) in [0, 1] to (n, 24·(⌈H/cell⌉ - 1)·(⌈W/cell⌉ - 1)) for each size of a cell.

    Colours count by their mean. Finite gradients everywhere, 0 where an image is black or flat, so that a
    generator learns through it; those of images that cells pad alike are taken once. `alone`: those of an
    image are alike to the bit beside any others.
    """
    grey = _root(x.mean(dim=1, keepdim=True).clamp(min=0))
    shares: dict[tuple[int, ...], list[Tensor]] = {}
    found = []
    for cell in cells:
        more = [-int(side) % cell for side in grey.shape[2:]]  # cells at the edge are whole ones
        edges = (more[1] // 2, more[1] - more[1] // 2, more[0] // 2, more[0] - more[0] // 2)
        if edges not in shares:
            shares[edges] = _orientation_shares(F.pad(grey, edges), alone=alone)
        found.append(_block_histograms(shares[edges], cell))
    return found


def _orientation_shares(grey: Tensor, *, alone: bool = False) -> list[Tensor]:
    """Steepness of each pixel of grey images (n, 1, H, W), as it counts for each orientation, alike."""
    padded = F.pad(grey, (1, 1, 1, 1), mode="replicate")  # (n, 1, H + 2, W + 2)
    across = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]  # (n, 1, H, W)
    down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    steepness = across.square() + down.square()
    steep = (steepness >= FLAT).to(grey.dtype)  # products with it: choosing takes several times as long
    size = steepness.clamp(min=FLAT).sqrt() * steep
    angle = (_angles if alone else torch.atan2)(down * steep, across * steep + (1 - steep))
    turn = torch.remainder(angle, torch.pi) * (BINS / torch.pi)  # 0 to BINS, a circle
    shares = [size * ((1 - turn).clamp(min=0) + (turn - (BINS - 1)).clamp(min=0))]
    for orientation in range(1, BINS):  # each pixel counts for the two nearest
        shares.append(size * (1 - (turn - orientation).abs()).clamp(min=0))
    return shares


def _angles(y: Tensor, x: Tensor) -> Tensor:
    """Arctangents of (n, 1, H, W), those of an image alike beside any others, and on any number of threads.

    In the middle of a processor's vector an arctangent has other last bits than at the end of what a thread
    has, so no vector reaches from one image into the next. Threads share what is more than `AT_ONCE`.
    """
    size = y[0].numel() if len(y) else 0
    if not (more := -size % VECTOR) and size <= AT_ONCE:
        return torch.atan2(y, x)
    whole = [F.pad(each.reshape(len(y), -1), (0, more), value=1.0) for each in (y, x)]
    parts = zip(*(torch.split(each, AT_ONCE, dim=1) for each in whole), strict=True)
    found = torch.cat([torch.atan2(*part) for part in parts], dim=1)
    return found[:, :size].reshape(y.shape)


def _block_histograms(shares: list[Tensor], cell: int) -> Tensor:
    """Sums over cells, normalised over blocks of 2×2 of them: (n, 24·(H/cell - 1)·(W/cell - 1))."""
    if shares[0].numel() <= AT_ONCE:  # of few images a call costs more than what it sums
        shares = [torch.cat(shares[at : at + 3], dim=1) for at in range(0, BINS, 3)]
    histogram = torch.cat([_cell_sums(each, cell) for each in shares], dim=1)
    energy = F.avg_pool2d(histogram.square().sum(dim=1, keepdim=True), 2, stride=1) * 4
    rows, columns = int(energy.shape[2]), int(energy.shape[3])
    norm = (energy + FLOOR).sqrt()
    corners = [
        histogram[:, :, row : row + rows, column : column + columns] / norm
        for row in (0, 1)
        for column in (0, 1)
    ]
    return torch.cat(corners, dim=1).clamp(max=CLIP).flatten(1)


def _cell_sums(x: Tensor, cell: int) -> Tensor:
    """Sums over the cells of images (n, C, H, W) whose sides are whole cells: (n, C, H/cell, W/cell).

    Rows first, a vector at a time: a pooling layer goes pixel by pixel.
    """
    tall = sum((x[:, :, row::cell] for row in range(1, cell)), start=x[:, :, ::cell])
    return sum((tall[..., column::cell] for column in range(1, cell)), start=tall[..., ::cell])


def _root(x: Tensor) -> Tensor:
    """Square root of what is not negative, with slope 0 where `x` is 0."""
    if not x.requires_grad:
        return x.sqrt()
    return torch.where(x > 0, torch.where(x > 0, x, 1.0).sqrt(), 0.0)


def smoothed_pixels(x: Tensor) -> Tensor:
    """Images (n, C, H, W) to blurred ones of half the size, (n, C·⌊H/2⌋·⌊W/2⌋).

    A mean of 3×3, black beyond the edge, then of 2×2: of each side's pixels that is weights 1, 2, 2, 1.
    """
    rows, columns = int(x.shape[2]) // 2 * 2, int(x.shape[3]) // 2 * 2
    # Channels first in memory: those last would be gone through one by one.
    wide = F.pad(x.clone(memory_format=torch.contiguous_format), (1, 1, 1, 1))
    above, upper, lower, below = (wide[:, :, at : at + rows : 2] for at in range(4))
    tall = 2 * (upper + lower) + (above + below)
    before, left, right, after = (tall[..., at : at + columns : 2] for at in range(4))
    return ((2 * (left + right) + (before + after)) / 36).flatten(1)


def block_sizes(shape: Shape) -> list[int]:
    """Features of an image before the encoder turns them: histograms at each cell size, then pixels."""
    by = reduction(shape)
    small = (shape[0] // by, shape[1] // by, shape[2])
    return [histogram_size(small, cell) for cell in CELLS] + [small[2] * (small[0] // 2) * (small[1] // 2)]


class HistogramFeatures(Preprocessing):
    """With `dimensions` None centred histograms, else these and smoothed pixels in the encoder's directions.

    Both are scaled to length 1. Nothing in it is trained on labels.
    """

    def __init__(self, shape: Shape, dimensions: int | None) -> None:
        super().__init__()
        self._reduction, self._blocks = reduction(shape), block_sizes(shape)
        size = sum(self._blocks[:-1] if dimensions is None else self._blocks)
        self.mean: Tensor
        self.scale: Tensor
        self.basis: Tensor | None
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("basis", None if dimensions is None else torch.zeros(size, dimensions))

    def fit(self, x: Tensor) -> None:
        """Centre and scale from the images `x` (n, C, H, W), n ≥ 1, and the directions, if any."""
        found = torch.cat([self.measure(part) for part in torch.split(x, BATCH)])
        self.mean.copy_(found.mean(dim=0))
        centred = found.sub_(self.mean)  # in its place, as it is large
        if self.basis is not None:
            shares = [1.0] * len(CELLS) + [PIXELS]
            parts = zip(torch.split(centred, self._blocks, dim=1), shares, strict=True)
            weight = torch.cat([_even(part, share) for part, share in parts])
            self.basis.copy_(weight[:, None] * leading_directions(centred * weight, self.basis.shape[1]))
            centred = centred @ self.basis
        self.scale.copy_(centred.square().sum(dim=1).mean().sqrt().clamp(min=1e-6))

    def in_parts(self, x: Tensor) -> Tensor:
        """The preprocessed images, as many at once as are measured fastest."""
        return torch.cat([self(part) for part in torch.split(x, BATCH)])

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] to (n, features), of mean squared length 1 on what was fitted."""
        return self.turn(self.measure(x))

    def turn(self, measured: Tensor) -> Tensor:
        """What `measure` gave, (n, p), to (n, features)."""
        centred = measured - self.mean
        return (centred if self.basis is None else centred @ self.basis) / self.scale

    def measure(self, x: Tensor, *, alone: bool = False) -> Tensor:
        """(n, C, H, W) in [0, 1] to (n, p): what `fit` centres and turns, of an image `alone` to the bit."""
        if self._reduction > 1:
            x = F.avg_pool2d(x, self._reduction)
        found = oriented_histograms(x, CELLS, alone=alone)
        return torch.cat(found if self.basis is None else [*found, smoothed_pixels(x)], dim=1)


def _even(centred: Tensor, share: float) -> Tensor:
    """The weight of a block's features (n, p) that gives them the mean length `share`, or 0 if flat; (p,)."""
    length = centred.square().sum(dim=1).mean().sqrt()
    weight = torch.where(length > 1e-6, share / length.clamp(min=1e-6), 0.0)
    return weight.expand(centred.shape[1])


def leading_directions(centred: Tensor, count: int) -> Tensor:
    """The `count` directions of largest variance as columns, partly whitened; zeros where there are fewer.

    By subspace iteration from evenly spaced images, without chance. The sign of each is fixed by its largest
    entry, and its length is (variance / largest variance)^(-WHITENING / 2).
    """
    block = min(count + SPARE, *centred.shape)
    start = torch.linspace(0, len(centred) - 1, block).long().to(centred.device)
    found = torch.linalg.qr(centred[start].T).Q  # (p, block)
    for _ in range(ROUNDS):
        found = torch.linalg.qr(centred.T @ (centred @ found)).Q
    _, lengths, turn = torch.linalg.svd(centred @ found, full_matrices=False)
    vectors = (found @ turn.T)[:, :count]
    shares = (lengths[:count] / lengths[0].clamp(min=1e-12)).square()
    largest = vectors.abs().argmax(dim=0, keepdim=True)
    vectors = (
        vectors * torch.sign(torch.gather(vectors, 0, largest)) * shares.clamp(min=1e-6) ** (-WHITENING / 2)
    )
    return F.pad(vectors, (0, count - vectors.shape[1]))


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """What a coordinator sends to hospitals: plain numbers fitted to the public inputs, with a digest.

    The numbers are of half precision: half the bytes, and the same ones from any machine's double precision.
    Shapes: mean float16 (size,), basis float16 (size, dimensions).
    """

    image_shape: Shape
    mean: NDArray[np.float16]
    basis: NDArray[np.float16]

    @property
    def digest(self) -> str:
        """SHA-256 hex over the shapes and the numbers, the same on every machine that got the same file."""
        head = json.dumps([list(self.image_shape), list(self.basis.shape)])
        found = hashlib.sha256(head.encode())
        for array in (self.mean, self.basis):
            found.update(np.ascontiguousarray(array, dtype="<f2").tobytes())
        return found.hexdigest()

    def preprocessing(self) -> HistogramFeatures:
        """The fixed preprocessing of a model that uses it."""
        preprocess = HistogramFeatures(self.image_shape, self.basis.shape[1])
        assert preprocess.basis is not None
        preprocess.mean.copy_(torch.from_numpy(self.mean.astype(np.float32)))
        preprocess.basis.copy_(torch.from_numpy(self.basis.astype(np.float32)))
        return preprocess

    def transform(self, images: NDArray[np.uint8], device: str = "cpu") -> NDArray[np.float32]:
        """Features of uint8 (n, H, W, C) as float32 (n, dimensions); InputError: the images do not fit."""
        check_images(images, self.image_shape)
        preprocess = self.preprocessing().to(device)
        parts = [preprocess(x).cpu().numpy() for x in tensor_batches(images, BATCH, device)]
        return np.concatenate(parts or [np.empty((0, self.basis.shape[1]), dtype=np.float32)])

    def to_bytes(self) -> bytes:
        """A safetensors file: plain arrays, no code is in it and none is run on reading."""
        from safetensors.numpy import save

        shape = np.array(self.image_shape, dtype=np.int64)
        arrays = {"image_shape": shape, "mean": self.mean, "basis": self.basis}
        return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})

    @classmethod
    def from_bytes(cls, data: bytes, *, digest: str | None = None) -> Encoder:
        """Read what `to_bytes` gave, and hold it to `digest` where one is given.

        Raises:
            IntegrityError: damaged, not an encoder, or not the one with that digest.
        """
        from safetensors.numpy import load

        try:
            arrays = load(data)
            rows, columns, channels = (int(side) for side in arrays["image_shape"])
            found = cls((rows, columns, channels), arrays["mean"], arrays["basis"])
        except Exception as error:  # what the reader of the header and NumPy meet first
            raise IntegrityError("the message: not an encoder that pate_fed wrote, or damaged") from error
        if min(found.image_shape) < 1 or max(found.image_shape) > MOST_SIDE:
            raise IntegrityError(f"the message: an encoder of images {found.image_shape}")
        size = sum(block_sizes(found.image_shape))
        fits = found.mean.shape == (size,) and found.basis.ndim == 2 and len(found.basis) == size
        fits = fits and found.mean.dtype == found.basis.dtype == np.float16
        if not fits or not (np.isfinite(found.basis).all() and np.isfinite(found.mean).all()):
            raise IntegrityError("the message: the encoder's parts do not fit together")
        if digest is not None and found.digest != digest:
            raise IntegrityError(f"the message: the encoder's SHA-256 is {found.digest}, not {digest}")
        return found


_FITTED: dict[tuple[str, tuple[int, ...], int], Encoder] = {}


def fit_encoder(images: NDArray[np.uint8], *, dimensions: int = DIMENSIONS) -> Encoder:
    """The encoder of the public `images`, uint8 (n, H, W, C), n ≥ 1: no labels, no private data, no chance.

    Of more than 3,000 images it takes so many, evenly spaced. What was fitted last is kept: a pool is fitted
    to once a process.

    Raises:
        InputError: the images are not that, or `dimensions` is below 1.
    """
    check_images(images)
    if len(images) == 0 or dimensions < 1:
        raise InputError(f"an encoder of {len(images)} images and {dimensions} dimensions: 1 each is meant")
    key = hashlib.sha256(images.tobytes()).hexdigest(), images.shape, dimensions
    if key not in _FITTED:
        fitted = _fitted(images, dimensions)
        release_memory()  # what it took was large, and will not be needed again
        _FITTED.clear()
        _FITTED[key] = fitted
    return _FITTED[key]


def _fitted(images: NDArray[np.uint8], dimensions: int) -> Encoder:
    shape = image_shape(images)
    preprocess = HistogramFeatures(shape, min(dimensions, sum(block_sizes(shape)))).double()
    chosen = np.unique(np.linspace(0, len(images) - 1, min(len(images), ENOUGH)).astype(np.int64))
    preprocess.fit(to_tensor(images[chosen], "cpu").double())
    assert preprocess.basis is not None
    half = preprocess.mean.half().numpy(), (preprocess.basis / preprocess.scale).half().numpy()
    return Encoder(shape, *half)


def encoder_for(settings: TeacherSettings, images: NDArray[np.uint8]) -> Encoder | None:
    """The encoder of `images`, the first of the pool; None where teachers need none.

    The coordinator's: hospitals get it with the order to teach.
    """
    return fit_encoder(images) if settings.needs_encoder else None

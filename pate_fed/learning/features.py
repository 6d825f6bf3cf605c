"""What costs no privacy: fixed image features, and an encoder fitted to the public inputs without any label.

Sources: Dalal and Triggs, "Histograms of oriented gradients for human detection" (CVPR 2005): gradient
magnitudes in cells by orientation, normalised over overlapping blocks of 2×2 cells, clipped. The encoder
joins smoothed pixels to them, and adds what the public pool says about both: mean and leading directions.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.files import write_whole
from pate_fed.learning.inputs import check_images, image_shape, to_tensor
from pate_fed.learning.models import FixedFront, Shape
from pate_fed.learning.settings import TeacherSettings

__all__ = ["Encoder", "HistogramFront", "encoder_for", "fit_encoder", "histogram_size", "oriented_histograms"]

CELL, BINS = 4, 9
CLIP, FLOOR = 0.4, 0.1  # of a normalised value; the energy below which a block counts as flat
DIMENSIONS = 80  # measured on Fashion-MNIST: 60 to 120 are alike, 200 are worse for a small part
PIXELS = 0.5  # weight of the smoothed pixels; measured: a little better at 240 records, and on MNIST's graph
BATCH = 1000
ENOUGH = 4000  # images an encoder is fitted to, evenly spaced among more: several times its 1,492 features


def histogram_size(shape: Shape) -> int:
    """Features that `oriented_histograms` gives for images of `shape`."""
    return 4 * BINS * (shape[0] // CELL - 1) * (shape[1] // CELL - 1)


def oriented_histograms(x: Tensor) -> Tensor:
    """Images (n, C, H, W) in [0, 1] to (n, 36·(⌊H/4⌋ - 1)·(⌊W/4⌋ - 1)); colours count by their mean."""
    grey = x.mean(dim=1, keepdim=True).clamp(min=0).sqrt()
    padded = F.pad(grey, (1, 1, 1, 1), mode="replicate")  # (n, 1, H + 2, W + 2)
    across = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]  # (n, 1, H, W)
    down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    size = (across.square() + down.square()).sqrt()
    turn = torch.remainder(torch.atan2(down, across), torch.pi) * (BINS / torch.pi)  # 0 to BINS, a circle
    cells = []
    for angle in range(BINS):  # each pixel counts for the two nearest orientations
        away = (turn - angle).abs()
        near = (1 - torch.minimum(away, BINS - away)).clamp(min=0)
        cells.append(F.avg_pool2d(size * near, CELL) * CELL**2)
    histogram = torch.cat(cells, dim=1)  # (n, BINS, H/4, W/4)
    energy = F.avg_pool2d(histogram.square().sum(dim=1, keepdim=True), 2, stride=1) * 4
    rows, columns = int(energy.shape[2]), int(energy.shape[3])
    norm = (energy + FLOOR).sqrt()
    corners = [
        histogram[:, :, row : row + rows, column : column + columns] / norm
        for row in (0, 1)
        for column in (0, 1)
    ]
    return torch.cat(corners, dim=1).clamp(max=CLIP).flatten(1)


def smoothed_pixels(x: Tensor) -> Tensor:
    """Images (n, C, H, W) to blurred ones of half the size, (n, C·⌊H/2⌋·⌊W/2⌋)."""
    return F.avg_pool2d(F.avg_pool2d(x, 3, stride=1, padding=1), 2).flatten(1)


def encoder_size(shape: Shape) -> int:
    """Features of an image before the encoder turns them."""
    return histogram_size(shape) + shape[2] * (shape[0] // 2) * (shape[1] // 2)


class HistogramFront(FixedFront):
    """With `dimensions` None centred histograms, else these and smoothed pixels in the encoder's directions.

    Both are scaled to length 1. Nothing in it is trained on labels.
    """

    def __init__(self, shape: Shape, dimensions: int | None) -> None:
        super().__init__()
        self._histograms = histogram_size(shape)
        size = self._histograms if dimensions is None else encoder_size(shape)
        self.mean: Tensor
        self.scale: Tensor
        self.basis: Tensor | None
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("basis", None if dimensions is None else torch.zeros(size, dimensions))

    def fit(self, x: Tensor) -> None:
        """Centre and scale from the images `x` (n, C, H, W), n ≥ 1, and the directions, if any."""
        found = torch.cat([self._measure(part) for part in torch.split(x, BATCH)])
        self.mean.copy_(found.mean(dim=0))
        centred = found - self.mean
        if self.basis is not None:
            weight = torch.ones_like(self.mean)
            for part, share in ((slice(self._histograms), 1.0), (slice(self._histograms, None), PIXELS)):
                weight[part] = share / centred[:, part].square().sum(dim=1).mean().sqrt().clamp(min=1e-6)
            self.basis.copy_(weight[:, None] * _leading(centred * weight, self.basis.shape[1]))
            centred = centred @ self.basis
        self.scale.copy_(centred.square().sum(dim=1).mean().sqrt().clamp(min=1e-6))

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] to (n, features), of mean squared length 1 on what was fitted."""
        centred = self._measure(x) - self.mean
        return (centred if self.basis is None else centred @ self.basis) / self.scale

    def _measure(self, x: Tensor) -> Tensor:
        histograms = oriented_histograms(x)
        return histograms if self.basis is None else torch.cat([histograms, smoothed_pixels(x)], dim=1)


def _leading(centred: Tensor, count: int) -> Tensor:
    """The `count` directions of largest variance as columns, the sign of each fixed by its largest entry."""
    covariance = (centred.T @ centred).double() / max(1, len(centred))
    _, vectors = torch.linalg.eigh(covariance)
    vectors = vectors.flip(1)[:, :count]
    largest = vectors.abs().argmax(dim=0, keepdim=True)
    signs: Tensor = torch.sign(torch.gather(vectors, 0, largest))
    turned: Tensor = vectors * signs
    return turned.to(centred.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """What a coordinator sends to hospitals: plain numbers fitted to the public inputs, with a digest.

    Shapes: mean float32 (size,), basis float32 (size, dimensions).
    """

    image_shape: Shape
    mean: NDArray[np.float32]
    basis: NDArray[np.float32]
    scale: float

    @property
    def digest(self) -> str:
        """SHA-256 hex over the shapes and the numbers, the same on every machine that got the same file."""
        head = json.dumps([list(self.image_shape), list(self.basis.shape), float(self.scale).hex()])
        found = hashlib.sha256(head.encode())
        for array in (self.mean, self.basis):
            found.update(np.ascontiguousarray(array, dtype="<f4").tobytes())
        return found.hexdigest()

    def front(self) -> HistogramFront:
        """The first layer of a model that uses it."""
        front = HistogramFront(self.image_shape, self.basis.shape[1])
        assert front.basis is not None
        front.mean.copy_(torch.from_numpy(self.mean))
        front.basis.copy_(torch.from_numpy(self.basis))
        front.scale.fill_(self.scale)
        return front

    def transform(self, images: NDArray[np.uint8], device: str = "cpu") -> NDArray[np.float32]:
        """Features of uint8 (n, H, W, C) as float32 (n, dimensions).

        Raises:
            InputError: the images do not fit.
        """
        check_images(images, self.image_shape)
        front = self.front().to(device)
        parts = [
            front(to_tensor(images[start : start + BATCH], device)).cpu().numpy()
            for start in range(0, len(images), BATCH)
        ]
        return np.concatenate(parts or [np.empty((0, self.basis.shape[1]), dtype=np.float32)])

    def save(self, path: Path) -> None:
        """Write a .npz of plain arrays, whole or not at all; no code is in it and none is run on reading.

        Raises:
            InputError: the folder cannot be written to.
        """
        buffer = io.BytesIO()
        np.savez(
            buffer,
            image_shape=np.array(self.image_shape, dtype=np.int64),
            mean=self.mean,
            basis=self.basis,
            scale=np.float64(self.scale),
        )
        write_whole(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path, *, digest: str | None = None) -> Encoder:
        """Read what `save` wrote, and hold it to `digest` where one is given.

        Raises:
            InputError: no such file.
            IntegrityError: damaged, not an encoder, or not the one with that digest.
        """
        try:
            with io.BytesIO(Path(path).read_bytes()) as data, np.load(data, allow_pickle=False) as file:
                rows, columns, channels = (int(side) for side in file["image_shape"])
                found = cls(
                    (rows, columns, channels),
                    np.asarray(file["mean"], dtype=np.float32),
                    np.asarray(file["basis"], dtype=np.float32),
                    float(file["scale"]),
                )
        except FileNotFoundError as error:
            raise InputError(f"{path}: there is no encoder") from error
        except Exception as error:  # numpy raises what its zip and header readers meet first
            raise IntegrityError(f"{path}: not an encoder that pate_fed wrote, or damaged") from error
        size = encoder_size(found.image_shape)
        fits = found.mean.shape == (size,) and found.basis.ndim == 2 and len(found.basis) == size
        if not fits or not np.isfinite(found.basis).all() or not found.scale > 0:
            raise IntegrityError(f"{path}: the encoder's parts do not fit together")
        if digest is not None and found.digest != digest:
            raise IntegrityError(f"{path}: the encoder's SHA-256 is {found.digest}, not {digest}")
        return found


def fit_encoder(images: NDArray[np.uint8], *, dimensions: int = DIMENSIONS) -> Encoder:
    """The encoder of the public `images`, uint8 (n, H, W, C), n ≥ 1: no labels, no private data, no chance.

    Of more than 4,000 images it takes so many, evenly spaced.

    Raises:
        InputError: the images are not that, or `dimensions` is below 1.
    """
    check_images(images)
    if len(images) == 0 or dimensions < 1:
        raise InputError(f"an encoder of {len(images)} images and {dimensions} dimensions: 1 each is meant")
    shape = image_shape(images)
    front = HistogramFront(shape, min(dimensions, encoder_size(shape)))
    chosen = np.unique(np.linspace(0, len(images) - 1, min(len(images), ENOUGH)).astype(np.int64))
    front.fit(to_tensor(images[chosen], "cpu"))
    assert front.basis is not None
    return Encoder(shape, front.mean.numpy(), front.basis.numpy(), float(front.scale))


_FITTED: dict[str, Encoder] = {}


def encoder_for(settings: TeacherSettings, images: NDArray[np.uint8], *, digest: str) -> Encoder | None:
    """The encoder of the public pool `images` with that `digest` where the teacher needs one, else None.

    Every hospital has the agreed pool, so none has to be sent an encoder. A process fits one once a pool.
    """
    if settings.name != "encoder-head":
        return None
    if digest not in _FITTED:
        _FITTED.clear()
        _FITTED[digest] = fit_encoder(images)
    return _FITTED[digest]

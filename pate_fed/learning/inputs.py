"""Checks on arrays, and the one way in which uint8 images become tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pate_fed.errors import InputError

SMALLEST = 8


def check_images(images: NDArray[np.uint8], shape: tuple[int, int, int] | None = None) -> None:
    """Hold `images` to uint8 (n, height, width, channels), each at least 8×8, or exactly `shape`.

    Raises:
        InputError: it is anything else.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise InputError(
            f"images are {images.dtype} {images.shape}: uint8 (n, height, width, 1 or 3) is meant"
        )
    if shape is not None and images.shape[1:] != shape:
        raise InputError(f"images are {images.shape[1:]} each: the model takes {shape}")
    if min(images.shape[1:3]) < SMALLEST:
        raise InputError(f"images are {images.shape[1:3]}: at least {SMALLEST}×{SMALLEST} is meant")


def check_labels(labels: NDArray[np.int64], count: int, num_classes: int) -> None:
    """Hold `labels` to integers (count,) in 0 .. num_classes - 1.

    Raises:
        InputError: wrong shape or type, or a class outside.
    """
    if not np.issubdtype(labels.dtype, np.integer) or labels.shape != (count,):
        raise InputError(f"labels are {labels.dtype} {labels.shape}: integers ({count},) are meant")
    if num_classes < 2:
        raise InputError(f"num_classes is {num_classes}: at least 2 is meant")
    if count and not (labels.min() >= 0 and labels.max() < num_classes):
        raise InputError(f"labels run from {labels.min()} to {labels.max()}: 0 to {num_classes - 1} is meant")


def image_shape(images: NDArray[np.uint8]) -> tuple[int, int, int]:
    """(height, width, channels)."""
    height, width, channels = images.shape[1:]
    return int(height), int(width), int(channels)


def to_tensor(images: NDArray[np.uint8], device: str) -> Tensor:
    """uint8 (n, H, W, C) to float (n, C, H, W) in [0, 1], channels last in memory as the images are."""
    # A copy: the images may be read-only, and torch wants memory that it may write to.
    pixels = torch.from_numpy(np.array(images)).to(device).permute(0, 3, 1, 2)
    return pixels.to(torch.float32).div_(255.0).contiguous(memory_format=torch.channels_last)


def tensor_batches(images: NDArray[np.uint8], size: int, device: str) -> Iterator[Tensor]:
    """The same in batches of up to `size` images."""
    for start in range(0, len(images), size):
        yield to_tensor(images[start : start + size], device)

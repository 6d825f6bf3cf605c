"""Teachers fitted in closed form: a linear head on oriented gradients, a kernel head on the public encoder.

"hog-linear" is a linear head on the histograms themselves; "encoder-head" a kernel head on the encoder's
directions. Both take a fraction of a second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.errors import InputError
from pate_fed.learning.inputs import image_shape, tensor_batches, to_tensor
from pate_fed.learning.networks.classifiers import Classifier, OrientedGradients, Shape
from pate_fed.learning.networks.encoder import BATCH, Encoder, HistogramFeatures, reduction
from pate_fed.learning.networks.heads import (
    LINEAR_RIDGE,
    TEACHER_RIDGE,
    WeightedSums,
    class_weights,
    fit_kernel_head,
    fit_ridge,
    subsample,
)

MOST_CACHED = 2**28  # bytes
NETWORK_BATCH = 200  # images in a small network at once: measured, what a core's cache likes best
MOST_RECORDS = 20_000  # of a hospital that a teacher learns from; more are worth little to so many centres
TEACHER_CENTRES = 1000  # of a kernel head, at random among its records
COPIES, ENOUGH_SAMPLES = 5, 10_000  # each record as it is and moved four ways, while there are so few
_FEATURES: dict[bytes, list[Tensor]] = {}
_PREPROCESSING: dict[tuple[str, str], HistogramFeatures] = {}


def fit_closed_form_teacher(
    name: str,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    num_classes: int,
    encoder: Encoder | None,
    device: str,
) -> Classifier:
    """One hospital's classifier from its own images (n, H, W, C), n ≥ 1; of a great many it takes some.

    Raises:
        InputError: "encoder-head" without an encoder, or one of other images.
    """
    shape = image_shape(images)
    chosen = subsample(torch.arange(len(images)), MOST_RECORDS, generator=None).numpy()
    pixels = to_tensor(images[chosen], device)
    classes = torch.from_numpy(np.array(labels[chosen], dtype=np.int64)).to(device)
    samples = pixels, nn.functional.one_hot(classes, num_classes)
    weights = class_weights(classes)
    if name == "hog-linear":
        return _fit_linear(*samples, weights, shape=shape)
    if encoder is None:
        raise InputError("teacher encoder-head needs the study's public encoder, and none was given")
    if encoder.image_shape != shape:
        raise InputError(f"the encoder is of images {encoder.image_shape}: {shape} is meant")
    return _fit_kernel(encoder, *samples, weights)


def _fit_linear(pixels: Tensor, targets: Tensor, weights: Tensor, *, shape: Shape) -> Classifier:
    preprocess = HistogramFeatures(shape, None).to(pixels.device)
    preprocess.fit(pixels)
    size, num_classes = len(preprocess.mean), targets.shape[1]
    if len(pixels) <= size:  # a small part: among its records instead of among the features
        ridge = fit_ridge(preprocess(pixels), targets, strengths=(LINEAR_RIDGE,), weights=weights)
        found = ridge.weights, ridge.bias
    else:
        sums = WeightedSums(size, num_classes, pixels.device)
        for x, own, each in _batches(pixels, targets, weights):
            sums.add(preprocess(x), own, each)
        found = sums.solve(LINEAR_RIDGE)
    output = nn.Linear(size, num_classes)
    with torch.no_grad():
        output.weight.copy_(found[0].T)
        output.bias.copy_(found[1])
    return Classifier(preprocess, [], output)


def _fit_kernel(encoder: Encoder, pixels: Tensor, targets: Tensor, weights: Tensor) -> Classifier:
    """With moved copies of the records, as long as there are few samples: they help small parts most."""
    preprocess = _preprocessing(encoder, str(pixels.device))
    copies = max(1, min(COPIES, ENOUGH_SAMPLES // len(pixels)))
    plain = preprocess.in_parts(pixels)
    centres = subsample(plain, TEACHER_CENTRES, generator=None)

    def samples() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for x, known, own, each in _batches(pixels, plain, targets, weights):
            yield known, own, each
            for moved in shifted_copies(x)[1:copies]:
                yield preprocess(moved), own, each

    head = fit_kernel_head(
        samples(), centres=centres, num_classes=targets.shape[1], strength=copies * TEACHER_RIDGE
    )
    return Classifier(preprocess, [], head)


def _preprocessing(encoder: Encoder, device: str) -> HistogramFeatures:
    """The encoder's preprocessing, which nothing changes: teachers of one study and process share it."""
    key = encoder.digest, device
    if key not in _PREPROCESSING:
        _PREPROCESSING.clear()
        _PREPROCESSING[key] = encoder.preprocessing().to(device)
    return _PREPROCESSING[key]


def _batches(*arrays: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(torch.split(array, BATCH) for array in arrays), strict=True)


def shifted_copies(pixels: Tensor) -> list[Tensor]:
    """Images (n, C, H, W) as they are, then moved by one step (a pixel up to 48) each of four ways.

    The edge's pixels fill up. Measured on Fashion-MNIST at 240 records: half a point for the plurality.
    """
    rows, columns = int(pixels.shape[2]), int(pixels.shape[3])
    step = reduction((rows, columns, int(pixels.shape[1])))
    wide = nn.functional.pad(pixels, (step,) * 4, mode="replicate")
    starts = ((step, step), (0, step), (2 * step, step), (step, 0), (step, 2 * step))
    return [wide[:, :, down : down + rows, right : right + columns] for down, right in starts]


def shared_features(
    preprocess: HistogramFeatures | OrientedGradients, images: NDArray[np.uint8], device: str
) -> Iterator[Tensor]:
    """The preprocessed images, in parts of a size that suits what learns from them.

    Cached, as all teachers are asked about the same pool: what one encoder gives, or where each teacher has a
    scale of its own what is measured before it. More than 256 MB are measured anew each time.
    """
    histograms = isinstance(preprocess, HistogramFeatures)
    alike = isinstance(preprocess, HistogramFeatures) and preprocess.basis is not None
    digest = hashlib.sha256(f"{histograms} {images.shape} {device}".encode())
    for value in preprocess.state_dict().values() if alike else ():
        digest.update(value.cpu().numpy().tobytes())
    digest.update(np.ascontiguousarray(images).tobytes())
    key, of = digest.digest(), preprocess if alike else preprocess.measure

    def parts() -> Iterator[Tensor]:
        return map(of, tensor_batches(images, BATCH if histograms else NETWORK_BATCH, device))

    if key not in _FEATURES:
        _FEATURES.clear()
        width = of(to_tensor(images[:1], device)).numel()
        if 4 * width * len(images) <= MOST_CACHED:
            _FEATURES[key] = list(parts())
    for part in _FEATURES.get(key) or parts():
        yield part if alike else preprocess.turn(part)

"""Light teachers and students: a head in closed form on oriented gradients or on the public encoder.

"hog-linear" is a linear head on the histograms themselves; "encoder-head" a kernel head on the encoder's
directions. Both take a fraction of a second, and what they learn from beside the labels costs no privacy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.errors import InputError
from pate_fed.learning.inputs import to_tensor
from pate_fed.learning.networks.classifiers import Classifier, FixedFront, Shape
from pate_fed.learning.networks.encoder import WHITENING, Encoder, HistogramFront, reduction
from pate_fed.learning.networks.heads import (
    JITTER,
    LINEAR_RIDGE,
    MOST_CENTRES,
    STRENGTHS,
    TEACHER_RIDGE,
    KernelHead,
    fit_ridge,
    gaussian_kernel,
)
from pate_fed.learning.students.calibration import calibrate
from pate_fed.learning.students.label_graph import Graph, held_out_scores

__all__ = [
    "HeadStudent",
    "empty_light",
    "fit_experts",
    "fit_head_student",
    "fit_light_teacher",
    "moved_copies",
    "second_opinion",
    "shared_features",
]

ALPHAS = (0.8, 0.95, 0.99, 0.997)  # how far labels spread over the graph
SPREAD_CENTRES, GRAPH_DIRECTIONS = 2000, 80
OPINION_CENTRES = 600  # of 2,200 labels as good as all, in an eighth of the time
FEW, FEW_ALPHAS = 10, (0.95, 0.99)  # a tenth of the images; the second must be better by a standard error
TURN, SLANT, GROWTH = 0.2, 0.25, 1.15  # radians, pixels a pixel, factor; chosen on MNIST's first 9,000
PART = 1000  # images at once
MOST_KEPT = 2**28  # bytes
_FEATURES: dict[bytes, list[Tensor]] = {}


@dataclass(frozen=True, slots=True)
class HeadStudent:
    """A fitted head. `alpha` is 0 where the graph was not used.

    `agreement` is the share of left-out labels that it foretold, `loss` its cross-entropy on them, and
    `share` the estimated share of labels that fall at random.
    """

    model: Classifier
    alpha: float
    agreement: float
    loss: float
    share: float


def fit_light_teacher(
    name: str,
    pixels: Tensor,
    labels: NDArray[np.int64],
    *,
    shape: Shape,
    num_classes: int,
    encoder: Encoder | None,
) -> Classifier:
    """One hospital's classifier from its own images (n, C, H, W), n ≥ 1.

    Raises:
        InputError: "encoder-head" without an encoder, or one of other images.
    """
    targets = _targets(labels, num_classes, pixels.device)
    if name == "hog-linear":
        front = HistogramFront(shape, None).to(pixels.device)
        front.fit(pixels)
        ridge = fit_ridge(front(pixels), targets, strengths=(LINEAR_RIDGE,))
        output = nn.Linear(len(ridge.weights), num_classes)
        with torch.no_grad():
            output.weight.copy_(ridge.weights.T)
            output.bias.copy_(ridge.bias)
        return Classifier(front, [], output)
    if encoder is None:
        raise InputError("teacher encoder-head needs the study's public encoder, and none was given")
    if encoder.image_shape != shape:
        raise InputError(f"the encoder is of images {encoder.image_shape}: {shape} is meant")
    front = encoder.front().to(pixels.device)
    copies = moved_copies(pixels)
    features = torch.cat([front(each) for each in copies])
    model, _ = _kernel_model(
        front,
        features,
        targets.repeat(len(copies), 1),
        strengths=(len(copies) * TEACHER_RIDGE,),
        centres=features[: len(pixels)],
    )
    return model


def moved_copies(pixels: Tensor) -> list[Tensor]:
    """Images (n, C, H, W) as they are, then moved by one step (a pixel up to 48) each of four ways.

    The edge's pixels fill up. Measured on Fashion-MNIST at 240 records: half a point for the plurality.
    """
    rows, columns = int(pixels.shape[2]), int(pixels.shape[3])
    step = reduction((rows, columns, int(pixels.shape[1])))
    wide = nn.functional.pad(pixels, (step,) * 4, mode="replicate")
    starts = ((step, step), (0, step), (2 * step, step), (step, 0), (step, 2 * step))
    return [wide[:, :, down : down + rows, right : right + columns] for down, right in starts]


def fit_head_student(
    pixels: Tensor,
    index: NDArray[np.int64],
    labels: NDArray[np.int64],
    *,
    num_classes: int,
    encoder: Encoder,
    seed: int,
) -> HeadStudent:
    """A kernel head from public images, some of them labelled; strength and sharpness from left-out labels.

    Where labels spread over the graph of all images foretell left-out labels better than the head does, the
    head learns the spread classes of all images instead, without the labels that the others contradict. With
    few labels (a tenth of the images or less) as good within two standard errors will do: then there is far
    more to learn from the images than from the labels, and neighbours are sought among deformed images too.
    More than 3,000 samples share that many centres.
    Shapes: pixels (n, C, H, W), index int64 (m,) into them, labels (m,).
    """
    front = encoder.front().to(pixels.device)
    features = torch.cat([front(part) for part in torch.split(pixels, PART)])
    chosen = torch.from_numpy(np.array(index)).to(pixels.device)
    generator = torch.Generator().manual_seed(seed)
    targets = _targets(labels, num_classes, pixels.device)
    truth = targets.argmax(dim=1)
    own = features[chosen]
    model, left_out = _kernel_model(
        front, own, targets, strengths=STRENGTHS, centres=_some(own, MOST_CENTRES, generator)
    )
    agreement, alpha = float((left_out.argmax(dim=1) == truth).double().mean()), 0.0
    believed = np.ones(len(labels), dtype=np.bool_)
    few = FEW * len(labels) <= len(pixels)
    graph = _graph(front, features, deformed_copies(pixels) if few else ())
    error = (agreement * (1 - agreement) / len(labels)) ** 0.5 if few else 0.0
    need = agreement - 2 * error
    for each in FEW_ALPHAS if few else ALPHAS:
        scores = held_out_scores(graph, index, labels, classes=num_classes, alpha=each, seed=seed)
        agrees = scores.argmax(axis=1) == labels
        if agrees.mean() >= need:
            agreement = float(agrees.mean())
            need, alpha, believed = agreement + error, each, agrees
    if alpha and believed.any():
        # Labels that the others contradict are taken off, as in PATE++: measured, four of five are wrong.
        spread = graph.spread(index[believed], labels[believed], classes=num_classes, alpha=alpha).argmax(
            axis=1
        )
        model, left_out = _kernel_model(
            front,
            features,
            _targets(spread, num_classes, pixels.device),
            strengths=STRENGTHS,
            centres=_some(features, SPREAD_CENTRES, generator),
        )
        left_out = left_out[chosen]
    sharpness, share = calibrate(left_out, truth)
    assert isinstance(model.output, KernelHead)
    model.output.sharpness.fill_(sharpness)
    loss = float(nn.functional.cross_entropy(sharpness * left_out, truth))
    return HeadStudent(model, alpha, agreement, loss, share)


def second_opinion(
    pixels: Tensor,
    labels: NDArray[np.int64],
    asked: Tensor,
    *,
    num_classes: int,
    encoder: Encoder,
) -> Tensor:
    """What a kernel head of labelled images expects of others: probabilities, calibrated by left-out labels.

    Shapes: pixels (m, C, H, W) and labels int64 (m,), asked (n, C, H, W), to float (n, K).
    """
    front = encoder.front().to(pixels.device)
    own, others = (torch.cat([front(part) for part in torch.split(each, PART)]) for each in (pixels, asked))
    targets = _targets(labels, num_classes, pixels.device)
    centres = _some(own, OPINION_CENTRES, torch.Generator().manual_seed(0))
    model, left_out = _kernel_model(front, own, targets, strengths=STRENGTHS, centres=centres)
    sharpness, _ = calibrate(left_out, targets.argmax(dim=1))
    shares: Tensor = (sharpness * model.output(others)).softmax(dim=1)
    return shares


def fit_experts(
    pixels: Tensor,
    index: NDArray[np.int64],
    labels: NDArray[np.int64],
    *,
    num_classes: int,
    encoder: Encoder,
) -> NDArray[np.float32]:
    """Scores in [0, 1] of one kernel regression a class, on "this class or not".

    Shapes: pixels (n, C, H, W), index int64 (m,) into them, labels (m,), to (n, classes).
    """
    front = encoder.front().to(pixels.device)
    features = torch.cat([front(part) for part in torch.split(pixels, PART)])
    own = features[torch.from_numpy(np.array(index)).to(pixels.device)]
    targets = _targets(labels, num_classes, pixels.device)
    # Regressions on single classes share nothing but their kernel, so one solution holds them all.
    centres = _some(own, MOST_CENTRES, torch.Generator().manual_seed(0))
    model, _ = _kernel_model(front, own, targets, strengths=STRENGTHS, centres=centres)
    scores = torch.cat([model.output(part) for part in torch.split(features, PART)])
    return np.asarray(scores.clamp(0, 1).cpu().numpy(), dtype=np.float32)


def deformed_copies(pixels: Tensor) -> Iterator[Tensor]:
    """Images (n, C, H, W) moved by a step each of four ways, turned, slanted, and made larger and smaller.

    Ten in all, one small change each; the edge's pixels fill up.
    """
    step = reduction((int(pixels.shape[2]), int(pixels.shape[3]), int(pixels.shape[1])))
    across, down = 2 * step / pixels.shape[3], 2 * step / pixels.shape[2]  # of a grid from -1 to 1
    cosine, sine = math.cos(TURN), math.sin(TURN)
    changes = [[[1, 0, way * across], [0, 1, 0]] for way in (1, -1)]
    changes += [[[1, 0, 0], [0, 1, way * down]] for way in (1, -1)]
    changes += [[[cosine, -way * sine, 0], [way * sine, cosine, 0]] for way in (1, -1)]
    changes += [[[1, way * SLANT, 0], [0, 1, 0]] for way in (1, -1)]
    changes += [[[size, 0, 0], [0, size, 0]] for size in (GROWTH, 1 / GROWTH)]
    for change in changes:
        turned = torch.tensor(change, dtype=pixels.dtype, device=pixels.device).expand(len(pixels), 2, 3)
        grid = nn.functional.affine_grid(turned, list(pixels.shape), align_corners=False)
        yield nn.functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def _graph(front: FixedFront, features: Tensor, copies: Iterable[Tensor]) -> Graph:
    """Of the leading directions at their own lengths: measured on MNIST, better neighbours than whitened."""
    lengths = features.std(dim=0, correction=0) ** (WHITENING / (1 - WHITENING))

    def unwhitened(rows: Tensor) -> NDArray[np.float32]:
        return np.asarray((rows * lengths)[:, :GRAPH_DIRECTIONS].cpu().numpy())

    faces = (torch.cat([front(part) for part in torch.split(copy, PART)]) for copy in copies)
    return Graph(unwhitened(features), copies=[unwhitened(face) for face in faces])


def _some(rows: Tensor, most: int, generator: torch.Generator) -> Tensor:
    if len(rows) <= most:
        return rows
    return rows[torch.randperm(len(rows), generator=generator)[:most].to(rows.device)]


def shared_features(front: HistogramFront, images: NDArray[np.uint8], device: str) -> Iterator[Tensor]:
    """What `front` gives for the images, in parts of up to 1,000.

    Kept, as all teachers are asked about the same pool: what one encoder gives, or where each teacher has a
    scale of its own what is measured before it. More than 256 MB are measured anew each time.
    """
    digest = hashlib.sha256(f"{images.shape} {device}".encode())
    for value in front.state_dict().values() if front.basis is not None else ():
        digest.update(value.cpu().numpy().tobytes())
    digest.update(np.ascontiguousarray(images).tobytes())
    key = digest.digest()
    of = front if front.basis is not None else front.measure

    def parts() -> Iterator[Tensor]:
        for start in range(0, len(images), PART):
            yield of(to_tensor(images[start : start + PART], device))

    if key not in _FEATURES:
        _FEATURES.clear()
        width = len(front.mean) if front.basis is None else front.basis.shape[1]
        if 4 * width * len(images) <= MOST_KEPT:
            _FEATURES[key] = list(parts())
    for part in _FEATURES.get(key) or parts():
        yield part if front.basis is not None else front.turn(part)


def empty_light(name: str, shape: Shape, num_classes: int, weights: dict[str, Tensor]) -> Classifier:
    """The network `name` with the sizes that `weights` have, to be filled from them."""
    if name == "hog-linear":
        front = HistogramFront(shape, None)
        return Classifier(front, [], nn.Linear(len(front.mean), num_classes))
    front = HistogramFront(shape, weights["front.basis"].shape[1])
    centres, features = weights["output.centres"].shape
    return Classifier(front, [], KernelHead(centres, features, num_classes))


def _kernel_model(
    front: HistogramFront,
    features: Tensor,
    targets: Tensor,
    *,
    strengths: tuple[float, ...],
    centres: Tensor | None = None,
) -> tuple[Classifier, Tensor]:
    """A kernel head, and the left-out scores (n, K) in double precision.

    The kernel is K_nc K_cc⁻¹ K_cn (Nyström), the kernel itself where the centres are the samples.
    """
    centres = features if centres is None else centres
    among = gaussian_kernel(centres.double(), centres.double())
    among = among + JITTER * torch.eye(len(centres), dtype=among.dtype, device=among.device)
    lower = torch.linalg.cholesky(among)
    # Rows whose inner products are the kernel: K_nc L⁻ᵀ.
    mapped = torch.linalg.solve_triangular(
        lower, gaussian_kernel(centres.double(), features.double()), upper=False
    ).T
    ridge = fit_ridge(mapped, targets, strengths=strengths)
    output = KernelHead(len(centres), centres.shape[1], targets.shape[1]).to(features.device)
    output.centres.copy_(centres)
    output.weights.copy_(torch.linalg.solve_triangular(lower.T, ridge.weights, upper=True))
    output.bias.copy_(ridge.bias)
    return Classifier(front, [], output), ridge.left_out


def _targets(labels: NDArray[np.int64], num_classes: int, device: torch.device) -> Tensor:
    found = torch.from_numpy(np.array(labels, dtype=np.int64)).to(device)
    return nn.functional.one_hot(found, num_classes).double()

"""The student "encoder-head": a kernel head in closed form, from labels spread over a graph of the images.

It takes a fraction of a second, and what it learns from beside the labels costs no privacy. The same head,
plain, tells how sure other students may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.learning.inputs import tensor_batches, to_tensor
from pate_fed.learning.networks.encoder import BATCH, WHITENING, Encoder, reduction
from pate_fed.learning.networks.heads import (
    MOST_CENTRES,
    KernelHead,
    fit_kernel_classifier,
    one_hot,
    subsample,
)
from pate_fed.learning.settings import EpochRecord, StudentSettings
from pate_fed.learning.students.calibration import calibrate
from pate_fed.learning.students.data import LabelledPool
from pate_fed.learning.students.label_graph import Graph, held_out_scores
from pate_fed.learning.students.student import Student

ALPHAS = (0.8, 0.95, 0.99, 0.997)  # how far labels spread over the graph
SPREAD_CENTRES, GRAPH_DIRECTIONS = 1500, 80
JUDGED = 2000  # images that choose the strength of what has learnt them all, beside the labelled ones
CALIBRATION_CENTRES = 600  # of 2,200 labels as good as all, in an eighth of the time
FEW, FEW_ALPHAS = 10, (0.95, 0.99)  # a tenth of the images; the second must be better by a standard error
# Standard errors by which a graph foretells fewer labels than the head, and has no say any more: chosen with
# 500 labels on inputs 7,000 to 8,999 of Glyph and Fashion-MNIST; 3 and 8 are nearly as good.
NO_SAY = 5.0
LEAST = 1e-6  # of a graph's say in a class
TURN, SLANT, GROWTH = 0.2, 0.25, 1.15  # radians, pixels a pixel, factor; chosen on MNIST's first 9,000


class PoolFeatures:
    """Features (n, d) of a pool's images on the encoder, and of their deformed copies, each encoded once."""

    def __init__(self, encoder: Encoder, images: NDArray[np.uint8], device: str) -> None:
        self.encoder, self.preprocess = encoder, encoder.preprocessing().to(device)
        self._images, self._device = images, device
        self.plain = torch.cat([self.preprocess(pixels) for pixels in self._pixels()])

    @cached_property
    def copies(self) -> Tensor:
        """Of each deformed copy, half precision (copies, n, d)."""
        found = [
            torch.stack([self.preprocess(copy).half() for copy in deformed_copies(pixels)])
            for pixels in self._pixels()
        ]
        return torch.cat(found, dim=1)

    def _pixels(self) -> Iterator[Tensor]:
        """The images as tensors, never many at once."""
        return tensor_batches(self._images, BATCH, self._device)


def fit_head_student(
    pool: LabelledPool,
    settings: StudentSettings,
    encoder: Encoder,
    *,
    seed: int,
    device: str,
    features: PoolFeatures | None = None,
) -> Student:
    """A kernel head from public images, some of them labelled; strength and sharpness from left-out labels.

    Where labels spread over the graph of all images foretell left-out labels better than the head does, a
    second head learns the spread classes of all images instead, without the labels that the others
    contradict. With few labels (a tenth of the images or less) there is far more to learn from the images
    than from the labels, and what was answered is easier than the rest: the second head learns what graph and
    first head say together, with a weight by how well each foretells labels. Neighbours are sought among
    deformed images too then. More than 3,000 samples share that many centres. `features` are the pool's,
    where they are known.
    """
    index, labels, classes = np.asarray(pool.labelled_index), pool.labels, pool.num_classes
    found = PoolFeatures(encoder, pool.images, device) if features is None else features
    preprocess, plain = found.preprocess, found.plain
    chosen = torch.from_numpy(np.array(index)).to(device)
    generator = torch.Generator().manual_seed(seed)
    targets = one_hot(labels, classes, device)
    truth = targets.argmax(dim=1)
    if pool.probabilities is not None:
        targets = torch.from_numpy(np.array(pool.probabilities, dtype=np.float64)).to(device)
    own = plain[chosen]
    centres = subsample(own, MOST_CENTRES, generator)
    model, left_out = fit_kernel_classifier(preprocess, own, targets, centres=centres)
    if pool.probabilities is None:  # which come of a model of their own: its labels are spread already
        agreement = float((left_out.argmax(dim=1) == truth).double().mean())
        graph, alpha, weight, believed = _spreading(pool, found, agreement=agreement, seed=seed)
        if weight and believed.any():
            # Labels that the others contradict are taken off, as in PATE++: measured, four of five are wrong.
            scores = graph.spread(index[believed], labels[believed], classes=classes, alpha=alpha)
            sharpness, _ = calibrate(left_out, truth)
            parts = [sharpness * model.output(part) for part in torch.split(plain, BATCH)]
            said = torch.cat(parts).log_softmax(dim=1).cpu().numpy()
            centres = subsample(plain, SPREAD_CENTRES, generator)
            targets = one_hot(_together(scores, said, weight).argmax(axis=1), classes, device)
            del graph  # all images and many centres need much
            some = torch.linspace(0, len(plain) - 1, min(JUDGED, len(plain)), device=device).long()
            model, left_out = fit_kernel_classifier(
                preprocess, plain, targets, centres=centres, judged=torch.cat([chosen, some])
            )
            left_out = left_out[: len(chosen)]
    told = truth if pool.probabilities is None else targets
    sharpness, _ = calibrate(left_out, told)
    assert isinstance(model.output, KernelHead)
    model.output.sharpness.fill_(sharpness)
    loss = float(nn.functional.cross_entropy(sharpness * left_out, told))
    return Student(
        [model],
        None,
        settings=settings,
        image_shape=encoder.image_shape,
        num_classes=classes,
        device=device,
        history=[EpochRecord(epoch=1, loss_supervised=loss, kept_share=1.0)],
    )


def _spreading(
    pool: LabelledPool, features: PoolFeatures, *, agreement: float, seed: int
) -> tuple[Graph, float, float, NDArray[np.bool_]]:
    """The graph of all images, how far labels spread, the graph's weight, and which labels it foretells.

    `agreement` is the share of left-out labels that the head foretells. With few labels the weight falls from
    1, where the graph foretells as many, to 0 at `NO_SAY` standard errors fewer; else it is 1 or 0.
    """
    index, labels = np.asarray(pool.labelled_index), pool.labels
    few = FEW * len(labels) <= len(features.plain)
    graph = _graph(features.plain, features.copies if few else ())
    error = max((agreement * (1 - agreement) / len(labels)) ** 0.5, 1 / len(labels))
    alpha, best, believed = 0.0, -1.0, np.ones(len(labels), dtype=np.bool_)
    for each in FEW_ALPHAS if few else ALPHAS:
        scores = held_out_scores(graph, index, labels, classes=pool.num_classes, alpha=each, seed=seed)
        agrees = scores.argmax(axis=1) == labels
        if agrees.mean() >= best + (error if few and alpha else 0.0):
            alpha, best, believed = each, float(agrees.mean()), agrees
    weight = 1 + (best - agreement) / (NO_SAY * error) if few else float(best >= agreement)
    return graph, alpha, min(max(weight, 0.0), 1.0), believed


def _together(scores: NDArray[np.float64], said: NDArray[np.float32], weight: float) -> NDArray[np.float64]:
    """What a graph's scores (n, K) and a head's logarithms (n, K) say together, as logarithms, not scaled."""
    shares = scores / np.maximum(scores.sum(axis=1, keepdims=True), 1e-12)
    found: NDArray[np.float64] = weight * np.log(np.maximum(shares, LEAST)) + (1 - weight) * said
    return found


def head_probabilities(
    pool: LabelledPool, asked: NDArray[np.uint8], encoder: Encoder, *, device: str
) -> NDArray[np.float32]:
    """What a kernel head of the pool's labelled images says of others, calibrated by left-out labels.

    Shapes: uint8 (n, H, W, C) to float32 (n, K), rows sum to 1.
    """
    preprocess = encoder.preprocessing().to(device)
    own = preprocess.in_parts(to_tensor(pool.images[pool.labelled_index], device))
    others = preprocess.in_parts(to_tensor(asked, device))
    targets = one_hot(pool.labels, pool.num_classes, device)
    centres = subsample(own, CALIBRATION_CENTRES, torch.Generator().manual_seed(0))
    model, left_out = fit_kernel_classifier(preprocess, own, targets, centres=centres)
    sharpness, _ = calibrate(left_out, targets.argmax(dim=1))
    shares = (sharpness * model.output(others)).softmax(dim=1)
    return np.asarray(shares.cpu().numpy(), dtype=np.float32)


def deformed_copies(pixels: Tensor) -> Iterator[Tensor]:
    """Images (n, C, H, W) moved by a step each of four ways, turned, slanted, and made larger and smaller.

    Ten in all, one small change each; the edge's pixels fill up.
    """
    for change in small_changes(pixels):
        # One grid for all images: one for each takes longer than the images themselves.
        grid = nn.functional.affine_grid(change[None], [1, *pixels.shape[1:]], align_corners=False)
        yield _sampled(pixels, grid.expand(len(pixels), -1, -1, -1))


def deformed_at_random(pixels: Tensor, changes: Tensor) -> Tensor:
    """Images (n, C, H, W), each as it is or with one of the `changes` (c, 2, 3), by torch's random state."""
    as_it_is = torch.eye(2, 3, dtype=pixels.dtype, device=pixels.device)[None]
    which = torch.randint(len(changes) + 1, (len(pixels),), device=pixels.device)
    chosen = torch.cat([as_it_is, changes])[which]
    grid = nn.functional.affine_grid(chosen, list(pixels.shape), align_corners=False)
    return _sampled(pixels, grid)


def small_changes(pixels: Tensor) -> Tensor:
    """The ten changes as affine maps of a grid from -1 to 1, (10, 2, 3), for images (n, C, H, W)."""
    step = reduction((int(pixels.shape[2]), int(pixels.shape[3]), int(pixels.shape[1])))
    across, down = 2 * step / pixels.shape[3], 2 * step / pixels.shape[2]
    cosine, sine = math.cos(TURN), math.sin(TURN)
    changes = [[[1, 0, way * across], [0, 1, 0]] for way in (1, -1)]
    changes += [[[1, 0, 0], [0, 1, way * down]] for way in (1, -1)]
    changes += [[[cosine, -way * sine, 0], [way * sine, cosine, 0]] for way in (1, -1)]
    changes += [[[1, way * SLANT, 0], [0, 1, 0]] for way in (1, -1)]
    changes += [[[size, 0, 0], [0, size, 0]] for size in (GROWTH, 1 / GROWTH)]
    return torch.tensor(changes, dtype=pixels.dtype, device=pixels.device)


def _sampled(pixels: Tensor, grid: Tensor) -> Tensor:
    found: Tensor = nn.functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    return found


def _graph(features: Tensor, copies: Iterable[Tensor]) -> Graph:
    """Of the leading directions at their own lengths: measured on MNIST, better neighbours than whitened."""
    lengths = features.std(dim=0, correction=0) ** (WHITENING / (1 - WHITENING))

    def unwhitened(rows: Tensor) -> NDArray[np.float32]:
        return np.asarray((rows.float() * lengths)[:, :GRAPH_DIRECTIONS].cpu().numpy())

    return Graph(unwhitened(features), copies=[unwhitened(copy) for copy in copies])

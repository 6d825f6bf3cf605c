"""The student "encoder-head": a kernel head in closed form, from labels spread over a graph of the images.

It takes a fraction of a second, and what it learns from beside the labels costs no privacy. The same head,
plain, tells how sure other students may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from pate_fed.learning.networks import heads
from pate_fed.learning.networks.classifiers import Classifier
from pate_fed.learning.networks.encoder import BATCH, WHITENING, Encoder, reduction
from pate_fed.learning.settings import EpochRecord, StudentSettings
from pate_fed.learning.students.losses import calibrate
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.trainer import LabelledPool
from pate_fed.learning.tensors import tensor_batches, to_tensor

# Labels spread over a graph of all public inputs: neighbours in the encoder's features share a class.
#
# Zhou et al., "Learning with local and global consistency" (NIPS 2004): F = (1 - α) Σ αᵗ Sᵗ Y with the
# graph's normalised weights S. What it uses beside released labels are public inputs, so it costs no
# privacy.


NEIGHBOURS, STEPS, FOLDS = 7, 60, 5
ROWS = 100  # distances at once: more leave a core's cache

Floats = NDArray[np.float64]


class Graph:
    """The normalised weights S between each input and its nearest ones, sparse (n, n).

    `copies` are features, (n, d) each, of the same inputs a little deformed: the distance to an input is that
    to its nearest copy. Measured on MNIST with 100 labels: 98.2 % of the inputs right in place of 97.0.
    """

    def __init__(
        self,
        features: NDArray[np.float32],
        *,
        neighbours: int = NEIGHBOURS,
        copies: Sequence[NDArray[np.float32]] = (),
    ) -> None:
        count = len(features)
        near = min(neighbours, count - 1)
        faces = [(face, (face**2).sum(axis=1)) for face in (features, *copies)]
        squares = faces[0][1]
        who = np.empty((count, near), dtype=np.int64)
        weights = np.empty((count, near))
        for start in range(0, count, ROWS):
            rows = np.arange(start, min(start + ROWS, count))
            gaps = np.full((len(rows), count), np.inf, dtype=features.dtype)
            for face, lengths in faces:
                np.minimum(gaps, lengths - (2 * features[rows]) @ face.T, out=gaps)
            gaps += squares[rows, None]
            gaps[np.arange(len(rows)), rows] = np.inf  # nobody is a neighbour of itself
            nearest = np.argpartition(gaps, near - 1, axis=1)[:, :near] if near else who[rows]
            found = np.maximum(np.take_along_axis(gaps, nearest, axis=1), 0)
            # Each input's own scale: its farthest neighbour gets e⁻¹.
            widest = np.maximum(found.max(axis=1, keepdims=True), 1e-12) if near else found
            who[rows], weights[rows] = nearest, np.exp(-found / widest) if near else found
        head = np.repeat(np.arange(count), near)
        directed = sparse.csr_array((weights.ravel(), (head, who.ravel())), shape=(count, count))
        both = directed + directed.T
        degree = np.sqrt(np.maximum(both.sum(axis=1), 1e-12))
        scale = sparse.diags_array(1 / degree)
        self._normed = sparse.csr_array(scale @ both @ scale)
        self.count = count

    def spread(
        self, index: NDArray[np.int64], labels: NDArray[np.int64], *, classes: int, alpha: float
    ) -> Floats:
        """Scores (n, classes) of every input from the labels of a few; each class starts with weight 1.

        A released label that its neighbours contradict is outvoted by them.
        """
        start = np.zeros((self.count, classes))
        start[index, labels] = 1.0
        return self.smooth(start / np.maximum(start.sum(axis=0), 1.0), alpha=alpha)

    def smooth(self, start: Floats, *, alpha: float, steps: int = STEPS) -> Floats:
        """Scores (n, classes) that each input gets from its own `start` and its neighbours'."""
        scores = start
        for _ in range(steps):
            scores = alpha * (self._normed @ scores) + (1 - alpha) * start
        return np.asarray(scores, dtype=np.float64)


def held_out_scores(
    graph: Graph,
    index: NDArray[np.int64],
    labels: NDArray[np.int64],
    *,
    classes: int,
    alpha: float,
    seed: int,
) -> Floats:
    """Scores (m, classes) that each labelled input gets from the other folds' labels alone."""
    fold = np.random.default_rng(seed).permutation(len(index)) % FOLDS
    found = np.zeros((len(index), classes))
    for number in range(FOLDS):
        out = fold == number
        if out.any() and not out.all():
            found[out] = graph.spread(index[~out], labels[~out], classes=classes, alpha=alpha)[index[out]]
    return found


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
    targets = heads.one_hot(labels, classes, device)
    truth = targets.argmax(dim=1)
    if pool.probabilities is not None:
        targets = torch.from_numpy(np.array(pool.probabilities, dtype=np.float64)).to(device)
    own = plain[chosen]
    centres = heads.subsample(own, heads.MOST_CENTRES, generator)
    model, left_out = heads.fit_kernel_classifier(preprocess, own, targets, centres=centres)
    if pool.probabilities is None:  # which come of a model of their own: its labels are spread already
        agreement = float((left_out.argmax(dim=1) == truth).double().mean())
        graph, alpha, weight, believed = _spreading(pool, found, agreement=agreement, seed=seed)
        if weight and believed.any():
            # Labels that the others contradict are taken off, as in PATE++: measured, four of five are wrong.
            scores = graph.spread(index[believed], labels[believed], classes=classes, alpha=alpha)
            sharpness, _ = calibrate(left_out, truth)
            parts = [sharpness * model.output(part) for part in torch.split(plain, BATCH)]
            said = torch.cat(parts).log_softmax(dim=1).cpu().numpy()
            centres = heads.subsample(plain, SPREAD_CENTRES, generator)
            targets = heads.one_hot(_together(scores, said, weight).argmax(axis=1), classes, device)
            del graph  # all images and many centres need much
            some = torch.linspace(0, len(plain) - 1, min(JUDGED, len(plain)), device=device).long()
            model, left_out = heads.fit_kernel_classifier(
                preprocess, plain, targets, centres=centres, judged=torch.cat([chosen, some])
            )
            left_out = left_out[: len(chosen)]
    told = truth if pool.probabilities is None else targets
    sharpness, _ = calibrate(left_out, told)
    assert isinstance(model.output, heads.KernelHead)
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


def fit_plain_head(
    encoder: Encoder, images: NDArray[np.uint8], labels: NDArray[np.int64], *, num_classes: int, device: str
) -> tuple[Classifier, Tensor, Tensor]:
    """A kernel head of labelled images alone, its left-out scores (m, K), and the labels (m,)."""
    preprocess = encoder.preprocessing().to(device)
    own, targets = preprocess.in_parts(to_tensor(images, device)), heads.one_hot(labels, num_classes, device)
    centres = heads.subsample(own, CALIBRATION_CENTRES, torch.Generator().manual_seed(0))
    model, left_out = heads.fit_kernel_classifier(preprocess, own, targets, centres=centres)
    return model, left_out, targets.argmax(dim=1)


def head_probabilities(
    pool: LabelledPool, asked: NDArray[np.uint8], encoder: Encoder, *, device: str
) -> NDArray[np.float32]:
    """What a kernel head of the pool's labelled images says of others, calibrated by left-out labels.

    Shapes: uint8 (n, H, W, C) to float32 (n, K), rows sum to 1.
    """
    images = pool.images[pool.labelled_index]
    model, *told = fit_plain_head(encoder, images, pool.labels, num_classes=pool.num_classes, device=device)
    sharpness, _ = calibrate(*told)
    others = model.preprocess.in_parts(to_tensor(asked, device))
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

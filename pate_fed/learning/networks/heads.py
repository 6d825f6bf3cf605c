"""Heads on fixed features, fitted in closed form: a ridge regression on classes, plain or kernel.

The kernel is exp(-|a - b|²); ridge strength is relative to features of mean squared length 1. Leaving one
sample out has a closed form as well (Golub, Heath and Wahba, 1979): y - (y - f) / (1 - h), which chooses the
strength, and tells how far released labels can be trusted, without a held-out part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.data.dataset import returning_memory
from pate_fed.learning.networks.classifiers import Classifier, Shape
from pate_fed.learning.networks.encoder import HistogramFeatures

# Of a kernel head, times the copies of a record. Flat from 0.001 to 0.03, on Fashion-MNIST's training images
# alone: 20 heads of 240 of the first 50,000, tested on the last 3,000.
TEACHER_RIDGE = 0.005
LINEAR_RIDGE = 0.3
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MOST_CENTRES = 3000
JITTER = 1e-6  # of a kernel's unit diagonal
ROWS = 1000  # of samples whose leverages are taken at once


def gaussian_kernel(a: Tensor, b: Tensor) -> Tensor:
    """exp(-|a_i - b_j|²): (..., n, d) and (..., m, d) to (..., n, m)."""
    squares = a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2)
    return torch.exp(-(squares - 2 * a @ b.transpose(-1, -2)).clamp(min=0))


def large_kernel(a: Tensor, b: Tensor) -> Tensor:
    """`gaussian_kernel` to the bit, with one large array, for fits: a network's own rows have any number."""
    kernel = 2 * a @ b.transpose(-1, -2)
    of_a, of_b = a.square().sum(-1, keepdim=True), b.square().sum(-1).unsqueeze(-2)
    for start in range(0, kernel.shape[-2], ROWS):
        rows = slice(start, start + ROWS)
        kernel[..., rows, :].neg_().add_(of_a[..., rows, :] + of_b)
    return kernel.clamp_(min=0).neg_().exp_()


class KernelHead(nn.Module):
    """Scores bias + k(x, centres) · weights, times `sharpness`, which makes them logits."""

    def __init__(self, centres: int, features: int, num_classes: int) -> None:
        super().__init__()
        self.sharpness: Tensor
        self.centres: Tensor
        self.weights: Tensor
        self.bias: Tensor
        self.register_buffer("centres", torch.zeros(centres, features))
        self.register_buffer("weights", torch.zeros(centres, num_classes))
        self.register_buffer("bias", torch.zeros(num_classes))
        self.register_buffer("sharpness", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """(n, features) to (n, K)."""
        scores = gaussian_kernel(x, self.centres) @ self.weights + self.bias
        return scores * self.sharpness


@dataclass(frozen=True, slots=True, repr=False)
class Ridge:
    """A fitted regression: `weights` (p, K), `bias` (K,), its strength, and the left-out scores (n, K)."""

    weights: Tensor
    bias: Tensor
    strength: float
    left_out: Tensor


def fit_ridge(
    features: Tensor,
    targets: Tensor,
    *,
    strengths: Sequence[float] = STRENGTHS,
    weights: Tensor | None = None,
) -> Ridge:
    """The ridge regression whose left-out squared error is least among `strengths`.

    Shapes: features (n, p), targets (n, K), n ≥ 1, the samples' weights (n,) above 0 and of mean 1 (None: all
    1); computed in double precision.
    """
    x, y = features.double(), targets.double()
    share = torch.ones(len(x), 1, dtype=x.dtype, device=x.device) if weights is None else weights[:, None]
    centre, bias = (share * x).mean(dim=0), (share * y).mean(dim=0)
    root = share.sqrt()
    x, y = (x - centre).mul_(root), root * (y - bias)
    wide = x.shape[1] > x.shape[0]
    values, vectors = torch.linalg.eigh(x @ x.T if wide else x.T @ x)
    values = values.clamp(min=0)
    usable = values > 1e-10 * values.max().clamp(min=1e-300)
    values, vectors = values[usable], vectors[:, usable]
    left = vectors if wide else (x @ vectors).div_(values.sqrt())  # (n, r), orthonormal columns
    turned = left.T @ y  # (r, K)
    shrinks = torch.stack([values / (values + strength) for strength in strengths])  # (s, r)
    parts = torch.split(left, ROWS)  # squares of all at once would be as large as the features
    leverages = torch.cat([shrinks @ part.square().T for part in parts], dim=1) + share[:, 0] / len(x)
    best: tuple[float, float, Tensor] | None = None
    for strength, shrink, leverage in zip(strengths, shrinks, leverages, strict=True):
        residual = y - left @ (shrink[:, None] * turned)
        missed = residual / (1 - leverage).clamp(min=1e-6)[:, None]
        error = float(missed.square().mean())
        if best is None or error < best[0]:
            best = (error, strength, (y - missed) / root + bias)
    assert best is not None
    _, strength, left_out = best
    right = x.T @ left if wide else vectors * values.sqrt()  # (p, r): xᵀ·left
    slopes = right @ (turned / (values + strength)[:, None])
    return Ridge(slopes, bias - centre @ slopes, strength, left_out)


class WeightedSums:
    """Sums over samples from which a weighted ridge regression follows; samples come in parts of any size.

    Memory is that of the features' products, (p, p), whatever the number of samples. All in double precision.
    """

    def __init__(self, features: int, num_classes: int, device: str | torch.device) -> None:
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        self._products, self._cross = zeros(features, features), zeros(features, num_classes)
        self._features, self._targets, self._count = zeros(features), zeros(num_classes), zeros(())

    def add(self, features: Tensor, targets: Tensor, weights: Tensor) -> None:
        """Take in features (n, p), targets (n, K) and the samples' weights (n,), none below 0."""
        x, y, w = features.double(), targets.double(), weights.double()
        weighted = x * w[:, None]
        self._products += weighted.T @ x
        self._cross += weighted.T @ y
        self._features += weighted.sum(dim=0)
        self._targets += w @ y
        self._count += w.sum()

    def centred(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Means of features (p,) and targets (K,); products of both around them, (p, p) and (p, K)."""
        mean, bias = self._features / self._count, self._targets / self._count
        gram = self._products - self._count * mean[:, None] * mean
        return mean, bias, gram, self._cross - self._count * mean[:, None] * bias

    def solve(self, strength: float, *, lower: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Weights (p, K) and bias (K,) of the ridge regression with a free constant, by Cholesky.

        With `lower` (p, p) the penalty is on the weights times its transpose: a kernel's factor.
        """
        mean, bias, gram, cross = self.centred()
        if lower is not None:
            gram = torch.linalg.solve_triangular(lower, gram, upper=False)
            gram = torch.linalg.solve_triangular(lower, gram.T, upper=False)
            cross = torch.linalg.solve_triangular(lower, cross, upper=False)
        gram = (gram + gram.T) / 2  # rounding must not make it crooked
        gram.diagonal().add_(strength)
        weights = torch.cholesky_solve(cross, torch.linalg.cholesky(gram))
        if lower is not None:
            weights = torch.linalg.solve_triangular(lower.T, weights, upper=True)
        return weights, bias - mean @ weights


def _fit_tall_ridge(
    rows: Tensor,
    mapped: Callable[[Tensor], Tensor],
    targets: Tensor,
    *,
    strengths: Sequence[float],
    judged: Tensor | None,
) -> Ridge:
    """`fit_ridge` of the features `mapped` (1000, p) of so many rows at once, so made twice.

    Left out, one by one, are the rows at `judged`, int64 (j,); None are all.
    """
    y = targets.double()
    sums = _summed(torch.split(rows, ROWS), mapped, torch.split(y, ROWS))
    centre, bias, gram, cross = sums.centred()
    del sums
    values, vectors = torch.linalg.eigh(gram)
    del gram
    usable = values > 1e-10 * values.max().clamp(min=1e-300)
    values, vectors = values[usable], vectors[:, usable]
    shrinks = torch.stack([values / (values + strength) for strength in strengths])  # (s, r)
    scaled = vectors / values.sqrt()
    turned = scaled.T @ cross  # (r, K)
    slopes = torch.stack([vectors @ (turned * (shrink / values.sqrt())[:, None]) for shrink in shrinks])
    left, told = (rows, y) if judged is None else (rows[judged], y[judged])
    missed = torch.empty(len(strengths), *told.shape, dtype=y.dtype, device=y.device)
    for part, classes, place in zip(
        torch.split(left, ROWS), torch.split(told, ROWS), torch.split(missed, ROWS, dim=1), strict=True
    ):
        x = mapped(part).sub_(centre)
        leverages = shrinks @ (x @ scaled).square_().T + 1 / len(y)  # (s, n_i)
        place.copy_((classes - bias - x @ slopes) / (1 - leverages).clamp(min=1e-6)[..., None])
    best = int(missed.square().mean(dim=(1, 2)).argmin())
    return Ridge(slopes[best], bias - centre @ slopes[best], strengths[best], told - missed[best])


def _summed(
    parts: Sequence[Tensor], mapped: Callable[[Tensor], Tensor], told: Sequence[Tensor]
) -> WeightedSums:
    """Sums over the features `mapped` of each part and its targets, all of weight 1."""
    first = mapped(parts[0][:1])
    sums = WeightedSums(first.shape[1], told[0].shape[1], first.device)
    for part, classes in zip(parts, told, strict=True):
        sums.add(mapped(part), classes, torch.ones_like(classes[:, 0]))
    return sums


def class_weights(labels: Tensor) -> Tensor:
    """What each sample counts where all classes that occur count alike, so that none drowns.

    Labels int64 (n,) to float64 (n,) of mean 1.
    """
    weights: Tensor = 1 / torch.bincount(labels).double()[labels]
    return weights / weights.mean()


def head_scores(
    private: Tensor, labels: Tensor, public: Tensor, *, num_classes: int, strength: float = TEACHER_RIDGE
) -> Tensor:
    """Scores that many kernel heads, each of its own part, give to the public inputs, in one batch.

    Shapes: features (teachers, copies, n, d), the records themselves first, then their shifted copies; labels
    int64 (teachers, n); features (m, d); to (teachers, m, K), whose greatest is the vote.
    """
    teachers, copies, count, width = private.shape
    centres = private[:, 0].double()  # (t, n, d)
    targets = nn.functional.one_hot(labels, num_classes).double()  # (t, n, K)
    each = torch.stack([class_weights(own) for own in labels])[:, :, None]  # (t, n, 1), mean 1
    bias = (each * targets).mean(dim=1, keepdim=True)
    every = (targets - bias).repeat(1, copies, 1)  # (t, copies·n, K)
    each = each.repeat(1, copies, 1)
    lower = _kernel_factor(centres)
    kernel = large_kernel(centres, private.reshape(teachers, copies * count, width).double())
    mapped = torch.linalg.solve_triangular(lower, kernel, upper=False).mT  # (t, copies·n, n)
    middle = (each * mapped).mean(dim=1, keepdim=True)
    mapped = mapped - middle
    gram = mapped.mT @ (each * mapped)
    gram.diagonal(dim1=1, dim2=2).add_(copies * strength)
    weights = torch.cholesky_solve(mapped.mT @ (each * every), torch.linalg.cholesky(gram))
    bias = bias - middle @ weights
    weights = torch.linalg.solve_triangular(lower.mT, weights, upper=True)
    scores: Tensor = large_kernel(public, private[:, 0]) @ weights.to(public.dtype) + bias.to(public.dtype)
    return scores


def _kernel_factor(centres: Tensor) -> Tensor:
    """The lower Cholesky factor of the kernel among centres, (..., c, d) to (..., c, c)."""
    among = large_kernel(centres, centres)
    among.diagonal(dim1=-2, dim2=-1).add_(JITTER)
    lower: Tensor = torch.linalg.cholesky(among)
    return lower


def fit_kernel_head(
    parts: Iterable[tuple[Tensor, Tensor, Tensor]], *, centres: Tensor, num_classes: int, strength: float
) -> KernelHead:
    """A kernel head of one strength from samples in parts: features (n, d), targets (n, K), weights (n,).

    Its time grows with the samples times the square of the centres (c, d), its memory not with the samples.
    """
    exact = centres.double()
    sums = WeightedSums(len(centres), num_classes, centres.device)
    for features, targets, weights in parts:
        sums.add(large_kernel(features.double(), exact), targets, weights)
    return _kernel_head(centres, *sums.solve(strength, lower=_kernel_factor(exact)))


def _kernel_head(centres: Tensor, weights: Tensor, bias: Tensor) -> KernelHead:
    head = KernelHead(len(centres), centres.shape[1], weights.shape[1]).to(centres.device)
    head.centres.copy_(centres)
    head.weights.copy_(weights)
    head.bias.copy_(bias)
    return head


def fit_kernel_classifier(
    preprocess: HistogramFeatures,
    features: Tensor,
    targets: Tensor,
    *,
    centres: Tensor,
    strengths: Sequence[float] = STRENGTHS,
    judged: Tensor | None = None,
) -> tuple[Classifier, Tensor]:
    """A kernel head on preprocessed `features` (n, d), and the left-out scores (n, K) in double precision.

    The kernel is K_nc K_cc⁻¹ K_cn (Nyström), the kernel itself where the centres (c, d) are the samples.
    With `judged`, int64 (j,), the scores are those of samples there, (j, K), which alone choose the strength
    where there are fewer centres than samples: a part of the time.
    """
    exact = centres.double()
    lower = _kernel_factor(exact)

    def mapped(rows: Tensor) -> Tensor:
        """Rows whose inner products are the kernel: K_nc L⁻ᵀ."""
        kernel = large_kernel(exact, rows.double())
        rows_of: Tensor = torch.linalg.solve_triangular(lower, kernel, upper=False).T
        return rows_of

    if len(features) <= len(centres):
        ridge = fit_ridge(mapped(features), targets, strengths=strengths)
        if judged is not None:
            ridge = replace(ridge, left_out=ridge.left_out[judged])
    else:
        with returning_memory():
            ridge = _fit_tall_ridge(features, mapped, targets, strengths=strengths, judged=judged)
    weights = torch.linalg.solve_triangular(lower.T, ridge.weights, upper=True)
    output = _kernel_head(centres, weights, ridge.bias)
    return Classifier(preprocess, [], output), ridge.left_out


def empty_head_classifier(
    name: str, shape: Shape, num_classes: int, weights: dict[str, Tensor]
) -> Classifier:
    """The network `name` with the sizes that `weights` have, to be filled from them."""
    if name == "hog-linear":
        preprocess = HistogramFeatures(shape, None)
        return Classifier(preprocess, [], nn.Linear(len(preprocess.mean), num_classes))
    preprocess = HistogramFeatures(shape, weights["preprocess.basis"].shape[1])
    centres, features = weights["output.centres"].shape
    return Classifier(preprocess, [], KernelHead(centres, features, num_classes))


def one_hot(labels: NDArray[np.int64], num_classes: int, device: str | torch.device) -> Tensor:
    """Labels (n,) as float64 (n, K)."""
    found = torch.from_numpy(np.array(labels, dtype=np.int64)).to(device)
    return nn.functional.one_hot(found, num_classes).double()


def subsample(rows: Tensor, most: int, generator: torch.Generator | None) -> Tensor:
    """All `rows`, or so many of them at random; None is torch's own generator, which teachers seed."""
    if len(rows) <= most:
        return rows
    return rows[torch.randperm(len(rows), generator=generator)[:most].to(rows.device)]

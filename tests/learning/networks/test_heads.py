"""Heads in closed form against slow versions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.learning import TeacherSettings
from pate_fed.learning.inputs import to_tensor
from pate_fed.learning.networks.encoder import HistogramFeatures, fit_encoder
from pate_fed.learning.networks.heads import (
    JITTER,
    ROWS,
    KernelHead,
    WeightedSums,
    class_weights,
    fit_kernel_classifier,
    fit_kernel_head,
    fit_ridge,
    gaussian_kernel,
    head_scores,
    large_kernel,
    one_hot,
)
from pate_fed.learning.teachers.closed_form import shifted_copies
from pate_fed.learning.teachers.network import train_teacher

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]


@pytest.mark.parametrize(("n", "p"), [(12, 5), (6, 20)])
def test_the_ridge_and_what_it_leaves_out_are_the_plain_ones(n: int, p: int) -> None:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, p, generator=generator, dtype=torch.float64)
    y = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    found = fit_ridge(x, y, strengths=(0.3,))

    def plain(keep: list[int], at: torch.Tensor) -> torch.Tensor:
        # An unpenalised constant: its column is centred away, in the plain way by a huge weight.
        ones = torch.cat([x[keep], 1e6 * torch.ones(len(keep), 1, dtype=x.dtype)], dim=1)
        gram = ones.T @ ones + 0.3 * torch.eye(p + 1, dtype=x.dtype)
        weights = torch.linalg.solve(gram, ones.T @ y[keep])
        return torch.cat([at, 1e6 * torch.ones(len(at), 1, dtype=x.dtype)], dim=1) @ weights

    everyone = list(range(n))
    assert torch.allclose(x @ found.weights + found.bias, plain(everyone, x), atol=1e-4)
    slow = torch.cat([plain([j for j in everyone if j != i], x[i : i + 1]) for i in everyone])
    assert torch.allclose(found.left_out, slow, atol=1e-4)


def test_the_strength_with_the_least_left_out_error_is_taken() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 30, generator=generator)
    y = torch.randn(40, 2, generator=generator)  # nothing to learn
    assert fit_ridge(x, y, strengths=(1e-3, 1e3)).strength == 1e3
    assert fit_ridge(x, x[:, :2], strengths=(1e-3, 1e3)).strength == 1e-3


def test_the_kernel_is_the_plain_one() -> None:
    a, b = torch.randn(4, 3), torch.randn(5, 3)
    plain = [[np.exp(-float(((x - y) ** 2).sum())) for y in b] for x in a]
    assert np.allclose(gaussian_kernel(a, b).numpy(), plain, atol=1e-5)


def test_the_large_kernel_is_the_kernel_to_the_bit() -> None:
    a, b = torch.randn(2, 2 * ROWS + 3, 3), torch.randn(2, 5, 3)
    assert torch.equal(large_kernel(a, b), gaussian_kernel(a, b))


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning", "ignore:.torch.jit:DeprecationWarning")
def test_a_traced_head_takes_any_number_of_rows() -> None:
    head = KernelHead(4, 3, 2)
    head.centres, head.weights = torch.randn(4, 3), torch.randn(4, 2)
    traced, rows = torch.jit.trace(head, torch.randn(2, 3)), torch.randn(ROWS + 7, 3)
    assert torch.allclose(traced(rows), head(rows))


def test_many_heads_at_once_vote_as_one_by_one(stripes: MakeStripes) -> None:
    images, labels = stripes(90)
    public, _ = stripes(50, seed=1)
    encoder = fit_encoder(public)
    parts = np.arange(90).reshape(3, 30)
    preprocess = encoder.preprocessing()
    features = torch.stack([preprocess(each) for each in shifted_copies(to_tensor(images, "cpu"))])
    together = head_scores(
        features[:, parts].transpose(0, 1),
        torch.from_numpy(labels)[parts],
        torch.from_numpy(encoder.transform(public)),
        num_classes=4,
    ).argmax(dim=-1)
    for row, part in zip(together.numpy(), parts, strict=True):
        teacher = train_teacher(
            images[part],
            labels[part],
            num_classes=4,
            settings=TeacherSettings(name="encoder-head"),
            seed=0,
            encoder=encoder,
        )
        assert np.mean(teacher.predict(public) == row) > 0.97  # single precision may turn a close call


def test_all_classes_count_alike() -> None:
    weights = class_weights(torch.tensor([0, 0, 0, 2, 0, 2]))
    assert torch.allclose(weights, torch.tensor([0.75, 0.75, 0.75, 1.5, 0.75, 1.5], dtype=torch.float64))
    assert torch.equal(class_weights(torch.tensor([1, 1, 1])), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("parts", [1, 3])
def test_sums_over_parts_give_the_weighted_ridge(parts: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(30, size, generator=generator, dtype=torch.float64) for size in (6, 2))
    weights = 0.5 + torch.rand(30, generator=generator, dtype=torch.float64)
    weights /= weights.mean()
    sums = WeightedSums(6, 2, "cpu")
    for rows in torch.arange(30).chunk(parts):
        sums.add(x[rows], y[rows], weights[rows])
    slopes, bias = sums.solve(0.3)
    ridge = fit_ridge(x, y, strengths=(0.3,), weights=weights)
    assert torch.allclose(slopes, ridge.weights) and torch.allclose(bias, ridge.bias)
    # The gradient of the weighted squared error and its penalty is 0, also along the free constant.
    missed = weights[:, None] * (x @ slopes + bias - y)
    assert torch.allclose(x.T @ missed, -0.3 * slopes) and torch.allclose(
        missed.sum(dim=0), torch.zeros(2, dtype=torch.float64), atol=1e-9
    )


def test_a_rare_class_is_not_drowned() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400).remainder(10).eq(0).long()  # a tenth is of the second class
    features = 0.5 * torch.randn(400, 2, generator=generator) + 0.6 * labels[:, None]
    asked = 0.5 * torch.randn(200, 2, generator=generator) + 0.6

    def recall(weights: torch.Tensor) -> float:
        samples = [(features, one_hot(labels.numpy(), 2, "cpu"), weights)]
        head = fit_kernel_head(samples, centres=features[:60], num_classes=2, strength=1.0)
        return float(head(asked).argmax(dim=1).double().mean())

    assert recall(torch.ones(400)) < 0.5 < recall(class_weights(labels))


@pytest.mark.parametrize("count", [2 * ROWS + 30, 70])
def test_a_kernel_ridge_a_part_at_a_time_is_that_of_all_at_once(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    rows = 0.3 * torch.randn(count, 5, generator=generator)
    targets = one_hot((rows[:, 0] > 0).long().numpy(), 2, "cpu")
    centres = rows[:60].double()
    mapped = (
        gaussian_kernel(rows.double(), centres)
        @ torch.linalg.inv(
            torch.linalg.cholesky(gaussian_kernel(centres, centres) + JITTER * torch.eye(60))
        ).mT
    )
    whole = fit_ridge(mapped, targets)
    head, left_out = fit_kernel_classifier(
        HistogramFeatures((8, 8, 1), 5), rows, targets, centres=centres.float()
    )
    scores = mapped @ whole.weights + whole.bias
    assert torch.allclose(head.output(rows).double(), scores, atol=1e-4)
    assert torch.allclose(left_out, whole.left_out, atol=1e-8)


@pytest.mark.parametrize("least", [60, 400])  # centres: fewer than samples, and all of them
def test_some_samples_are_left_out_as_all_are(least: int) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = 0.3 * torch.randn(400, 5, generator=generator)
    targets = one_hot((rows[:, 0] > 0).long().numpy(), 2, "cpu")
    judged = torch.tensor([7, 3, 250, 399])
    heads = [
        fit_kernel_classifier(
            HistogramFeatures((8, 8, 1), 5),
            rows,
            targets,
            centres=rows[:least],
            strengths=(0.1,),
            judged=some,
        )
        for some in (None, judged)
    ]
    (whole, every), (part, left_out) = heads
    assert left_out.shape == (4, 2) and torch.allclose(left_out, every[judged], atol=1e-10)
    assert torch.equal(whole.output(rows), part.output(rows))

"""Heads in closed form against slow versions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.learning import TeacherSettings
from pate_fed.learning.inputs import to_tensor
from pate_fed.learning.networks.encoder import (
    fit_encoder,
)
from pate_fed.learning.networks.heads import fit_ridge, gaussian_kernel, head_scores
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

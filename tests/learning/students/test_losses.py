"""The losses, each against a slow version written from the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pate_fed.learning.students.losses import (
    feature_matching_loss,
    masked_mean,
    response_losses,
    supervised_losses,
    unsupervised_loss,
)


def _logits(rows: int, classes: int = 5, seed: int = 0) -> torch.Tensor:
    return 4 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _with_generated_class(logits: torch.Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Probabilities over K + 1 classes; the K+1-th, "generated", has the logit 0."""
    powers = np.exp(np.c_[logits.numpy(), np.zeros(len(logits))])
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def test_supervised_losses_are_the_papers() -> None:
    logits, labels = _logits(20), torch.arange(20) % 5
    found = supervised_losses(logits, labels)
    for row in range(20):
        p = _with_generated_class(logits)[row]
        # p(y | x, y < K + 1): the generated class is conditioned away.
        assert found[row].item() == pytest.approx(-math.log(p[labels[row]] / (1 - p[5])))


@pytest.mark.parametrize("kept", [0.1, 0.232, 1.0])
def test_response_losses_go_through_the_plain_matrix(kept: float) -> None:
    logits, labels = torch.randn(6, 10, dtype=torch.float64), torch.arange(6)
    matrix = torch.full((10, 10), (1 - kept) / 9, dtype=torch.float64).fill_diagonal_(kept)
    plain = [
        -math.log(float(row.softmax(0) @ matrix[:, label])) for row, label in zip(logits, labels, strict=True)
    ]
    assert response_losses(logits, labels, keep_probability=kept).tolist() == pytest.approx(plain)


def test_the_unsupervised_loss_is_half_the_papers() -> None:
    real, fake = _logits(20), _logits(30, seed=1)
    on_real = -np.mean(np.log(1 - _with_generated_class(real)[:, 5]))
    on_fake = -np.mean(np.log(_with_generated_class(fake)[:, 5]))
    assert unsupervised_loss(real, fake).item() == pytest.approx(0.5 * (on_real + on_fake))


def test_large_logits_do_not_overflow() -> None:
    huge = torch.tensor([[1e4, -1e4], [-1e4, 1e4]])
    assert torch.isfinite(unsupervised_loss(huge, huge))
    assert torch.isfinite(supervised_losses(huge, torch.tensor([1, 0]))).all()
    assert unsupervised_loss(huge, -huge).item() == pytest.approx(5e3)


def test_feature_matching_averages_over_both_discriminators() -> None:
    real, fake = [_logits(9, 4, 1), _logits(9, 4, 2)], [_logits(7, 4, 3), _logits(7, 4, 4)]
    by_hand = 0.0
    for f, g in zip(real, fake, strict=True):
        by_hand += sum((f[:, j].mean() - g[:, j].mean()).item() ** 2 for j in range(4)) / 4 / 2
    assert feature_matching_loss(real, fake).item() == pytest.approx(by_hand)


def test_a_mean_over_nothing_is_zero_with_zero_gradient() -> None:
    losses = torch.tensor([1.0, 2.0], requires_grad=True)
    mean = masked_mean(losses, torch.tensor([False, False]))
    mean.backward()  # type: ignore[no-untyped-call]
    assert mean.item() == 0.0
    assert losses.grad is not None and torch.equal(losses.grad, torch.zeros(2))


def test_a_mean_ignores_what_is_not_kept() -> None:
    losses = torch.tensor([1.0, math.nan, 3.0, math.inf], requires_grad=True)
    mean = masked_mean(losses, torch.tensor([True, False, True, False]))
    mean.backward()  # type: ignore[no-untyped-call]
    assert mean.item() == 2.0
    assert losses.grad is not None and losses.grad.tolist() == [0.5, 0.0, 0.5, 0.0]

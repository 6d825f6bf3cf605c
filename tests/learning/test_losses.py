"""The losses and the small-loss exchange, each against a slow version written from the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.learning.students.coteaching import exchange, keep_rate, select_small_losses
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
    assert response_losses(logits, labels, kept=kept).tolist() == pytest.approx(plain)


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


@pytest.mark.parametrize(("epoch", "rate"), [(1, 1 - 0.2 / 15), (3, 0.96), (15, 0.8), (16, 0.8), (400, 0.8)])
def test_the_schedule_is_the_papers(epoch: int, rate: float) -> None:
    assert keep_rate(epoch, noise_rate=0.2) == pytest.approx(rate)


def test_the_ramp_may_be_shorter() -> None:
    assert keep_rate(2, noise_rate=0.4, ramp_epochs=4) == pytest.approx(0.8)


def _slow_selection(losses: list[float], candidates: list[bool], rate: float) -> set[int]:
    """argmin over subsets of at least rate · |candidates|: take the smallest until there are enough."""
    inside = [i for i, here in enumerate(candidates) if here]
    chosen: set[int] = set()
    while len(chosen) < rate * len(inside) - 1e-9:
        chosen.add(min((i for i in inside if i not in chosen), key=lambda i: (losses[i], i)))
    return chosen


@given(
    st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 1.0, 7.5]), st.booleans()), min_size=1, max_size=30),
    st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.96, 1.0]),
)
@settings(deadline=None, derandomize=True)
def test_selection_takes_the_smallest_losses_among_candidates(
    rows: list[tuple[float, bool]], rate: float
) -> None:
    losses, candidates = [row[0] for row in rows], [row[1] for row in rows]
    found = select_small_losses(torch.tensor(losses), torch.tensor(candidates), rate=rate)
    assert set(found.nonzero().flatten().tolist()) == _slow_selection(losses, candidates, rate)


@pytest.mark.parametrize("epoch", range(1, 17))
def test_the_kept_count_is_not_off_by_one(epoch: int) -> None:
    everything = torch.ones(100, dtype=torch.bool)
    rate = keep_rate(epoch, noise_rate=0.3)
    exact = -(-(100 * (150 - 3 * min(epoch, 15))) // 150)  # ceil(100 · (1 - 0.3 · e / 15)) in whole numbers
    chosen = select_small_losses(torch.rand(100), everything, rate=rate)
    assert int(chosen.sum()) == exact


def test_each_discriminator_gets_the_others_choice() -> None:
    first, second = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([4.0, 3.0, 2.0, 1.0])
    for_first, for_second = exchange([first, second], torch.ones(4, dtype=torch.bool), rate=0.5)
    assert for_first.tolist() == [False, False, True, True]
    assert for_second.tolist() == [True, True, False, False]


def test_one_discriminator_learns_from_all() -> None:
    (chosen,) = exchange([torch.tensor([1.0, 9.0])], torch.ones(2, dtype=torch.bool), rate=0.1)
    assert chosen.all()


def test_no_candidates_choose_nothing() -> None:
    nothing = torch.zeros(4, dtype=torch.bool)
    assert not any(each.any() for each in exchange([torch.rand(4), torch.rand(4)], nothing, rate=0.8))

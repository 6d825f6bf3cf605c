"""Classifiers: the fast dropout, the improved GAN's layers and their initialisation from data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from pate_fed.learning.networks.classifiers import Dropout, build_discriminator
from pate_fed.learning.tensors import to_tensor

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]


@pytest.mark.parametrize("share", [0.3, 0.5])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "expanded", "odd"])
def test_values_are_dropped_or_scaled(share: float, layout: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(50, 16, 9, 9) + 1.0
    if layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    elif layout == "expanded":
        x = x[:, :1].expand(50, 16, 9, 9)
    elif layout == "odd":
        x = x[:, ::3, 1:, :7]
    dropout = Dropout(share)
    y = dropout(x)
    assert y.shape == x.shape
    dropped = y == 0
    exact = round(256 * share) / 256
    sd = (exact * (1 - exact) / x.numel()) ** 0.5
    assert abs(dropped.float().mean().item() - exact) < 5 * sd  # 2/3 or 3/2 of the share is far outside
    assert torch.allclose(y[~dropped], x[~dropped] / (1 - exact))
    # Neighbours that share a random word are dropped independently.
    flat = dropped.flatten().float() - exact
    assert abs((flat[:-1] * flat[1:]).mean().item()) < 5 * exact * (1 - exact) / x.numel() ** 0.5
    assert torch.equal(dropout.eval()(x), x)


def test_two_calls_differ_and_a_seed_repeats_them() -> None:
    x, dropout = torch.ones(200), Dropout(0.5)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


def _widths(network: nn.Module) -> list[int]:
    layers = [each for each in network.modules() if isinstance(each, nn.Linear)]
    return [len(each.weight) for each in layers]


def test_the_layers_are_the_recipes() -> None:
    assert _widths(build_discriminator("dense", (28, 28, 1), 10)) == [1000, 500, 250, 250, 250, 10]


def test_only_the_last_layers_scale_is_trained() -> None:
    network = build_discriminator("dense", (16, 16, 1), 4)
    scales = [w for key, w in network.named_parameters() if key.endswith("original0")]
    assert [w.requires_grad for w in scales] == [False] * (len(scales) - 1) + [True]
    assert all(w.requires_grad for key, w in network.named_parameters() if not key.endswith("original0"))


def test_first_answers_have_mean_0_and_deviation_1(stripes: MakeStripes) -> None:
    torch.manual_seed(0)
    images, _ = stripes(300)
    network = build_discriminator("dense", (16, 16, 1), 4, dropout=0.0, input_noise=0.0)
    preprocessed = network.preprocess(to_tensor(images, "cpu"))
    network.initialise_from_data(preprocessed)
    answers: list[torch.Tensor] = []
    first = next(each for each in network.modules() if isinstance(each, nn.Linear))
    first.register_forward_hook(lambda layer, given, answer: answers.append(answer))
    with torch.no_grad():
        logits = network.train().logits(preprocessed)
    units = answers[0].transpose(0, 1).flatten(1)  # (units, n·places)
    assert torch.allclose(units.mean(dim=1), torch.zeros(len(units)), atol=1e-4)
    assert torch.allclose(units.std(dim=1), torch.ones(len(units)), atol=1e-2)
    assert logits.std(dim=0).mean() == pytest.approx(1.0, rel=0.2)
    assert logits.mean(dim=0).abs().max() < 0.3


def test_blank_inputs_initialise_nothing_to_infinity() -> None:
    network = build_discriminator("dense", (8, 8, 1), 2, input_noise=0.0)
    network.initialise_from_data(torch.zeros(1, 1, 8, 8))
    assert all(torch.isfinite(weight).all() for weight in network.parameters())

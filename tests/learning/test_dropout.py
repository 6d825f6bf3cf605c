"""The fast dropout against what dropout is: the right share of zeros, the mean kept, nothing else changed."""

from __future__ import annotations

import pytest
import torch

from pate_fed.learning.networks.classifiers import Dropout


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

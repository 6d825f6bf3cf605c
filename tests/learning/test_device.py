"""Devices by name, and randomness that leaves the caller's alone."""

from __future__ import annotations

import pytest
import torch

from pate_fed.errors import InputError
from pate_fed.learning.device import resolve_device, seeded


def test_devices() -> None:
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") in ("cpu", "cuda")
    for bad in ("cuda:", "cuda:x", "cpu:0", ""):
        with pytest.raises(InputError, match="is meant"):
            resolve_device(bad)


def test_a_seed_repeats_draws_and_leaves_the_callers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    found = []
    for seed in (1, 1, 2):
        with seeded(seed, "cpu"):
            found.append(torch.rand(3))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert torch.equal(torch.rand(3), expected)

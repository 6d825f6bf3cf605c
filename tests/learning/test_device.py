"""Devices by name, and randomness that leaves the caller's alone."""

from __future__ import annotations

import psutil
import pytest
import torch

from pate_fed.errors import InputError
from pate_fed.learning.device import release_memory, resolve_device, returning_memory, seeded, spare


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


def test_freed_memory_goes_back_to_the_system() -> None:
    def resident() -> int:
        return psutil.Process().memory_info().rss

    parts = [torch.ones(2**14) for _ in range(1600)]  # 64 KiB each: none is mapped by itself
    held, kept = resident(), parts[::100]
    del parts
    release_memory()
    assert resident() < held - 80 * 2**20
    assert all(bool((each == 1).all()) for each in kept)


def test_what_only_makes_quicker_gives_way_once_and_large_arrays_go_back() -> None:
    gone: list[int] = []

    def let_go() -> None:
        gone.append(1)

    spare(let_go)
    spare(let_go)
    release_memory()
    assert not gone
    release_memory(forget=True)
    assert gone == [1]
    with returning_memory():
        held = psutil.Process().memory_info().rss
        for _ in range(3):
            assert int(torch.ones(2 * 2**20).sum()) == 2**21  # 8 MiB
        assert psutil.Process().memory_info().rss < held + 4 * 2**20

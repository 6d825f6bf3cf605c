"""Freed memory goes back to the system."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from pate_fed.data.dataset import release_memory, returning_memory, spare


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
        arrays = [torch.empty(2**22) for _ in range(64)]  # of 16 MiB: the first may fill what was freed
        lay = arrays[-2].data_ptr()
        assert _mapped(lay)
        del arrays[-2]  # between others, where freed memory stays otherwise
        assert not _mapped(lay)


def _mapped(address: int) -> bool:
    places = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(low, 16) <= address < int(high, 16) for low, high in places)

"""Where learning runs, what it leaves of memory, and the guard that makes it repeatable for its caller."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from pate_fed.errors import InputError

__all__ = ["release_memory", "resolve_device", "returning_memory", "seeded", "spare"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGE, _LARGEST = 4 * 2**20, 32 * 2**20


def resolve_device(name: str) -> str:
    """The device for "auto", "cpu", "cuda" or "cuda:N": "auto" is cuda where there is one, else cpu.

    Raises:
        InputError: no such device, or it is not there.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return name
    kind, _, number = name.partition(":")
    if kind != "cuda" or (":" in name and not number.isdigit()):
        raise InputError(f"--device {name}: auto, cpu, cuda or cuda:N is meant")
    count = torch.cuda.device_count()
    if int(number or 0) >= count:
        raise InputError(f"--device {name}: torch sees {count} CUDA devices here")
    return name


def release_memory(*, forget: bool = False) -> None:
    """Give freed memory back to the system, which glibc keeps for the next array; elsewhere nothing.

    With `forget` also what `spare` holds in this process.
    """
    for let_go in _SPARED if forget else ():
        let_go()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def spare(let_go: Callable[[], None]) -> None:
    """Have `let_go` called where memory is needed: of what is kept only to be quicker."""
    _SPARED.add(let_go)


_SPARED: set[Callable[[], None]] = set()


@contextmanager
def returning_memory() -> Iterator[None]:
    """Inside, arrays of 4 MiB and more go back to the system when they are freed, where glibc is.

    They take longer to make, so this is for few of them.
    """
    choose = getattr(ctypes.CDLL(None), "mallopt", None)
    release_memory()
    if choose is not None:
        choose(_MMAP_THRESHOLD, _LARGE)
    try:
        yield
    finally:
        if choose is not None:  # the most that glibc itself would have come to
            choose(_MMAP_THRESHOLD, _LARGEST)
            choose(_TRIM_THRESHOLD, 2 * _LARGEST)
        release_memory()


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Torch's generators of the CPU and of `device` start at `seed` inside and are put back after.

    Convolutions are held to deterministic algorithms inside, without a lasting change of a global flag.
    """
    cuda = [torch.device(device)] if device.startswith("cuda") else []
    with (
        torch.random.fork_rng(devices=cuda),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True),
    ):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(cuda[0]):
                torch.cuda.manual_seed(seed)
        yield

"""Freed memory goes back to the system, which the C library would keep for what is needed next."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGE, _LARGEST = 4 * 2**20, 32 * 2**20


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

"""Which engine plays a simulation's parties where the study leaves it open: the one that takes less time."""

from __future__ import annotations

import os

from pate_fed.errors import InputError
from pate_fed.learning.settings import CLOSED_FORM, STACKED, TABLE_TEACHERS

__all__ = ["AUTO", "INLINE", "RAY", "cheaper_backend", "cluster_address", "cores"]

AUTO, RAY, INLINE = "auto", "ray", "inline"

# Seconds of one core, measured (tests/benchmarks/test_backend_benchmark.py prints them).
_TEACHER_S = {**dict.fromkeys(CLOSED_FORM, 0.1), STACKED: 0.15, **dict.fromkeys(TABLE_TEACHERS, 1.5)}
_HEAVY_S = 10.0  # a deep network takes 40, and of a user's own nobody knows
_PARTY_S = 0.15  # more where messages go through Ray's processes
_START_S = 15.0  # of Ray, and of torch in its processes
_WORTH_S = 30.0  # saved below which everything stays in one process


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cluster_address() -> str | None:
    """The cluster that Ray's own RAY_ADDRESS names: auto or HOST:PORT; None where it names none.

    Raises:
        InputError: it names a service of Ray that no study can join.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if "://" in address:
        raise InputError(
            f"RAY_ADDRESS {address}: auto or HOST:PORT of a cluster is meant, on one of its nodes; unset it, "
            "or give --backend inline"
        )
    return address if address not in ("", "local") else None


def cheaper_backend(teacher: str, *, num_clients: int, num_teachers: int, available: int) -> str:
    """The engine for so many parties and teachers of a kind on so many cores: Ray if it saves half a minute.

    In one process a single core works, on Ray all of them; but Ray takes its time to start, and every message
    goes through several processes. So Ray is for teachers that train for long, or for a great many parties on
    many cores.
    """
    work = num_teachers * _TEACHER_S.get(teacher, _HEAVY_S)
    on_ray = _START_S + (work + num_clients * _PARTY_S) / max(1, min(available, num_clients))
    return RAY if work - on_ray >= _WORTH_S else INLINE

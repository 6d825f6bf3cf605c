"""Which engine plays a simulation's parties where the study leaves it open: the one that takes less time."""

from __future__ import annotations

import os

from pate_fed.learning.settings import CLOSED_FORM, STACKED, TABLE_TEACHERS

__all__ = ["AUTO", "INLINE", "RAY", "cheaper_backend", "cores", "teaching_seconds"]

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


def cheaper_backend(teacher: str, *, num_clients: int, num_teachers: int, available: int) -> str:
    """The engine for so many parties and teachers of a kind on so many cores: Ray if it saves half a minute.

    In one process a single core works, on Ray all of them; but Ray takes its time to start, and every message
    goes through several processes. So Ray is for teachers that train for long, or for a great many parties on
    many cores.
    """
    work = num_teachers * _TEACHER_S.get(teacher, _HEAVY_S)
    on_ray = _seconds_on_ray(work, num_clients=num_clients, available=available)
    return RAY if work - on_ray >= _WORTH_S else INLINE


def teaching_seconds(
    teacher: str, *, backend: str, num_clients: int, num_teachers: int, available: int
) -> float | None:
    """Roughly how long teaching takes; of hospitals apart, at each. None: nobody knows of this teacher."""
    if teacher not in _TEACHER_S:
        return None
    work = num_teachers * _TEACHER_S[teacher]
    if backend == RAY:
        return _seconds_on_ray(work, num_clients=num_clients, available=available)
    return work if backend == INLINE else work / num_clients


def _seconds_on_ray(work: float, *, num_clients: int, available: int) -> float:
    return _START_S + (work + num_clients * _PARTY_S) / max(1, min(available, num_clients))

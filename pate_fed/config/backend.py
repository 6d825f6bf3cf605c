"""Which engine plays a simulation's parties where the study leaves it open: the one that takes less time."""

from __future__ import annotations

import os

from pate_fed.learning.settings import CLOSED_FORM, TABLE_TEACHERS

__all__ = ["AUTO", "INLINE", "RAY", "cheaper_backend", "cores"]

AUTO, RAY, INLINE = "auto", "ray", "inline"

FEW_TEACHERS = 100
"""Teachers to train below which Ray's start takes as long as its cores save (tests/benchmarks)."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cheaper_backend(teacher: str, *, num_teachers: int, available: int) -> str:
    """The engine for so many teachers of a kind on so many cores.

    Ray takes some ten seconds of two cores to start, and every message goes through several processes. That
    pays where teachers train for seconds and several cores share them. What is fitted at once, networks in
    closed form and forests, is done before; few teachers too.
    """
    light = teacher in (*CLOSED_FORM, *TABLE_TEACHERS)
    return INLINE if light or available < 2 or num_teachers < FEW_TEACHERS else RAY

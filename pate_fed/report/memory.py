"""Peak memory of a command with all its processes, sampled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class PeakMemory:
    """The largest sum seen, in bytes; 0 before the first sample."""

    def __init__(self) -> None:
        self.bytes = 0

    @property
    def megabytes(self) -> int | None:
        """The peak in MiB, rounded; None when nothing was sampled."""
        return round(self.bytes / 2**20) or None


@contextmanager
def watch_memory(*, every_s: float = 5.0) -> Iterator[PeakMemory]:
    """Sample this process and its descendants every `every_s` seconds until the block ends.

    Pages that processes share (Ray's object store, libraries) count once, where the system says how they are
    shared (Linux); elsewhere resident sizes are added up, which overstates.
    """
    peak, done = PeakMemory(), threading.Event()

    def sample() -> None:
        while True:
            peak.bytes = max(peak.bytes, _family_bytes())
            if done.wait(every_s):
                return

    thread = threading.Thread(target=sample, name="memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _family_bytes() -> int:
    import psutil

    me = psutil.Process()
    return sum(_process_bytes(process) for process in (me, *me.children(recursive=True)))


def _process_bytes(process: object) -> int:
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        full = process.memory_full_info()
    except psutil.Error:
        return 0  # it ended between listing and asking
    return int(getattr(full, "pss", full.rss))

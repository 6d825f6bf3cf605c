"""A hospital's own memory on its own disk: which batches it answered."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["Journal"]


class Journal:
    """Claims in one state directory (mode 0700), readable by the hospital alone.

    `answered` is the folder of the claims: questions of different kinds are counted apart.
    """

    def __init__(self, state_dir: Path, *, answered: Path | None = None) -> None:
        self._answered = answered or state_dir / "answered"
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._answered.mkdir(mode=0o700, exist_ok=True)

    def claim(self, content_digest: str, index: NDArray[np.int64]) -> bool:
        """Mark these queries as answered; False when any of them was before, also by a dead process.

        Batches that overlap would tell one query's votes from the difference of two sums, and twice the noise
        of one query would average out. The claim is durable before the first vote is computed: a crash in
        between costs this hospital the batch, but never lets a query be answered twice.

        Shapes: `index` int64 (queries,).
        """
        with self.turn() as folder:
            if self.claimed(content_digest) or np.isin(index, self._claimed_queries()).any():
                return False
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            handle = os.open(self._answered / content_digest, flags, 0o600)
            os.write(handle, index.astype("<i8").tobytes())
            os.fsync(handle)
            os.close(handle)
            os.fsync(folder)
        return True

    @contextmanager
    def turn(self) -> Iterator[int]:
        """One process at a time, as two may play this hospital at once; the folder of the claims, open."""
        folder = os.open(self._answered, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(folder)

    def claimed(self, content_digest: str) -> bool:
        """Whether the very batch was claimed before."""
        return (self._answered / content_digest).exists()

    def answered(self, *, since: float = 0.0) -> int:
        """Queries of all batches that were answered at or after a time (seconds since 1970)."""
        claims = [path.stat() for path in self._answered.iterdir()]
        return sum(claim.st_size // 8 for claim in claims if claim.st_mtime >= since)

    def _claimed_queries(self) -> NDArray[np.int64]:
        # A claim that a crash cut short counts as far as it goes: nothing was sent for it.
        parts = [path.read_bytes() for path in self._answered.iterdir()]
        return np.concatenate(
            [
                np.empty(0, dtype=np.int64),
                *(np.frombuffer(part[: len(part) // 8 * 8], "<i8") for part in parts),
            ]
        )

"""A hospital's own memory on its own disk: which batches it answered, and a log that never leaves it."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LOG_FILE", "Journal", "read_events"]

LOG_FILE = "log.jsonl"


class Journal:
    """Claims and notes in one state directory (mode 0700), readable by the hospital alone.

    `answered` is the folder of the claims: questions of different kinds are counted apart.
    """

    def __init__(self, state_dir: Path, *, answered: Path | None = None) -> None:
        self._dir = state_dir
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

    def note(self, event: str, **figures: float | int | str) -> None:
        """Append one line to the hospital's own log; a full disk costs the line, not the work it tells of."""
        line = json.dumps({"time": time.time(), "event": event, **figures})
        try:
            handle = os.open(self._dir / LOG_FILE, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            with os.fdopen(handle, "a", encoding="utf-8") as log:
                log.write(line + "\n")
        except OSError as error:
            print(f"the hospital's log cannot be written: {error.strerror}", file=sys.stderr)

    def fault(self, error: BaseException) -> None:
        """Keep an unexpected error, with its traceback, in the hospital's own log."""
        self.note("fault", error="".join(traceback.format_exception(error)))


def read_events(state_dir: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Every line of a hospital's own log, as it stands and as an event; None where a crash cut the line."""
    path = state_dir / LOG_FILE
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        yield line, event if isinstance(event, dict) else None

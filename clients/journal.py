"""A hospital's own memory on its own disk: which batches it answered, and a log that never leaves it."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

__all__ = ["Journal"]


class Journal:
    """Claims and notes in one state directory (mode 0700), readable by the hospital alone."""

    def __init__(self, state_dir: Path) -> None:
        self._dir = state_dir
        self._answered = state_dir / "answered"
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._answered.mkdir(mode=0o700, exist_ok=True)

    def claim(self, content_digest: str, *, queries: int) -> bool:
        """Mark a batch of so many queries as answered; False when it was before, also by a dead process.

        The claim is durable before the first vote is computed: a crash in between costs this hospital the
        batch, but never lets a batch be answered twice.
        """
        try:
            handle = os.open(self._answered / content_digest, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return False
        os.write(handle, f"{queries}\n".encode())
        os.fsync(handle)
        os.close(handle)
        folder = os.open(self._answered, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return True

    def claimed(self, content_digest: str) -> bool:
        """Whether the batch was claimed before."""
        return (self._answered / content_digest).exists()

    def answered(self, *, since: float = 0.0) -> int:
        """Queries of all batches that were answered at or after a time (seconds since 1970)."""
        claims = [path for path in self._answered.iterdir() if path.stat().st_mtime >= since]
        # A claim without its number is one that a crash cut short; nothing was sent for it.
        return sum(int(path.read_text(encoding="utf-8") or 0) for path in claims)

    def note(self, event: str, **figures: float | int | str) -> None:
        """Append one line to the hospital's own log; a full disk costs the line, not the work it tells of."""
        line = json.dumps({"time": time.time(), "event": event, **figures})
        try:
            handle = os.open(self._dir / "log.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            with os.fdopen(handle, "a", encoding="utf-8") as log:
                log.write(line + "\n")
        except OSError as error:
            print(f"the hospital's log cannot be written: {error.strerror}", file=sys.stderr)

    def fault(self, error: BaseException) -> None:
        """Keep an unexpected error, with its traceback, in the hospital's own log."""
        self.note("fault", error="".join(traceback.format_exception(error)))

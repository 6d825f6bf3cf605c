"""Votes of the batch that is being collected, on the coordinator's own disk until its release is charged.

A coordinator that dies in between goes on with what it has: nobody is asked for the same votes again, which a
hospital would refuse. Nothing is kept once a batch is on the ledger. With secure summation nothing is kept.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import write_private
from pate_fed.errors import IntegrityError

__all__ = ["InFlight"]

_BATCH = "batch"


class InFlight:
    """A folder (mode 0700) with the name of the batch and one file of votes a party (mode 0600)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, digest: str) -> dict[str, NDArray[np.int64]]:
        """Start a batch, or go on with it; the votes that are here already, by party.

        Raises:
            IntegrityError: a file is damaged.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        name = self._folder / _BATCH
        if not name.exists() or name.read_text(encoding="utf-8") != digest:
            self.end()
            write_private(name, digest.encode())
            return {}
        return {path.stem: _read(path) for path in sorted(self._folder.glob("*.npy"))}

    def keep(self, party: str, votes: NDArray[np.int64]) -> None:
        """Keep one party's votes of the batch; on the disk when this returns."""
        content = io.BytesIO()
        np.save(content, votes, allow_pickle=False)
        write_private(self._folder / f"{party}.npy", content.getvalue())

    def end(self) -> None:
        """Forget the batch."""
        for path in self._folder.glob("*"):
            path.unlink()


def _read(path: Path) -> NDArray[np.int64]:
    try:
        votes: NDArray[np.int64] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise IntegrityError(
            f"{path}: the kept votes are damaged; delete the file to leave the party out"
        ) from error
    return votes

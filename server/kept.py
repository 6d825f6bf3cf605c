"""Exact totals of released batches, on the coordinator's own disk until the study has come to its end.

A coordinator that is started again needs them for the two data-dependent figures. They are as private as in
its memory: files of mode 0600 in a folder of mode 0700, removed when the study has come to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import write_arrays

__all__ = ["KeptTotals"]


class KeptTotals:
    """One file a batch, named by the batch's digest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, digest: str, **arrays: NDArray[np.int64]) -> None:
        """Keep a batch's figures before it is charged; on the disk when this returns."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_arrays(self._folder / f"{digest}.npz", **arrays)

    def read(self, digests: Sequence[str]) -> list[dict[str, NDArray[np.int64]]] | None:
        """The figures of these batches, in order; None where any is missing or damaged."""
        try:
            return [_read(self._folder / f"{digest}.npz") for digest in digests]
        except (OSError, ValueError, EOFError, BadZipFile):
            return None


def _read(path: Path) -> dict[str, NDArray[np.int64]]:
    with np.load(path, allow_pickle=False) as held:
        return dict(held)

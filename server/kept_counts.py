"""What a coordinator of label counts under masks keeps on its disk, so that another process can go on.

Keys, the roster and the last batch as in a study with votes, and the sum as soon as it is there: it is noisy,
so it need not be secret, and no hospital gives a second one. A coordinator that dies before counts were asked
for goes on; after its sum, it goes on from that. In between the counts are lost, and ε counts as spent.
"""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import write_arrays
from pate_fed.errors import IntegrityError
from pate_fed.protocol.label_terms import LabelTerms
from server.masked_state import MaskedState

__all__ = ["KeptCounts"]

Ints = NDArray[np.int64]

_COUNTS = "counts.npz"


class KeptCounts:
    """One study's state in a folder of its own below `folder`, named by its terms."""

    def __init__(self, folder: Path, terms: LabelTerms) -> None:
        self._folder, self._shape = folder / terms.digest[:16], (terms.num_clusters, terms.num_classes)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.state = MaskedState(self._folder)

    @property
    def summed(self) -> bool:
        """Whether the sum is here."""
        return (self._folder / _COUNTS).exists()

    @property
    def lost(self) -> bool:
        """Whether counts were asked for and never summed: some hospitals may have sent theirs.

        Raises:
            IntegrityError: the note of it is damaged.
        """
        begun = self.state.begun
        return begun is not None and begun.asked and not self.summed

    @property
    def next_batch(self) -> int:
        """A number that no opened batch has."""
        begun = self.state.begun
        return 0 if begun is None else begun.batch + 1

    def keep(self, totals: Ints, hospitals: int) -> None:
        """Keep the noisy sum, int64 (clusters, classes), of so many hospitals; on the disk at the end."""
        write_arrays(self._folder / _COUNTS, totals=totals, hospitals=np.array(hospitals))

    def read(self) -> tuple[Ints, int]:
        """The sum that is here, and of how many hospitals.

        Raises:
            IntegrityError: the file is damaged.
        """
        path = self._folder / _COUNTS
        try:
            with np.load(path, allow_pickle=False) as held:
                totals, hospitals = held["totals"], int(held["hospitals"])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise IntegrityError(f"{path}: the kept counts are damaged") from error
        if totals.shape != self._shape or totals.dtype != np.int64:
            raise IntegrityError(f"{path}: the kept counts are of another study")
        return totals, hospitals

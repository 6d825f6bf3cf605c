"""What a coordinator must know of its secure summation to go on after its death: keys, roster, last batch.

Neither votes nor totals are here. A batch whose votes were asked for when the coordinator died may have been
answered: it is void, charged, and never opened again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import write_private
from pate_fed.errors import IntegrityError
from pate_fed.protocol.messages import VoteRequest
from pate_fed.secure_sum import Identity

__all__ = ["Begun", "MaskedState"]

_IDENTITY, _ROSTER, _BATCH = "identity.key", "roster", "batch.json"


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """The last batch that was opened. `asked` tells that hospitals may have sent masked votes for it."""

    batch: int
    digest: str
    index: NDArray[np.int64]
    asked: bool


class MaskedState:
    """A folder of mode 0700 with files of mode 0600."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def identity(self) -> Identity:
        """The coordinator's key for this study, made when it is not there."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / _IDENTITY
        if not path.exists():
            write_private(path, Identity.generate().to_bytes())
        return Identity(path.read_bytes())

    @property
    def roster(self) -> bytes | None:
        """The closed roster; None before."""
        path = self._folder / _ROSTER
        return path.read_bytes() if path.exists() else None

    def keep_roster(self, roster: bytes) -> None:
        """Keep the roster before any hospital sees it."""
        write_private(self._folder / _ROSTER, roster)

    def begin(self, question: VoteRequest, *, asked: bool) -> None:
        """Note a batch before its first message, and again before the first that asks for votes."""
        note = {
            "batch": question.batch,
            "digest": question.digest,
            "index": question.index.tolist(),
            "asked": asked,
        }
        write_private(self._folder / _BATCH, json.dumps(note).encode())

    @property
    def begun(self) -> Begun | None:
        """The last batch that was opened, released or not.

        Raises:
            IntegrityError: the note is damaged.
        """
        path = self._folder / _BATCH
        if not path.exists():
            return None
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            index = np.array(note["index"], dtype=np.int64)
            return Begun(int(note["batch"]), str(note["digest"]), index, bool(note["asked"]))
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(f"{path}: the note of the last batch is damaged") from error

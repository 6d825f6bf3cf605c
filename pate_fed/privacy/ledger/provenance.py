"""What a batch was chosen by: a student of earlier rows of the same ledger, so of past outputs alone.

The student's probabilities are public, as they follow from released labels. The ledger names them by their
digest; whoever has the file can repeat the choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy.checks import check_count

__all__ = ["Provenance", "digest_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Round, strategy, and the student behind a batch.

    `learnt_to` is the hash of the last row whose labels the student had learnt from, `predictions` the
    SHA-256 of what it said of the public pool.

    Raises:
        InputError: a round below 2, or digests that are none.
    """

    round: int
    strategy: str
    learnt_to: str
    predictions: str

    def __post_init__(self) -> None:
        check_count("round", self.round, least=2)
        for name in ("learnt_to", "predictions"):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) != 64 or set(value) - set("0123456789abcdef"):
                raise InputError(f"{name}={value!r}: must be a SHA-256 digest in lower-case hex")
        if not isinstance(self.strategy, str) or not self.strategy:
            raise InputError(f"strategy={self.strategy!r}: must be a name")

    def require_past(self, hashes: Collection[str]) -> None:
        """Refuse a student of anything but earlier charges, whose hashes these are.

        Raises:
            IntegrityError: it learnt from something else.
        """
        if self.learnt_to not in hashes:
            raise IntegrityError("a batch was chosen by a student that learnt from no earlier row")


def digest_of(*arrays: NDArray[np.float32]) -> str:
    """SHA-256 hex over arrays of predictions, shapes included."""
    state = hashlib.sha256(b"pate_fed/v1 predictions")
    for array in arrays:
        state.update(repr(array.shape).encode())
        state.update(np.ascontiguousarray(array, dtype="<f4").tobytes())
    return state.hexdigest()

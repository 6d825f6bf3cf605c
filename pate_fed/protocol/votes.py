"""The check of a vote matrix, by whoever receives one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError


def check_votes(
    votes: NDArray[np.int64], *, queries: int, classes: int, num_teachers: int, least_teachers: int
) -> None:
    """Refuse a vote matrix that no honest party can send.

    Shapes: `votes` int64 (queries, classes); every row sums to the party's number of teachers, which is
    `least_teachers` to `num_teachers`.

    Raises:
        IntegrityError: wrong type or shape, a negative count, or a row with too many or too few votes. The
            message carries no votes.
    """
    if votes.dtype != np.int64:
        raise IntegrityError(f"votes are {votes.dtype}, not int64")
    if votes.shape != (queries, classes):
        raise IntegrityError(f"votes have the shape {votes.shape}, not {(queries, classes)}")
    if votes.size and votes.min() < 0:
        raise IntegrityError("votes hold negative counts")
    # Each entry is checked before the sum, which could otherwise wrap around in 64 bits.
    if votes.size and votes.max() > num_teachers:  # a sum of larger numbers could wrap around
        raise IntegrityError(f"a class has more votes than the party's {num_teachers} teachers")
    sums = votes.sum(axis=1)
    if (sums.size and not least_teachers <= sums[0] <= num_teachers) or (sums != sums[:1]).any():
        fewer = "" if least_teachers == num_teachers else f"{least_teachers} to "
        raise IntegrityError(f"a row of votes does not sum to the party's {fewer}{num_teachers} teachers")

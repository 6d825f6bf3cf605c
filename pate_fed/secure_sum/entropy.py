"""The one place that draws randomness: the operating system's CSPRNG, and no way to seed it.

There is no parameter, setting or variable by which product code could ask for repeatable draws. The tests
that need a fixed transcript replace `_system` in this module from outside.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

_system = secrets.token_bytes


def random_bytes(count: int) -> bytes:
    """`count` uniform bytes."""
    return _system(count)


def random_below(bound: int, count: int) -> NDArray[np.int64]:
    """`count` independent uniform integers from 0 to `bound` - 1, for a bound of at most 2^16.

    By rejection, so exactly uniform: the share of draws that is thrown away is 1 - bound / 2^16.
    """
    accepted = np.empty(0, dtype=np.int64)
    while len(accepted) < count:
        drawn = np.frombuffer(random_bytes(2 * (count - len(accepted)) + 32), dtype="<u2").astype(np.int64)
        accepted = np.concatenate([accepted, drawn[drawn < bound]])
    return accepted[:count]

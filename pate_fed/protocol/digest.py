"""The digest of a message by which a hospital's log and a coordinator's receipt name what was sent."""

from __future__ import annotations

import numpy as np

from pate_fed.protocol.agreed import digest_of
from pate_fed.protocol.messages import Record


def record_digest(record: Record) -> str:
    """SHA-256 hex of a message's flat record: its fields by name, each with its type, whatever carries it.

    Raises:
        TypeError: a field of a type that no message has.
    """
    parts = [b"pate_fed/v1 message"]
    for name in sorted(record):
        parts.append(name.encode())
        value = record[name]
        if isinstance(value, np.ndarray):
            if value.dtype != np.int64:
                raise TypeError(f"{name}: messages hold whole numbers of 64 bits")
            parts += [b"array", str(value.shape).encode(), value.astype("<i8").tobytes()]
        elif isinstance(value, bytes):
            parts += [b"bytes", value]
        elif isinstance(value, str):
            parts += [b"text", value.encode()]
        elif isinstance(value, int | float):
            parts += [type(value).__name__.encode(), repr(value).encode()]
        else:
            raise TypeError(f"{name}: no message has a {type(value).__name__}")
    return digest_of(*parts)

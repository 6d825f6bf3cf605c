"""Image arrays in text: compressed, as base64."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_MOST_BYTES = 2**26  # of an image array in a log line


def pack(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """A uint8 array as a table of its shape and bytes; `unpack` reads it back.

    Raises:
        TypeError: an array of another type.
    """
    if array.dtype != np.uint8:
        raise TypeError(f"only uint8 arrays are kept here, not {array.dtype}")
    data = base64.b64encode(zlib.compress(array.tobytes(), 9)).decode("ascii")
    return {"shape": list(array.shape), "zlib_base64": data}


def unpack(value: Mapping[str, Any]) -> np.ndarray[Any, Any] | None:
    """The array in such a table, None where it is none or too large."""
    try:
        shape = tuple(int(size) for size in value["shape"])
        if min(shape, default=0) < 0 or math.prod(shape) > _MOST_BYTES:
            return None
        # Bounded: a damaged or hostile line cannot unfold into more than it says.
        data = zlib.decompressobj().decompress(base64.b64decode(value["zlib_base64"]), math.prod(shape) + 1)
        return np.frombuffer(data, dtype=np.uint8).reshape(shape)
    except (KeyError, TypeError, ValueError, zlib.error):
        return None

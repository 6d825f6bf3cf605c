"""The codec: one spelling for a record, and damage refused."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum.codec import pack, unpack


def test_the_codec_is_exact_and_refuses_damage() -> None:
    record = {
        "a": -(2**63),
        "b": "α",
        "c": b"\0\1",
        "d": np.arange(3, dtype="<u4"),
        "e": np.empty(0, dtype="<i8"),
        "f": np.array([65_535], dtype="<u2"),
    }
    data = pack(record)
    again = unpack(data)
    assert pack(again) == data and list(again) == list(record)
    np.testing.assert_array_equal(again["d"], record["d"])
    for size in range(1, len(data)):
        if data[:size] not in {pack(dict(list(record.items())[:count])) for count in range(len(record))}:
            with pytest.raises(IntegrityError):
                unpack(data[:size])
    for bad in (True, 2**63, 1.0, None, np.zeros((2, 2), dtype="<i8"), np.zeros(2)):
        with pytest.raises(IntegrityError, match="'x'"):
            pack({"x": bad})  # type: ignore[dict-item]
    with pytest.raises(IntegrityError):
        unpack(pack({"b": 1}) + pack({"a": 1}))

"""The codec: one spelling for a record, and damage refused."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum.keys import pack, unpack


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
    for once in ("a", "b"):  # names rise, and none comes twice
        with pytest.raises(IntegrityError):
            unpack(pack({"b": 1}) + pack({once: 1}))


@pytest.mark.parametrize(
    ("kind", "body"), [(b"i", bytes(7)), (b"i", bytes(9)), (b"i", b""), (b"?", b"x"), (b"4", bytes(5))]
)
def test_a_field_whose_kind_and_length_do_not_fit_is_damage(kind: bytes, body: bytes) -> None:
    whole = pack({"x": b"01234567"})
    head, name = whole[: len(whole) - 9], b"x"
    assert head.count(b"b") == 1 and head.endswith((8).to_bytes(len(head) - head.index(b"b") - 1, "big"))
    size = len(body).to_bytes(len(head) - head.index(b"b") - 1, "big")
    with pytest.raises(IntegrityError):
        unpack(head[: head.index(b"b")] + kind + size + name + body)

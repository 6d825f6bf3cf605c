"""Messages as Flower records, and back."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from pate_fed.errors import IntegrityError
from pate_fed.flower.records import from_flower, to_flower


def test_records_survive_flower() -> None:
    record = {"kind": "x", "n": 3, "share": 0.5, "votes": np.arange(6, dtype=np.int64).reshape(2, 3)}
    got = from_flower(to_flower(record))
    assert {name: got[name] for name in ("kind", "n", "share")} == {"kind": "x", "n": 3, "share": 0.5}
    assert got["votes"].dtype == np.int64
    np.testing.assert_array_equal(got["votes"], record["votes"])


def test_unknown_records_are_refused() -> None:
    with pytest.raises(IntegrityError):
        from_flower(RecordDict({"weights": ConfigRecord({"a": 1})}))
    two = to_flower({"kind": "x"})
    two["fields"] = ConfigRecord({"kind": [1, 2]})
    with pytest.raises(IntegrityError):
        from_flower(two)


def _npy(array: np.ndarray, **changes: object) -> Array:
    good = Array(array)
    return Array(
        **{"dtype": good.dtype, "shape": good.shape, "stype": good.stype, "data": good.data, **changes}
    )


def _with(array: Array) -> RecordDict:
    content = to_flower({"kind": "votes", "votes": np.zeros((2, 3), dtype=np.int64)})
    content["arrays"] = ArrayRecord({"votes": array})
    return content


VOTES = np.arange(6, dtype=np.int64).reshape(2, 3)
HUGE = (
    np.lib.format.magic(1, 0)
    + b"v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000, 14), }"
)


@pytest.mark.parametrize(
    "array",
    [
        _npy(VOTES, data=b"garbage"),
        _npy(VOTES, data=b""),
        _npy(VOTES, stype="pickle"),
        _npy(VOTES, data=HUGE.ljust(128) + b"\n"),
        _npy(VOTES, data=Array(VOTES).data[:-1]),
        _npy(VOTES, data=Array(VOTES).data + b"\0"),
        _npy(VOTES.astype(np.float64)),
        _npy(VOTES.astype(">i8")),
        _npy(np.asfortranarray(VOTES)),
        _npy(VOTES.reshape(1, 2, 3)),
        _npy(np.array(["a"])),
    ],
    ids=[
        "garbage",
        "empty",
        "stype",
        "huge",
        "short",
        "long",
        "float",
        "big-endian",
        "fortran",
        "axes",
        "text",
    ],
)
def test_an_array_is_held_to_its_own_bytes_before_it_is_loaded(array: Array) -> None:
    with pytest.raises(IntegrityError, match="not readable"):
        from_flower(_with(array))


def test_an_array_of_objects_is_never_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return open, (str(tmp_path / "run"), "w")

    file = io.BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(IntegrityError):
        from_flower(_with(_npy(VOTES, data=file.getvalue())))
    assert list(tmp_path.iterdir()) == []


def test_10_000_mutations_of_a_good_array_are_read_or_refused() -> None:
    good, rng = Array(VOTES).data, np.random.default_rng(0)
    read = 0
    for _ in range(10_000):
        data = bytearray(good)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            data[place] = rng.integers(0, 256)
        try:
            record = from_flower(_with(_npy(VOTES, data=bytes(data[: rng.integers(1, len(data) + 1)]))))
        except IntegrityError:
            continue
        read += 1
        votes = record["votes"]
        assert isinstance(votes, np.ndarray) and votes.dtype == np.int64 and votes.nbytes <= len(good)
    assert read < 5_000

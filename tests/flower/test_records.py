"""Messages as Flower records, and back."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from flwr.app import ConfigRecord, RecordDict

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

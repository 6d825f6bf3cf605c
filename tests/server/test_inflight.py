"""Votes that a coordinator's death must not lose, and that nobody is asked for again."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from pate_fed.errors import IntegrityError
from server.inflight import InFlight

VOTES = np.arange(6, dtype=np.int64).reshape(2, 3)


def test_a_batch_goes_on_with_the_votes_that_are_there(tmp_path: Path) -> None:
    first = InFlight(tmp_path / "inflight")
    assert first.begin("a" * 64) == {}
    first.keep("north", VOTES)
    again = InFlight(tmp_path / "inflight").begin("a" * 64)
    assert list(again) == ["north"]
    np.testing.assert_array_equal(again["north"], VOTES)


def test_another_batch_or_a_release_forgets_them(tmp_path: Path) -> None:
    flight = InFlight(tmp_path / "inflight")
    flight.begin("a" * 64)
    flight.keep("north", VOTES)
    assert flight.begin("b" * 64) == {}
    flight.keep("north", VOTES)
    flight.end()
    assert list((tmp_path / "inflight").iterdir()) == []
    assert flight.begin("b" * 64) == {}


def test_kept_votes_are_private_and_damage_is_named(tmp_path: Path) -> None:
    flight = InFlight(tmp_path / "inflight")
    flight.begin("a" * 64)
    flight.keep("north", VOTES)
    assert stat.S_IMODE((tmp_path / "inflight").stat().st_mode) == 0o700
    path = tmp_path / "inflight" / "north.npy"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(IntegrityError, match=r"north\.npy"):
        flight.begin("a" * 64)

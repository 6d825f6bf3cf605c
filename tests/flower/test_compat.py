"""The private names of Flower that this room leans on were read in one release."""

from __future__ import annotations

from importlib.metadata import version


def test_flower_is_the_release_this_room_was_written_for() -> None:
    assert version("flwr").startswith("1.39.")

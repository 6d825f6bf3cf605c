"""What guards are told: whole through the environment, and never the content of a key."""

from __future__ import annotations

import json

import pytest

from pate_fed.flower.guard_settings import LinkGuard, NodeGuard


@pytest.mark.parametrize(
    "guard",
    [LinkGuard(most_bytes=7, hospitals=3), NodeGuard(most_bytes=7, certificate="PEM\n", key="/a/key")],
)
def test_a_child_reads_what_was_written(guard: LinkGuard | NodeGuard) -> None:
    assert type(guard)(**json.loads(guard.to_json())) == guard

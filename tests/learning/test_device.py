"""Devices by name."""

from __future__ import annotations

import pytest

from pate_fed.errors import InputError
from pate_fed.learning.device import resolve_device


def test_devices() -> None:
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") in ("cpu", "cuda")
    for bad in ("cuda:", "cuda:x", "cpu:0", ""):
        with pytest.raises(InputError, match="is meant"):
            resolve_device(bad)

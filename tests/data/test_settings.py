"""Glyph's settings check themselves."""

from __future__ import annotations

from typing import Any

import pytest

from pate_fed.data import GlyphSettings
from pate_fed.errors import InputError


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("classes", 1, "2 to 150"),
        ("classes", 151, "2 to 150"),
        ("classes", 10.0, "whole number"),
        ("classes", True, "whole number"),
        ("private", 0, "from 1"),
        ("public", 1, "from 2"),
        ("seed", -1, "from 0"),
        ("imbalance", 0.5, "1 (balanced) to 100"),
        ("imbalance", float("inf"), "1 (balanced) to 100"),
        ("wrong_labels", -0.1, "0 to 0.9"),
        ("wrong_labels", float("nan"), "0 to 0.9"),
        ("wrong_labels", "some", "0 to 0.9"),
        ("distortion", 2.5, "0 (upright) to 2"),
        ("noise", -1.0, "0 (clean) to 2"),
    ],
)
def test_a_setting_out_of_range_is_named(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(InputError) as caught:
        GlyphSettings(**{key: value})
    assert all(word in str(caught.value) for word in (key, repr(value), allowed))

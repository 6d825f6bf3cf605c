"""Exact draws with integers."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.randres import RandRes, uniform_below
from pate_fed.privacy import SeededNoise


class Words:
    """A source whose uniform numbers are given."""

    kind, private = "given", False

    def __init__(self, *keys: list[int]) -> None:
        self.keys = list(keys)

    def tie_keys(self, shape: object) -> np.ndarray:
        return np.array(self.keys.pop(0), dtype=np.int64) + 1


def test_uniform_numbers_are_exactly_uniform() -> None:
    # 2^62 is 1 more than a multiple of 3, so the very last number is thrown away and drawn again.
    found = uniform_below(3, 4, Words([0, 1, 2**62 - 1, 5], [4]))  # type: ignore[arg-type]
    assert found.tolist() == [0, 1, 1, 2]
    assert uniform_below(2**62, 2, Words([0, 2**62 - 1])).tolist() == [0, 2**62 - 1]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="bound"):
        uniform_below(0, 1, SeededNoise(0))


def test_one_word_decides() -> None:
    mechanism = RandRes(num_classes=3, epsilon=1.0)
    keep_words = mechanism.keep_words
    found = mechanism.release([2, 2, 2], Words([keep_words - 1, keep_words, keep_words], [0, 0, 1])).label  # type: ignore[arg-type]
    assert found.tolist() == [2, 0, 1]

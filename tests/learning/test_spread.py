"""Inputs to ask about, spread over a pool."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.learning.spread import choose_spread


def test_every_cluster_is_asked_about_once() -> None:
    rng = np.random.default_rng(0)
    middles = 20 * np.eye(6)
    features = np.concatenate([each + rng.normal(size=(50, 6)) for each in middles]).astype(np.float32)
    found = choose_spread(features, 60, seed=1)
    assert len(np.unique(found)) == 60
    assert np.bincount(found // 50, minlength=6).min() >= 5
    one = choose_spread(features[:50], 1, seed=1)
    gaps = np.square(features[:50] - features[:50].mean(axis=0)).sum(axis=1)
    assert one.tolist() == [int(gaps.argmin())]


def test_it_covers_better_than_chance() -> None:
    features = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)

    def farthest(chosen: np.ndarray) -> float:
        gaps = np.square(features[:, None] - features[chosen]).sum(axis=2).min(axis=1)
        return float(gaps.mean())

    chance = np.random.default_rng(1).permutation(500)[:50]
    assert farthest(choose_spread(features, 50, seed=0)) < 0.8 * farthest(chance)


@pytest.mark.parametrize("count", [1, 7, 20])
def test_equal_inputs_are_told_apart_and_the_choice_is_repeated(count: int) -> None:
    features = np.zeros((20, 2), dtype=np.float32)
    found = choose_spread(features, count, seed=3)
    assert len(np.unique(found)) == count and np.array_equal(found, choose_spread(features, count, seed=3))


def test_a_pool_that_is_too_small_is_named() -> None:
    with pytest.raises(InputError, match="21 different inputs"):
        choose_spread(np.zeros((20, 2), dtype=np.float32), 21, seed=0)

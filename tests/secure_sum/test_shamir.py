"""Shares: any t recover, fewer say nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import shamir
from pate_fed.secure_sum.keys import random_below
from pate_fed.secure_sum.shamir import LIMBS, PRIME, combine, fresh_secrets, from_bytes, split, to_bytes

THRESHOLD = 2000  # of a table that a test has memory and time for; the bound is that of 65,520


@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(1, 3), shares=st.integers(1, 40))
def test_any_t_shares_recover(data: Any, count: int, shares: int) -> None:
    threshold = data.draw(st.integers(1, shares))
    chosen = data.draw(st.permutations(range(shares)))[:threshold]
    secrets = fresh_secrets(count)
    dealt = split(secrets, shares=shares, threshold=threshold)
    assert dealt.shape == (shares, count, LIMBS)
    points = np.array(chosen, dtype=np.int64)
    np.testing.assert_array_equal(combine(points + 1, dealt[points]), secrets)


def test_a_thousand_shares_recover() -> None:
    secrets = fresh_secrets(2)
    dealt = split(secrets, shares=1000, threshold=667)
    points = np.random.default_rng(0).permutation(1000)[:667]
    np.testing.assert_array_equal(combine(points + 1, dealt[points]), secrets)


def test_the_most_shares_of_the_largest_limbs_are_exact() -> None:
    """Against whole numbers of Python's: what is added up in float64 stays below 2^48."""
    secret = np.full((1, LIMBS), PRIME - 1, dtype=np.int64)
    drawn = np.full(((THRESHOLD - 1) * LIMBS), PRIME - 1, dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shamir, "random_below", lambda below, count: drawn)
        dealt = split(secret, shares=THRESHOLD, threshold=THRESHOLD)
    for point in (1, 2, THRESHOLD - 1, THRESHOLD):
        power, value = 1, 0
        for _ in range(THRESHOLD):
            power, value = power * point % PRIME, (value + power * (PRIME - 1)) % PRIME
        assert (dealt[point - 1] == value).all()


def test_fewer_shares_fit_every_secret_equally() -> None:
    """The last share may be anything: with t - 1 shares fixed, each candidate secret has one that fits it."""
    dealt = split(fresh_secrets(1), shares=3, threshold=3)
    points = np.array([1, 2, 3], dtype=np.int64)
    seen = set()
    for last in range(0, PRIME, 997):
        seen.add(int(combine(points, np.concatenate([dealt[:2], np.full((1, 1, LIMBS), last)]))[0, 0]))
    assert len(seen) == len(range(0, PRIME, 997))


def test_shares_of_one_secret_are_uniform() -> None:
    secret = np.zeros((1, LIMBS), dtype=np.int64)
    limbs = np.concatenate([split(secret, shares=2, threshold=3).reshape(-1) for _ in range(2000)])
    counts = np.bincount(limbs * 64 // PRIME, minlength=64)
    assert chisquare(counts).pvalue > 1e-9
    assert chisquare(np.bincount(limbs // 2 * 64 // PRIME, minlength=64)).pvalue < 1e-9


def test_secrets_are_fresh_and_in_the_field() -> None:
    secrets = fresh_secrets(500)
    assert secrets.min() >= 0 and secrets.max() < PRIME
    assert len(np.unique(secrets, axis=0)) == 500
    draws = random_below(40_000, 100_000)
    assert draws.shape == (100_000,) and chisquare(np.bincount(draws // 400, minlength=100)).pvalue > 1e-9


def test_bytes_survive_and_foreign_ones_are_refused() -> None:
    secrets = fresh_secrets(3)
    np.testing.assert_array_equal(from_bytes(to_bytes(secrets)), secrets)
    with pytest.raises(IntegrityError, match="34 bytes"):
        from_bytes(bytes(35))
    with pytest.raises(IntegrityError, match="field"):
        from_bytes(b"\xff" * 34)

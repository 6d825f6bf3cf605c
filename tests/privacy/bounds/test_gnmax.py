"""GNMax: tails of integer noise, Theorem 6 and its conditions, and what changes nothing."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.errors import InputError
from pate_fed.privacy import Protection, SeededNoise
from pate_fed.privacy.bounds.gnmax import (
    effective_sigma,
    gnmax_log_q,
    gnmax_rdp,
    gnmax_rdp_from_log_q,
    gnmax_rdp_total,
    log1mexp,
)
from pate_fed.privacy.checks import DEFAULT_ORDERS

ORDERS = [1.5, 2.0, 5.0, 14.0, 40.0, 200.0]


VOTES = np.array([[250, 0, 0], [0, 200, 50], [84, 83, 83], [10, 10, 230], [125, 125, 0]])


def test_ln_q_is_at_least_how_often_the_plurality_is_missed() -> None:
    noise, votes = SeededNoise(5), np.tile([[30, 25, 20]], (20_000, 1))
    noisy = votes + noise.discrete_gaussian(votes.shape, sigma=8.0)
    missed = np.mean(noisy[:, 1:].max(axis=1) >= noisy[:, 0])
    q = np.exp(gnmax_log_q(votes[:1], 8.0, discrete=True))[0]
    assert missed - 4 * math.sqrt(missed / 20_000) <= q <= 1.5 * missed


@pytest.mark.parametrize("discrete", [False, True])
def test_the_order_of_classes_changes_nothing(discrete: bool) -> None:
    expected = gnmax_rdp([[120, 90, 40, 0]], 20.0, ORDERS, discrete=discrete)
    for votes in permutations([120, 90, 40, 0]):
        np.testing.assert_allclose(
            gnmax_rdp([votes], 20.0, ORDERS, discrete=discrete), expected, rtol=1e-12, atol=0
        )


@given(
    log_q=st.floats(-800, -1e-6),
    sigma=st.floats(0.5, 200),
    order=st.floats(1.01, 300),
    step=st.floats(1e-3, 5),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_theorem_6_rises_with_q_and_never_passes_the_worst_case(
    log_q: float, sigma: float, order: float, step: float
) -> None:
    low, high = gnmax_rdp_from_log_q([log_q - step, log_q], sigma, [order])[:, 0]
    assert 0 <= low <= high * (1 + 1e-9) + 1e-300 or high == order / sigma**2
    assert high <= order / sigma**2


def test_a_batch_is_its_queries_one_by_one() -> None:
    batch = gnmax_rdp(VOTES, 40.0, ORDERS)
    for row, votes in zip(batch, VOTES, strict=True):
        np.testing.assert_array_equal(row, gnmax_rdp([votes], 40.0, ORDERS)[0])
    np.testing.assert_allclose(gnmax_rdp_total(VOTES, 40.0, ORDERS), batch.sum(axis=0))


def test_blocks_do_not_show() -> None:
    log_q = -np.linspace(0.1, 50, 2000)
    whole = gnmax_rdp_from_log_q(log_q, 40.0, DEFAULT_ORDERS)
    np.testing.assert_array_equal(whole[1234], gnmax_rdp_from_log_q(log_q[1234], 40.0, DEFAULT_ORDERS))


def test_certainty_and_despair() -> None:
    np.testing.assert_array_equal(gnmax_rdp_from_log_q(-math.inf, 40.0, ORDERS), 0.0)
    np.testing.assert_array_equal(gnmax_rdp_from_log_q(0.0, 40.0, ORDERS), np.array(ORDERS) / 1600)
    # No votes at all: everything ties.
    np.testing.assert_array_equal(gnmax_rdp([[0, 0]], 40.0, ORDERS)[0], np.array(ORDERS) / 1600)
    assert gnmax_rdp(np.zeros((0, 3)), 40.0, ORDERS).shape == (0, 6)
    # One teacher.
    assert np.isfinite(gnmax_rdp([[1, 0]], 1.0, ORDERS)).all()


@given(
    votes=st.lists(st.integers(0, 3000), min_size=2, max_size=12),
    sigma=st.sampled_from([1e-3, 0.3, 1.0, 7.5, 40.0, 1e4]),
    discrete=st.booleans(),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_never_a_nan(votes: list[int], sigma: float, discrete: bool) -> None:
    curve = gnmax_rdp([votes], sigma, ORDERS, discrete=discrete)[0]
    assert (curve >= 0).all() and (curve <= np.array(ORDERS) / sigma**2).all()


def test_a_unit_of_more_votes_costs_more() -> None:
    assert effective_sigma(40.0, Protection()) == 40.0
    assert effective_sigma(40.0, Protection(votes_moved=4)) == 10.0
    gone = Protection(unit="hospital", adjacency="add-or-remove-one", votes_moved=4)
    assert effective_sigma(40.0, gone) == pytest.approx(10 * math.sqrt(2))
    one = gnmax_rdp(VOTES, 40.0, ORDERS)
    four = gnmax_rdp(VOTES, 40.0, ORDERS, protection=Protection(votes_moved=4))
    assert (four >= one).all() and (four <= np.array(ORDERS) / 100).all()


def test_log1mexp_is_exact_at_both_ends() -> None:
    x = np.array([-1e-300, -1e-10, -0.5, -0.7, -1.0, -40.0, -800.0])
    expected = [math.log(1e-300), -23.02585092999, -0.93275213, -0.68634100, -0.45867515, -4.248354e-18, 0.0]
    np.testing.assert_allclose(log1mexp(x), expected, rtol=1e-6, atol=1e-300)


@pytest.mark.parametrize("log_q", [0.1, math.nan, [[-1.0]]])
def test_bad_log_q_is_refused(log_q: object) -> None:
    with pytest.raises(InputError, match="ln q"):
        gnmax_rdp_from_log_q(log_q, 40.0, ORDERS)  # type: ignore[arg-type]

"""LNMax and the moments accountant: its three bounds, their conditions, and known faults of other code."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.errors import InputError
from pate_fed.privacy import SeededNoise
from pate_fed.privacy.bounds.lnmax import (
    DEFAULT_MOMENTS,
    lnmax_data_independent,
    lnmax_log_moments,
    lnmax_log_q,
    lnmax_rdp_from_log_q,
    moments_epsilon,
)

VOTES = [[200, 30, 20], [0, 249, 1], [90, 80, 80]]


def test_theorem_3_is_not_used_where_it_does_not_hold() -> None:
    # q = 0.49 and 2γ = 2: published code returns 3.287, but the theorem needs q < 1/(e² + 1).
    assert 2 * lnmax_rdp_from_log_q(math.log(0.49), 2.0, [3.0])[0] == pytest.approx(4.0)


def test_whole_orders_are_no_trap() -> None:
    np.testing.assert_allclose(lnmax_data_independent(0.1, [2, 3]), [0.01, 0.015])


def test_basic_composition_as_the_paper_quotes_it() -> None:
    # P17, section 3.2: γ = 0.05, 100 queries, δ = 1e-5 give ε = 5.80.
    gamma, queries, delta = 0.05, 100, 1e-5
    strong = 4 * queries * gamma**2 + 2 * gamma * math.sqrt(2 * queries * math.log(1 / delta))
    assert strong == pytest.approx(5.80, abs=0.005)
    moments = DEFAULT_MOMENTS * queries * lnmax_data_independent(2 * gamma, DEFAULT_MOMENTS + 1)
    assert moments_epsilon(moments, delta).epsilon < strong


@given(
    log_q=st.floats(-700, -1e-6),
    pure=st.floats(0.01, 5),
    order=st.floats(1.1, 65),
    step=st.floats(1e-3, 5),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_bound_rises_with_q_up_to_the_data_independent_one(
    log_q: float, pure: float, order: float, step: float
) -> None:
    low, high = lnmax_rdp_from_log_q([log_q - step, log_q], pure, [order])[:, 0]
    most = lnmax_data_independent(pure, [order])[0]
    assert 0 <= low <= high * (1 + 1e-9) + 1e-300
    assert high <= most


@given(votes=st.lists(st.integers(0, 60), min_size=2, max_size=5), scale=st.floats(0.5, 30))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_winner_may_be_any_class(votes: list[int], scale: float) -> None:
    for discrete in (False, True):
        forward = lnmax_log_moments([votes], scale, discrete=discrete)
        np.testing.assert_allclose(forward, lnmax_log_moments([votes[::-1]], scale, discrete=discrete))
        assert (forward >= 0).all() and np.isfinite(forward).all()


def test_integer_noise_is_what_is_sampled() -> None:
    noise, votes = SeededNoise(3), np.tile([[30, 25, 20]], (20_000, 1))
    noisy = votes + noise.discrete_laplace(votes.shape, scale=4.0)
    missed = np.mean(noisy[:, 1:].max(axis=1) >= noisy[:, 0])
    q = np.exp(lnmax_log_q(votes[:1], 4.0, discrete=True))[0]
    assert missed - 4 * math.sqrt(missed / 20_000) <= q <= 1.6 * missed


def test_ties_lose_with_integer_noise() -> None:
    assert lnmax_log_q([[8, 5]], 1.0, discrete=True)[0] > lnmax_log_q([[8, 5]], 1.0)[0]


def test_more_moments_never_give_more() -> None:
    few = np.arange(1.0, 9.0)
    total = lnmax_log_moments(VOTES * 5, 10.0).sum(axis=0)
    short = lnmax_log_moments(VOTES * 5, 10.0, few).sum(axis=0)
    best, capped = moments_epsilon(total, 1e-5), moments_epsilon(short, 1e-5, few)
    assert best.epsilon <= capped.epsilon
    assert capped.at_edge and capped.order == 8


@pytest.mark.parametrize("moments", [[0.0], [-1.0], [], [math.nan], [math.inf], "many"])
def test_bad_moments_are_refused(moments: object) -> None:
    with pytest.raises(InputError, match="moments"):
        lnmax_log_moments(VOTES, 10.0, moments)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_bad_scales_are_refused(scale: float) -> None:
    with pytest.raises(InputError, match="scale"):
        lnmax_log_q(VOTES, scale)


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="ln q"):
        lnmax_rdp_from_log_q(0.5, 0.1, [2.0])
    with pytest.raises(InputError, match="pure_epsilon"):
        lnmax_data_independent(0.0, [2.0])
    with pytest.raises(InputError, match="one for each"):
        moments_epsilon([1.0, 2.0], 1e-5, [1.0])
    with pytest.raises(InputError, match="delta"):
        moments_epsilon([1.0], 0.0, [1.0])

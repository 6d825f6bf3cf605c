"""The threshold check: both tails, the exact bit against brute force, and its worst case."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from published import threshold_rdp

from pate_fed.errors import InputError
from pate_fed.privacy import Protection
from pate_fed.privacy.bounds.gnmax import bit_divergence, exact_bit_rdp, exact_bit_worst_case, log_answered

ORDERS = [1.5, 2.0, 5.0, 14.0, 32.0]


def divergence(p: float, q: float, order: float) -> float:
    return math.log(p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)) / (order - 1)


@given(p=st.floats(0.01, 0.99), q=st.floats(0.01, 0.99), order=st.floats(1.1, 40))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_bit_s_divergence_by_its_definition(p: float, q: float, order: float) -> None:
    bits = [np.array(math.log(x)) for x in (p, 1 - p, q, 1 - q)]
    assert bit_divergence(*bits, np.array([order]))[0] == pytest.approx(
        divergence(p, q, order), rel=1e-6, abs=1e-12
    )


def test_nearly_equal_bits_lose_no_digits() -> None:
    mpmath = pytest.importorskip("mpmath")
    for sigma in (1e3, 1e6):
        got = exact_bit_rdp(210.0, 200, sigma, [14.0])[0]
        with mpmath.workdps(60):
            p, q, a = mpmath.ncdf(10 / mpmath.mpf(sigma)), mpmath.ncdf(9 / mpmath.mpf(sigma)), mpmath.mpf(14)
            r = mpmath.ncdf(11 / mpmath.mpf(sigma))
            exact = max(
                mpmath.log(x**a * y ** (1 - a) + (1 - x) ** a * (1 - y) ** (1 - a)) / (a - 1)
                for x, y in ((p, q), (q, p), (p, r), (r, p))
            )
            assert abs(got / exact - 1) < 1e-7


def test_far_above_the_threshold_the_check_is_not_free() -> None:
    # The published code returns 0 here, as its only tail has underflown.
    assert threshold_rdp(250, 200, 1.0, [32.0])[0] == pytest.approx(10.118, abs=5e-4)
    yes, no = log_answered(250, 200, 1.0)
    assert yes == -0.0 and no < -1000


@pytest.mark.parametrize("discrete", [False, True])
def test_both_tails_sum_to_one(discrete: bool) -> None:
    yes, no = log_answered(np.arange(0, 251), 120, 30.0, discrete=discrete)
    np.testing.assert_allclose(np.exp(yes) + np.exp(no), 1.0, rtol=1e-12)
    assert (np.diff(yes) > 0).all()


def test_a_fractional_threshold_is_the_next_whole_one_for_integer_noise() -> None:
    np.testing.assert_array_equal(
        exact_bit_rdp([10, 20], 14.2, 5.0, ORDERS, discrete=True),
        exact_bit_rdp([10, 20], 15, 5.0, ORDERS, discrete=True),
    )


@given(
    top=st.integers(0, 250),
    threshold=st.integers(-50, 350),
    sigma=st.floats(10, 300),
    order=st.floats(1.1, 60),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_exact_bit_is_below_the_data_independent_check(
    top: int, threshold: int, sigma: float, order: float
) -> None:
    for discrete in (False, True):
        exact = exact_bit_rdp(top, threshold, sigma, [order], discrete=discrete)[0]
        assert 0 <= exact <= order / (2 * sigma**2) * (1 + 1e-9)


def test_the_worst_case_is_the_largest_of_all_counts() -> None:
    worst = exact_bit_worst_case(250, 200, 20.0, ORDERS)
    every = exact_bit_rdp(np.arange(251), 200, 20.0, ORDERS, discrete=True)
    np.testing.assert_array_equal(worst, every.max(axis=0))
    assert (exact_bit_worst_case(250, 200, 20.0, ORDERS, lowest=-250) >= worst).all()


def test_the_worst_case_counts_an_input_that_all_teachers_agree_on() -> None:
    """Far above every total the bit tells most of the largest, which is the number of teachers."""
    worst = exact_bit_worst_case(50, 100, 10.0, ORDERS)
    np.testing.assert_array_equal(worst, exact_bit_rdp(50, 100, 10.0, ORDERS, discrete=True))
    assert (worst > exact_bit_rdp(49, 100, 10.0, ORDERS, discrete=True)).all()


def test_repeated_counts_are_each_in_their_place() -> None:
    tops = np.array([200, 10, 200, 55])
    curves = exact_bit_rdp(tops, 100, 30.0, ORDERS)
    for curve, top in zip(curves, tops, strict=True):
        np.testing.assert_array_equal(curve, exact_bit_rdp(top, 100, 30.0, ORDERS))


def test_more_votes_of_one_unit_cost_more() -> None:
    one = exact_bit_rdp(150, 200, 30.0, ORDERS)
    three = exact_bit_rdp(150, 200, 30.0, ORDERS, protection=Protection(votes_moved=3))
    assert (three > 5 * one).all()
    assert (three <= 9 * np.array(ORDERS) / (2 * 900)).all()


@given(top=st.integers(-(10**6), 10**6), sigma=st.sampled_from([1e-3, 0.5, 3.0, 1e3]), discrete=st.booleans())
@example(top=150, sigma=1e5, discrete=True)
@example(top=10**6, sigma=1e5, discrete=True)
@example(top=-(10**6), sigma=1e5, discrete=False)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_never_a_nan(top: int, sigma: float, discrete: bool) -> None:
    curve = exact_bit_rdp(top, 200, sigma, [*ORDERS, 500.0], discrete=discrete)
    assert (curve >= 0).all()
    assert (threshold_rdp(top, 200, sigma, ORDERS) >= 0).all()


@pytest.mark.parametrize(
    ("top", "threshold", "sigma", "discrete", "what"),
    [
        (math.nan, 10, 1.0, False, "largest totals"),
        ([[1]], 10, 1.0, False, "largest totals"),
        (1.5, 10, 1.0, True, "fraction"),
        (1, math.inf, 1.0, False, "threshold"),
        (1, None, 1.0, False, "threshold"),
        (1, 10, 0.0, False, "sigma1"),
    ],
)
def test_bad_input_is_refused(
    top: object, threshold: object, sigma: float, discrete: bool, what: str
) -> None:
    with pytest.raises(InputError, match=what):
        exact_bit_rdp(top, threshold, sigma, ORDERS, discrete=discrete)  # type: ignore[arg-type]


def test_a_federation_without_teachers_is_refused() -> None:
    for teachers in (0, -1, 2.5):
        with pytest.raises(InputError, match="num_teachers"):
            exact_bit_worst_case(teachers, 200, 20.0, ORDERS)  # type: ignore[arg-type]

"""From RDP to ε: against dp-accounting, rounded up, and refusing what is no curve."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.errors import InputError
from pate_fed.privacy.bounds.conversion import pure_epsilon, pure_rdp, round_up, to_epsilon
from pate_fed.privacy.checks import DEFAULT_ORDERS

RHO = st.floats(1e-6, 20.0)


DELTA = st.floats(1e-12, 0.2)


@given(rho=RHO, delta=DELTA)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_improved_is_what_dp_accounting_computes(rho: float, delta: float) -> None:
    rdp = pytest.importorskip("dp_accounting.rdp")
    theirs, order = rdp.compute_epsilon(DEFAULT_ORDERS, DEFAULT_ORDERS * rho, delta)
    ours = to_epsilon(DEFAULT_ORDERS, DEFAULT_ORDERS * rho, delta)
    # Theirs knows one more case, that a tiny divergence is a tiny total variation; it may only be smaller.
    if order == ours.order and theirs > 0:
        assert math.isclose(ours.epsilon, theirs, rel_tol=1e-6, abs_tol=1e-12)
    assert ours.epsilon >= theirs * (1 - 1e-9)


@given(rho=RHO, delta=DELTA)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_improved_is_never_above_classic(rho: float, delta: float) -> None:
    curve = DEFAULT_ORDERS * rho
    improved = to_epsilon(DEFAULT_ORDERS, curve, delta)
    classic = to_epsilon(DEFAULT_ORDERS, curve, delta, conversion="classic")
    assert 0 <= improved.epsilon <= classic.epsilon


@given(rho=RHO, delta=DELTA)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_epsilon_is_rounded_up(rho: float, delta: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    got = to_epsilon([8.5], [8.5 * rho], delta)
    with mpmath.workdps(40):
        a, r, d = mpmath.mpf(8.5), mpmath.mpf(8.5 * rho), mpmath.mpf(delta)
        exact = r + mpmath.log(1 - 1 / a) - mpmath.log(d * a) / (a - 1)
        assert got.epsilon >= max(exact, 0)
        assert got.epsilon <= max(exact, 0) + mpmath.mpf(1e-11) * max(exact, 1)


def test_the_edge_of_the_grid_is_reported() -> None:
    inside = to_epsilon(DEFAULT_ORDERS, DEFAULT_ORDERS * 0.1, 1e-5)
    assert not inside.at_edge
    outside = to_epsilon(DEFAULT_ORDERS, DEFAULT_ORDERS * 1e-6, 1e-5)
    assert outside.at_edge and outside.order == DEFAULT_ORDERS[-1]


def test_rounding_up_keeps_zero_and_infinity() -> None:
    assert round_up(0.0) == 0.0 and round_up(-1e-9) == 0.0 and round_up(math.inf) == math.inf
    assert round_up(1.0) > 1.0 and round_up(1.0) < 1.0 + 1e-11
    assert round_up(5e-324) > 5e-324


def test_no_spend_is_no_epsilon() -> None:
    assert to_epsilon(DEFAULT_ORDERS, 0 * DEFAULT_ORDERS, 0.5).epsilon == 0.0


def test_an_infinite_order_is_skipped() -> None:
    assert math.isfinite(to_epsilon([2.0, 3.0], [0.1, math.inf], 1e-5).epsilon)
    assert to_epsilon([2.0], [math.inf], 1e-5).epsilon == math.inf


@pytest.mark.parametrize(
    ("orders", "rdp", "delta", "what"),
    [
        ([2.0, 3.0], [1.0], 1e-5, "one for each"),
        ([1.0], [1.0], 1e-5, "order=1"),
        ([0.5], [1.0], 1e-5, "order=0.5"),
        ([math.nan], [1.0], 1e-5, "order=nan"),
        ([math.inf], [1.0], 1e-5, "order=inf"),
        ([], [], 1e-5, "at least one"),
        ([[2.0]], [[1.0]], 1e-5, "shape"),
        (["two"], [1.0], 1e-5, "not numbers"),
        ([2.0], [-1.0], 1e-5, "negative"),
        ([2.0], [math.nan], 1e-5, "negative or not a number"),
        ([2.0], [1.0], 0.0, "delta"),
        ([2.0], [1.0], 1.0, "delta"),
        ([2.0], [1.0], math.nan, "delta"),
        ([2.0], [1.0], -1e-5, "delta"),
    ],
)
def test_bad_input_is_refused(orders: list[float], rdp: list[float], delta: float, what: str) -> None:
    with pytest.raises(InputError, match=what):
        to_epsilon(orders, rdp, delta)


def test_an_unknown_conversion_is_refused() -> None:
    with pytest.raises(InputError, match="improved, classic"):
        to_epsilon([2.0], [1.0], 1e-5, conversion="best")


@pytest.mark.parametrize("epsilon", [1e-3, 0.05, 0.7, 3.0])
def test_randomised_response_is_exact_and_what_is_stated_is_above_it(epsilon: float) -> None:
    """RDP of one and ε of several against sums of 50 digits: never below, and near."""
    with mpmath.workdps(50):
        e = mpmath.mpf(epsilon)
        p, q = mpmath.e**e / (1 + mpmath.e**e), 1 / (1 + mpmath.e**e)
        for order in (1.02, 2.0, 17.5, 4000.0):
            exact = mpmath.log(p**order * q ** (1 - order) + q**order * p ** (1 - order)) / (order - 1)
            assert exact <= pure_rdp(epsilon, order) <= exact * (1 + 1e-6)
        for times, delta in ((1, 1e-5), (7, 1e-5), (40, 1e-9), (400, 1e-5)):
            stated = pure_epsilon(epsilon, times, delta)
            ways = [mpmath.binomial(times, j) for j in range(times + 1)]

            def spent(at: float, ways: list[Any] = ways, times: int = times) -> Any:
                terms = (
                    w * (p**j * q ** (times - j) - mpmath.e**at * q**j * p ** (times - j))
                    for j, w in enumerate(ways)
                )
                return mpmath.fsum(max(each, 0) for each in terms)

            assert spent(stated) <= delta
            assert stated == 0 or spent(stated * (1 - 1e-7) - 1e-9) > delta


def test_a_composition_too_long_for_a_table_is_the_plain_sum() -> None:
    assert pure_epsilon(1e-9, 2 * 10**6, 1e-5) == pytest.approx(2e-3, rel=1e-12)
    assert pure_epsilon(0.1, 10**6, 1e-5) < 6000

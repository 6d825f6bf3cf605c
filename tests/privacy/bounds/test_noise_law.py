"""Tails and moments of the integer noise, against plain sums in 40 digits."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from pate_fed.privacy.bounds.gnmax import gnmax_log_q
from pate_fed.privacy.bounds.noise_law import (
    GAUSSIAN,
    LAPLACE,
    NoiseLaw,
    betaincinv,
    chdtri,
    log_ndtr,
    log_tail_gaussian,
    log_tail_gaussian_difference,
    ndtr,
    ndtri,
    ndtri_exp,
)

LAWS = [NoiseLaw(GAUSSIAN, 1.5), NoiseLaw(GAUSSIAN, 4.0), NoiseLaw(LAPLACE, 2.0)]
MOST, ORDER = 9, 3.5

pytestmark = pytest.mark.parametrize("law", LAWS, ids=str)


def _masses(law: NoiseLaw) -> dict[int, mpmath.mpf]:
    """Pr[Z = x] where it is above 1e-60, from the definition."""
    with mpmath.workdps(40):
        scale, wide = mpmath.mpf(law.scale), int(150 * law.scale)
        exponent = (
            (lambda x: -((x / scale) ** 2) / 2) if law.kind == GAUSSIAN else (lambda x: -abs(x) / scale)
        )
        weights = {x: mpmath.exp(exponent(x)) for x in range(-wide, wide + 1)}
        total = mpmath.fsum(weights.values())
        return {x: weight / total for x, weight in weights.items()}


def test_tails_of_the_noise_and_of_a_difference(law: NoiseLaw) -> None:
    mass = _masses(law)
    upper = [float(mpmath.fsum(p for x, p in mass.items() if x >= j)) for j in range(-MOST, MOST + 1)]
    np.testing.assert_allclose(law.upper_tails(MOST), upper, rtol=1e-11)
    np.testing.assert_allclose(law.masses(law.depth())[law.depth()], float(mass[0]), rtol=1e-11)
    apart = law.difference_masses(MOST)
    for j in (-MOST, 0, 1, MOST):
        plain = mpmath.fsum(p * mass[x - j] for x, p in mass.items() if x - j in mass)
        assert apart[j + MOST] == pytest.approx(float(plain), rel=1e-10)
    tails = law.difference_tails(MOST)
    assert tails[0] == pytest.approx((1 + float(mpmath.fsum(p * p for p in mass.values()))) / 2, rel=1e-10)
    np.testing.assert_allclose(tails[:-1] - tails[1:], apart[MOST:-1], rtol=1e-8)


@pytest.mark.parametrize("shift", [1, 3])
def test_moments_of_a_total_that_moves_are_within_their_rdp(law: NoiseLaw, shift: int) -> None:
    mass = _masses(law)
    with mpmath.workdps(40):
        terms = {x: p**ORDER * mass[x + shift] ** (1 - ORDER) for x, p in mass.items() if x + shift in mass}
        logs = [
            float(mpmath.log(mpmath.fsum(t for x, t in terms.items() if x >= j))) for j in (-MOST, 0, MOST)
        ]
        whole = float(mpmath.log(mpmath.fsum(terms.values()))) / (ORDER - 1)
    found = law.tilted_tails(ORDER, shift, MOST)
    np.testing.assert_allclose(found[[0, MOST, 2 * MOST]], logs, rtol=1e-9, atol=1e-9)
    assert 0.3 * law.rdp(ORDER, shift) < whole <= law.rdp(ORDER, shift)


@pytest.mark.parametrize("shift", [1, 2])
def test_moments_of_the_sum_of_two_totals_that_move(law: NoiseLaw, shift: int) -> None:
    mass = _masses(law)
    with mpmath.workdps(40):
        terms = {x: p**ORDER * mass[x + shift] ** (1 - ORDER) for x, p in mass.items() if x + shift in mass}
        terms = {x: t for x, t in terms.items() if abs(x) <= 60}
        sums: dict[int, mpmath.mpf] = {}
        for x, t in terms.items():
            for y, u in terms.items():
                sums[x + y] = sums.get(x + y, mpmath.mpf(0)) + t * u
        logs = [
            float(mpmath.log(mpmath.fsum(t for j, t in sums.items() if j >= least))) for least in (0, 1, MOST)
        ]
    found = law.tilted_sum_tails(ORDER, shift, MOST)
    np.testing.assert_allclose(found[[0, 1, MOST]], logs, rtol=1e-9, atol=1e-9)


def test_beyond_the_farthest_nothing_is_told_by_a_float(law: NoiseLaw) -> None:
    mass = _masses(law)
    reach = law.reaches(ORDER, 1)[0].one
    beyond = mpmath.fsum(
        p**ORDER * mass[x + 1] ** (1 - ORDER) for x, p in mass.items() if reach < x < max(mass)
    )
    assert 0 < beyond < 1e-12
    assert not law.reaches(1e9, 1)


@pytest.mark.parametrize("x", [-30.0, -4.0, -0.5, 0.0, 2.5])
def test_the_normal_distribution(x: float) -> None:
    with mpmath.workdps(40):
        exact = mpmath.ncdf(x)
        assert ndtr(x) == pytest.approx(float(exact), rel=1e-12)
        assert log_ndtr(x) == pytest.approx(float(mpmath.log(exact)), rel=1e-12)
    assert ndtri(ndtr(x)) == pytest.approx(x, rel=1e-9, abs=1e-9)
    assert ndtri_exp(log_ndtr(x)) == pytest.approx(x, rel=1e-9, abs=1e-9)


def test_quantiles() -> None:
    with mpmath.workdps(40):
        left = mpmath.gammainc(3, a=chdtri(6.0, 0.05) / 2, regularized=True)  # of 6 degrees of freedom
        below = mpmath.betainc(4, 7, 0, betaincinv(4.0, 7.0, 0.3), regularized=True)
    assert (float(left), float(below)) == pytest.approx((0.05, 0.3), rel=1e-10)


def masses(sigma: float) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(-math.ceil(12 * sigma) - 10, math.ceil(12 * sigma) + 11)
    p = np.exp(-((x / sigma) ** 2) / 2)
    return x, p / p.sum()


@pytest.mark.parametrize("sigma", [0.1, 0.4, 1.0, 2.3, 40.0])
def test_integer_tails_by_brute_force(sigma: float) -> None:
    x, p = masses(sigma)
    difference = np.convolve(p, p[::-1])
    k = np.arange(2 * x[0], 2 * x[-1] + 1)
    for gap in (-7, -1, 0, 1, 2, 3, round(2 * sigma), round(5 * sigma)):
        single = np.exp(log_tail_gaussian(np.array([gap]), sigma))[0]
        double = np.exp(log_tail_gaussian_difference(np.array([gap]), sigma))[0]
        assert single == pytest.approx(p[x >= gap].sum(), rel=1e-10, abs=1e-300)
        assert double == pytest.approx(difference[k >= gap].sum(), rel=1e-10, abs=1e-300)


def test_the_note_s_examples_of_ties_as_losses() -> None:
    for sigma, gap, discrete, continuous in ((1.0, 3, 0.0355, 0.0169), (40.0, 10, 0.4333, 0.4298)):
        votes = [[gap + 5, 5]]
        assert np.exp(gnmax_log_q(votes, sigma, discrete=True))[0] == pytest.approx(discrete, abs=5e-5)
        assert np.exp(gnmax_log_q(votes, sigma))[0] == pytest.approx(continuous, abs=1e-4)


def test_far_tails_do_not_underflow() -> None:
    tail = log_tail_gaussian_difference(np.array([5000]), 1.0)[0]
    assert tail == pytest.approx(stats.norm.logsf(5000 / math.sqrt(2)), rel=1e-3)
    assert np.isfinite(log_tail_gaussian(np.array([10**6]), 0.5)).all()
    assert log_tail_gaussian(np.array([-5000]), 1.0)[0] == 0.0


@pytest.mark.parametrize("gap", [0, 1, 100])
def test_wide_noise_needs_no_long_table(gap: int) -> None:
    assert np.exp(log_tail_gaussian(np.array([gap]), 1e8))[0] == pytest.approx(0.5, abs=1e-5)

"""Special functions against many digits, there and back."""

from __future__ import annotations

import mpmath
import pytest

from pate_fed.privacy.bounds.special import betaincinv, chdtri, log_ndtr, ndtr, ndtri, ndtri_exp


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

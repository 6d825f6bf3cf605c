"""Special functions against many digits, there and back."""

from __future__ import annotations

import mpmath
import pytest

from pate_fed.privacy.bounds.noise_law import betaincinv, log_ndtr, ndtr, ndtri_exp


@pytest.mark.parametrize("x", [-30.0, -4.0, -0.5, 0.0, 2.5])
def test_the_normal_distribution(x: float) -> None:
    with mpmath.workdps(40):
        exact = mpmath.ncdf(x)
        assert ndtr(x) == pytest.approx(float(exact), rel=1e-12)
        assert log_ndtr(x) == pytest.approx(float(mpmath.log(exact)), rel=1e-12)
    assert ndtri_exp(log_ndtr(x)) == pytest.approx(x, rel=1e-9, abs=1e-9)


def test_quantiles_of_the_beta_distribution() -> None:
    with mpmath.workdps(40):
        below = mpmath.betainc(4, 7, 0, betaincinv(4.0, 7.0, 0.3), regularized=True)
    assert float(below) == pytest.approx(0.3, rel=1e-10)

"""Tails and moments of the integer noise, against plain sums in 40 digits."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from pate_fed.privacy.bounds.noise_law import GAUSSIAN, LAPLACE, NoiseLaw

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

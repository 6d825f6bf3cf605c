"""δ(ε) of one released outcome: brute force, a second slow writing, limits, and how near a search comes."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from histograms import moved_pairs
from numpy.typing import NDArray
from winner_laws import winner_laws
from winner_search import Noise, hockey_stick, largest

from pate_fed.errors import InputError
from pate_fed.privacy import RECORD, ConfidentGNMax, GNMax, LNMax, Protection, epsilon_of
from pate_fed.privacy.bounds.conversion import gaussian_delta
from pate_fed.privacy.bounds.hockey_stick import argmax_delta, argmax_epsilon, bit_delta, bit_epsilon
from pate_fed.privacy.bounds.noise_law import GAUSSIAN, LAPLACE

Floats = NDArray[np.float64]


def _profile(p: Floats, q: Floats, epsilon: float) -> Floats:
    found: Floats = np.maximum(p - math.exp(epsilon) * q, 0).sum(axis=1)
    return found


@pytest.mark.parametrize(("sigma", "near"), [(0.8, 0.9), (2.0, 0.97), (5.0, 0.97)])
def test_100_000_pairs_of_histograms_never_pass_it_and_come_near(sigma: float, near: float) -> None:
    epsilons = (0.0, 0.1, 0.4, 1.0)
    highest = dict.fromkeys(epsilons, 0.0)
    for n, moved in moved_pairs(1, sigma):
        p, q = winner_laws(n, sigma), winner_laws(moved, sigma)
        for epsilon in epsilons:
            found = float(max(_profile(p, q, epsilon).max(), _profile(q, p, epsilon).max()))
            highest[epsilon] = max(highest[epsilon], found / argmax_delta(sigma, epsilon))
    assert max(highest.values()) <= 1
    assert highest[0.0] > near and highest[0.4] > 0.5  # looseness would be seen


@pytest.mark.parametrize(
    ("kind", "scale", "shift"),
    [
        (GAUSSIAN, 0.5, 1),
        (GAUSSIAN, 0.9, 3),
        (GAUSSIAN, 1.5, 1),
        (GAUSSIAN, 3.7, 2),
        (GAUSSIAN, 5.8, 1),
        (GAUSSIAN, 12.0, 1),
        (LAPLACE, 0.7, 1),
        (LAPLACE, 2.0, 3),
        (LAPLACE, 4.0, 1),
    ],
)
def test_it_is_within_one_percent_of_what_a_search_finds_in_real_studies(
    kind: str, scale: float, shift: int
) -> None:
    """From δ at ε = 0 down to some 1e-6; near the pure bound for Laplace noise."""
    mu, pure = math.sqrt(2) * shift / scale, 2 * shift / scale
    at = (0.0, mu * (0.5 + mu / 2), mu * (2 + mu / 2), mu * (4.3 + mu / 2))
    noise = Noise(kind, scale)
    for epsilon in at if kind == GAUSSIAN else (0.0, 0.3 * pure, 0.8 * pure):
        found = largest(noise, hockey_stick(epsilon), scale=scale, shift=shift, starts=24)
        stated = argmax_delta(scale, epsilon, shift=shift, kind=kind)
        assert 0.99 * stated < found <= stated, epsilon


@pytest.mark.parametrize(("sigma", "epsilon", "shift"), [(1.5, 0.3, 1), (2.5, 0.8, 2)])
def test_a_second_writing_in_50_digits_agrees(sigma: float, epsilon: float, shift: int) -> None:
    """Every whole u and v at κ = 0, where chances are sums over both noises; the bit and the totals too."""
    with mpmath.workdps(50):
        reach = 20
        whole = range(-reach, reach + 1)
        weight = {z: mpmath.exp(-(mpmath.mpf(z) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for z in whole}
        norm, factor = mpmath.fsum(weight.values()), mpmath.exp(mpmath.mpf(epsilon))
        p = {z: w / norm for z, w in weight.items()}

        def tail(j: int) -> mpmath.mpf:
            return mpmath.fsum(p[z] for z in whole if z >= j)

        bit = max(tail(j) - factor * tail(j + shift) for j in range(-12, 13))
        below = {j: 1 - tail(j) for j in range(-reach - 1, reach + 2)}

        def under(j: int) -> mpmath.mpf:  # Pr[Z < j]
            return below[min(max(j, -reach - 1), reach + 1)]

        def law(u: int, v: int) -> list[mpmath.mpf]:  # the third class at κ = 0 loses every tie
            first = mpmath.fsum(
                p[z] * (under(z + u - v) + p.get(z + u - v, 0) / 2) for z in whole if z + u >= 0
            )
            neither = under(-u) * under(-v)
            return [first, 1 - first - neither, neither]

        highest = max(
            mpmath.fsum(
                max(a - factor * b, 0) for a, b in zip(law(u, v), law(u - shift, v + shift), strict=True)
            )
            for u, v in itertools.product(range(-3, 9), repeat=2)
        )
    assert float(bit) <= bit_delta(sigma, epsilon, shift=shift) <= float(bit) * (1 + 1e-9)
    stated = argmax_delta(sigma, epsilon, shift=shift)
    assert 0.98 * stated < float(highest) <= stated


@pytest.mark.parametrize(
    ("kind", "scale"), [(GAUSSIAN, 0.6), (GAUSSIAN, 7.0), (LAPLACE, 0.5), (LAPLACE, 6.0)]
)
@pytest.mark.parametrize("shift", [1, 4])
def test_the_bit_is_the_worst_over_all_thresholds_and_shifts(kind: str, scale: float, shift: int) -> None:
    x = np.arange(-400, 401)
    mass = np.exp(-((x / scale) ** 2) / 2) if kind == GAUSSIAN else np.exp(-np.abs(x) / scale)
    above = np.cumsum((mass / mass.sum())[::-1])[::-1][100:700]
    for epsilon in (0.0, 0.1, 0.7):
        worst = max(
            float(np.maximum(a - math.exp(epsilon) * b, 0).max())
            for less in range(1, shift + 1)
            for first, second in ((above[:-less], above[less:]), (above[less:], above[:-less]))
            for a, b in ((first, second), (1 - first, 1 - second))
        )
        stated = bit_delta(scale, epsilon, shift=shift, kind=kind)
        assert worst <= stated * (1 + 1e-12) + 1e-15  # the test's own sums
        assert stated == pytest.approx(worst, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.2])
def test_for_much_noise_both_are_the_gaussian_s(epsilon: float) -> None:
    """The pointwise supremum: one query reveals what its noisy totals do."""
    assert argmax_delta(40.0, epsilon) == pytest.approx(gaussian_delta(math.sqrt(2) / 40, epsilon), rel=0.01)
    assert argmax_delta(200.0, epsilon, shift=5) == pytest.approx(argmax_delta(40.0, epsilon), rel=0.01)
    assert bit_delta(40.0, epsilon) == pytest.approx(gaussian_delta(1 / 40, epsilon), rel=0.01)
    assert bit_delta(3e4, 0.0) == pytest.approx(gaussian_delta(1 / 3e4, 0.0), rel=1e-6)
    for found, moved in ((argmax_delta, math.sqrt(2)), (bit_delta, 1.0)):  # beyond the tables
        exact = gaussian_delta(moved / 3e4, epsilon * 1e-3)
        assert exact * (1 - 1e-6) <= found(3e4, epsilon * 1e-3) <= exact * (1 + 1e-6) + 2e-15


def test_they_fall_with_epsilon_and_noise_and_stay_below_the_totals() -> None:
    epsilons = [0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 50.0, 1e6]
    for kind, scale in ((GAUSSIAN, 1.3), (LAPLACE, 1.3), (GAUSSIAN, 20.0)):
        for profile in (argmax_delta, bit_delta):
            found = [profile(scale, epsilon, kind=kind) for epsilon in epsilons]
            assert found == sorted(found, reverse=True) and 0 < found[0] <= 1
            assert found[-1] < 1e-14
        more = [argmax_delta(scale, e, kind=kind) >= bit_delta(scale, e, kind=kind) for e in epsilons[:5]]
        assert all(more)
    assert argmax_delta(2.0, 0.3) > argmax_delta(2.2, 0.3)
    assert argmax_delta(1e-3, 0.3) == pytest.approx(1.0)
    assert argmax_delta(2.0, 0.3, shift=10**9) == bit_delta(2.0, 0.3, shift=10**9) == 1.0
    assert argmax_delta(1.0, 2.1 / 1.0, kind=LAPLACE) < 1e-14  # pure DP of 2/scale


@pytest.mark.parametrize("delta", [1e-5, 0.03])
def test_epsilon_is_where_delta_is_reached(delta: float) -> None:
    for profile, inverse in ((argmax_delta, argmax_epsilon), (bit_delta, bit_epsilon)):
        epsilon = inverse(2.0, delta)
        assert profile(2.0, epsilon) <= delta < profile(2.0, 0.9999 * epsilon)
    assert argmax_epsilon(2.0, 0.9) == 0.0
    assert argmax_epsilon(1e-3, 1e-5) == math.inf


@pytest.mark.parametrize("values", [(0.0, 1.0), (math.nan, 1.0), (1.0, -0.1), (1.0, math.nan)])
def test_bad_numbers_are_refused(values: tuple[float, float]) -> None:
    for profile in (argmax_delta, bit_delta):
        with pytest.raises(InputError):
            profile(*values)
    with pytest.raises(InputError, match="shift"):
        bit_delta(1.0, 1.0, shift=0)
    with pytest.raises(InputError, match="delta"):
        argmax_epsilon(1.0, 0.0)


def test_a_study_of_one_label_states_it() -> None:
    size = {"num_teachers": 10, "num_classes": 3}
    one = GNMax(**size, sigma=2.0).cost(1, 1, RECORD)
    assert epsilon_of(one, 1e-5) == argmax_epsilon(2.0, 1e-5) < epsilon_of(one.as_totals, 1e-5)
    assert epsilon_of(LNMax(**size, scale=2.0).cost(1, 1, RECORD), 0.1) == argmax_epsilon(
        2.0, 0.1, kind=LAPLACE
    )
    hospital = Protection(unit="hospital", votes_moved=3)
    checked = ConfidentGNMax(**size, threshold=5, sigma1=4.0, sigma2=2.0)
    assert epsilon_of(checked.cost(1, 0, hospital), 1e-3) == bit_epsilon(4.0, 1e-3, shift=3)
    # The check takes its share of δ at ε = 0, or there is none left.
    wide = ConfidentGNMax(**size, threshold=5, sigma1=1e3, sigma2=2.0).cost(1, 1, RECORD)
    left = 0.05 - bit_delta(1e3, 0.0)
    assert epsilon_of(wide, 0.05) == pytest.approx(argmax_epsilon(2.0, left), rel=1e-5)
    assert epsilon_of(wide, 1e-5) > argmax_epsilon(2.0, 1e-5)
    # Three votes may move from and to several classes, and two labels compose.
    for cost in (GNMax(**size, sigma=2.0).cost(1, 1, hospital), one * 2):
        assert epsilon_of(cost, 1e-5) > argmax_epsilon(2.0, 1e-5, shift=1)

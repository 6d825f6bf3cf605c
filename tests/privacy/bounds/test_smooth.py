"""Smooth sensitivity: votes that are moved one by one, curves that bound every neighbour, and the release."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published import gnmax_local_sensitivity, gnss_rdp_printed, nrs_parameters, threshold_rdp
from scipy.integrate import quad
from threshold_smooth import threshold_local_sensitivity

from pate_fed.errors import InputError
from pate_fed.privacy import SanitiseSettings
from pate_fed.privacy.bounds.gnmax import gnmax_log_q, gnmax_rdp
from pate_fed.privacy.bounds.smooth import (
    VoteMoves,
    gnmax_sensitivity,
    gnss_rdp,
    smooth_sensitivity,
    summed_curve,
)

SIGMA, CLASSES, ORDER, TEACHERS = 40.0, 10, 14.0, 250


PIECES = gnmax_sensitivity(SIGMA, CLASSES, ORDER)


HISTOGRAM = st.tuples(
    st.integers(0, 2**32 - 1), st.floats(0.02, 2.0), st.sampled_from([TEACHERS, TEACHERS - 7])
)


def histogram(how: tuple[int, float, int], classes: int = CLASSES) -> np.ndarray:
    rng = np.random.default_rng(how[0])
    return rng.multinomial(how[2], rng.dirichlet([how[1]] * classes))


def bound(votes: np.ndarray, margin: int = 0) -> float:
    """The sum over queries of b(q)."""
    moves = VoteMoves(np.atleast_2d(votes), sigma=SIGMA, margin=margin)
    return float(PIECES.bound(moves.log_q(np.zeros(moves.queries, dtype=np.int64), moves.every)).sum())


def neighbours(votes: np.ndarray) -> list[np.ndarray]:
    out = []
    for source in np.flatnonzero(votes):
        for target in range(len(votes)):
            if source != target:
                moved = votes.copy()
                moved[source] -= 1
                moved[target] += 1
                out.append(moved)
    return out


def random_neighbour(votes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One teacher votes differently on every query."""
    moved = votes.copy()
    for row in moved:
        row[rng.choice(np.flatnonzero(row))] -= 1
        row[rng.integers(len(row))] += 1
    return moved


def every_histogram(votes: int, classes: int) -> list[tuple[int, ...]]:
    if classes == 1:
        return [(votes,)]
    return [(v, *rest) for v in range(votes + 1) for rest in every_histogram(votes - v, classes - 1)]


@pytest.mark.parametrize(("teachers", "classes"), [(4, 4), (4, 5), (3, 6), (9, 3)])
@pytest.mark.parametrize("margin", [0, 1])
def test_few_teachers_have_a_smooth_sensitivity_that_is_smooth(
    teachers: int, classes: int, margin: int
) -> None:
    # With as many classes as teachers every one may name another: from there it is the farthest to where the
    # bound moves, and a curve that ends before hides from one neighbour what the next one's noise must cover.
    beta, pieces = 1 / 6, gnmax_sensitivity(2.0, classes, 1.5)
    assert pieces.conditions() == (True, True)
    smooth, value = {}, {}
    for votes in every_histogram(teachers, classes):
        moves = VoteMoves(np.array([votes]), sigma=2.0, margin=margin)
        smooth[votes] = smooth_sensitivity(summed_curve(moves, pieces, np.ones(1), teachers), beta)
        value[votes] = float(pieces.bound(moves.log_q(np.zeros(1, dtype=np.int64), moves.every))[0])
    for votes, there in smooth.items():
        for near in map(tuple, neighbours(np.array(votes))):
            assert smooth[near] <= there * math.exp(beta) * (1 + 1e-12), (votes, near)
            assert abs(value[near] - value[votes]) <= min(there, smooth[near]) * (1 + 1e-12) + 1e-15


@given(how=HISTOGRAM)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_no_neighbour_is_farther_than_the_local_sensitivity(how: tuple[int, float, int]) -> None:
    votes = histogram(how)
    for margin in (0, 1):
        here = bound(votes, margin)
        local = gnmax_local_sensitivity(
            [votes], SIGMA, ORDER, num_teachers=TEACHERS, integer_noise=bool(margin)
        )[0]
        assert max(abs(here - bound(other, margin)) for other in neighbours(votes)) <= local + 1e-12


@given(how=HISTOGRAM, seed=st.integers(0, 1000), distance=st.integers(1, 60))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_nor_anywhere_within_a_distance(how: tuple[int, float, int], seed: int, distance: int) -> None:
    rng, start = np.random.default_rng(seed), histogram(how)
    local = gnmax_local_sensitivity([start], SIGMA, ORDER, num_teachers=TEACHERS)
    votes = start.copy()
    for _ in range(distance):
        votes = random_neighbour(votes[None], rng)[0]
    here = bound(votes)
    assert max(abs(here - bound(other)) for other in neighbours(votes)) <= local[: distance + 1].max() + 1e-12


@given(seed=st.integers(0, 2**32 - 1), concentration=st.floats(0.02, 1.0), factor=st.sampled_from([0.2, 0.4]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_it_is_smooth_over_neighbours(seed: int, concentration: float, factor: float) -> None:
    rng, beta = np.random.default_rng(seed), factor / ORDER
    votes = np.stack([histogram((seed + row, concentration, TEACHERS)) for row in range(4)])
    other = random_neighbour(votes, rng)
    here, there = (
        smooth_sensitivity(gnmax_local_sensitivity(v, SIGMA, ORDER, num_teachers=TEACHERS), beta)
        for v in (votes, other)
    )
    assert here <= math.exp(beta) * there * (1 + 1e-9)
    assert there <= math.exp(beta) * here * (1 + 1e-9)
    assert abs(bound(votes) - bound(other)) <= here + 1e-12


def test_the_winner_may_be_any_class() -> None:
    votes = np.array([200, 20, 10, 5, 5, 5, 2, 1, 1, 1])
    expected = gnmax_local_sensitivity([votes], SIGMA, ORDER, num_teachers=TEACHERS)
    for shift in range(1, 10):
        rolled = gnmax_local_sensitivity([np.roll(votes, shift)], SIGMA, ORDER, num_teachers=TEACHERS)
        np.testing.assert_array_equal(rolled, expected)
    assert expected[0] > 0


def test_a_batch_is_the_sum_of_its_queries() -> None:
    votes = np.stack([histogram((row, 0.2, TEACHERS)) for row in range(25)])
    weights = np.arange(25) / 7.0
    curves = [gnmax_local_sensitivity([v], SIGMA, ORDER, num_teachers=TEACHERS) for v in votes]
    whole = gnmax_local_sensitivity(votes, SIGMA, ORDER, num_teachers=TEACHERS, weights=weights)
    np.testing.assert_allclose(whole, weights @ np.array(curves), rtol=1e-10, atol=1e-15)


def test_many_teachers_and_narrow_noise_do_not_underflow() -> None:
    # Gaps of 4,800 votes at σ = 20 have chances far below the smallest float.
    curve = gnmax_local_sensitivity([[4900, 60, 40]], 20.0, 8.0, num_teachers=5000)
    assert np.isfinite(curve).all() and (curve >= 0).all() and curve.max() > 0
    assert (np.diff(curve) >= -1e-9 * curve.max()).all()


def test_b_is_theorem_6_up_to_q0() -> None:
    votes = np.stack([histogram((row, 0.3, TEACHERS)) for row in range(200)])
    log_q = gnmax_log_q(votes, SIGMA)
    np.testing.assert_allclose(PIECES.bound(log_q), gnmax_rdp(votes, SIGMA, [ORDER])[:, 0], rtol=1e-12)


def test_the_threshold_s_curve_by_brute_force() -> None:
    n, order = 40, 6.0
    table = threshold_rdp(np.arange(n + 1), 25, 3.0, [order])[:, 0]
    for top in (0, 11, 25, 40):
        got = threshold_local_sensitivity(table, [top])
        for distance in range(n):
            places = [v for v in (top - distance, top + distance) if 0 <= v <= n]
            jumps = [
                abs(table[v + step] - table[v]) for v in places for step in (-1, 1) if 0 <= v + step <= n
            ]
            expected = max(jumps) if distance < max(top, n - top) else 0.0
            assert got[distance] == pytest.approx(expected, abs=1e-15)
    both = threshold_local_sensitivity(table, [11, 25, 11])
    parts = threshold_local_sensitivity(table, [25]) + 2 * threshold_local_sensitivity(table, [11])
    np.testing.assert_allclose(both, parts)


def test_other_bad_input_is_refused() -> None:
    for call in (
        lambda: SanitiseSettings.at_order(1.0),
        lambda: nrs_parameters(0.0, 1e-5),
        lambda: nrs_parameters(1.0, 0.0),
        lambda: smooth_sensitivity([1.0], 0.0),
        lambda: smooth_sensitivity([], 0.1),
        lambda: smooth_sensitivity([math.nan], 0.1),
        lambda: smooth_sensitivity([-1.0], 0.1),
        lambda: threshold_local_sensitivity([0.1], [0]),
        lambda: threshold_local_sensitivity([0.1, 0.2], [2]),
        lambda: threshold_local_sensitivity([0.1, 0.2], [0.5]),
        lambda: gnmax_local_sensitivity([[3, 2]], SIGMA, 1.0, num_teachers=5),
        lambda: gnmax_local_sensitivity([[3, 2]], SIGMA, ORDER, num_teachers=4),
        lambda: gnmax_local_sensitivity([[3, 2]], SIGMA, ORDER, num_teachers=5, weights=[-1.0]),
        lambda: gnmax_local_sensitivity([[3, 2]], 0.0, ORDER, num_teachers=5),
    ):
        with pytest.raises(InputError):
            call()


def divergence(order: float, shift: float, ratio: float, sigma: float) -> float:
    """Rényi divergence of N(0, σ²) from N(shift, (ratio σ)²), by integration."""

    def log_density(x: float, mean: float, scale: float) -> float:
        return -(((x - mean) / scale) ** 2) / 2 - math.log(scale * math.sqrt(2 * math.pi))

    def inside(x: float) -> float:
        p, q = log_density(x, 0.0, sigma), log_density(x, shift, ratio * sigma)
        return math.exp(order * p + (1 - order) * q)

    spread = ratio * sigma / math.sqrt((1 - order) + order * ratio**2)  # of the integrand, a Gaussian
    middle = shift * (1 - order) / ((1 - order) + order * ratio**2)
    total, _ = quad(inside, middle - 12 * spread, middle + 12 * spread, epsabs=0, epsrel=1e-11, limit=200)
    return math.log(total) / (order - 1)


@pytest.mark.parametrize("order", [1.5, 4.0, 14.0, 31.7])
@pytest.mark.parametrize("share", [0.05, 0.25, 0.4])
def test_the_release_costs_what_its_worst_pair_diverges(order: float, share: float) -> None:
    beta, sigma = share / order, 5.0
    charged = gnss_rdp(order, beta=beta, sigma_ss=sigma)
    ratios = np.exp(np.linspace(-beta, beta, 9))
    found = [
        divergence(order, shift * min(1.0, ratio), ratio, sigma) for ratio in ratios for shift in (0.3, 1.0)
    ]
    assert max(found) == pytest.approx(charged, rel=1e-6)


def test_the_papers_formula_is_below_the_true_cost() -> None:
    """P18, Theorem 23 at the settings that α β = 0.4 gives: why it is not what is charged."""
    order, beta = 14.0, 0.4 / 14
    sigma = math.sqrt(order * math.exp(2 * beta) / 0.35)
    printed = gnss_rdp_printed(order, beta=beta, sigma_ss=sigma)
    true = divergence(order, math.exp(-beta), math.exp(-beta), sigma)
    assert printed == pytest.approx(0.4430, abs=1e-3)
    assert true == pytest.approx(0.729, abs=2e-3)
    assert gnss_rdp(order, beta=beta, sigma_ss=sigma) == pytest.approx(true, rel=1e-6)

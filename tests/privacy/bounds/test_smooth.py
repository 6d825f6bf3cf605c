"""Smooth sensitivity: votes that are moved one by one, curves that bound every neighbour, and the release."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from pate_fed.errors import InputError
from pate_fed.privacy import (
    ConfidentGNMax,
    GNMax,
    Protection,
    SanitiseSettings,
    SeededNoise,
    SystemNoise,
    sanitised_epsilon,
)
from pate_fed.privacy.bounds.conversion import overhead
from pate_fed.privacy.bounds.gnmax import gnmax_log_q, gnmax_rdp
from pate_fed.privacy.bounds.gnss import gnss_rdp, gnss_rdp_printed, nrs_parameters
from pate_fed.privacy.bounds.smooth import (
    gnmax_local_sensitivity,
    gnmax_sensitivity,
    smooth_sensitivity,
    summed_curve,
    threshold_local_sensitivity,
)
from pate_fed.privacy.bounds.threshold import threshold_rdp
from pate_fed.privacy.bounds.vote_moves import VoteMoves
from pate_fed.privacy.mechanisms.data_dependent import data_dependent_rdp
from pate_fed.privacy.mechanisms.sanitise import check_sanitisable

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


@given(how=HISTOGRAM, classes=st.sampled_from([2, 3, 10]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_moves_are_what_moving_by_hand_gives(how: tuple[int, float, int], classes: int) -> None:
    votes = histogram(how, classes)
    moves = VoteMoves(votes[None], sigma=SIGMA, margin=0)
    query = np.zeros(1, dtype=np.int64)
    for apart in (1, -1):
        hand = np.sort(votes)[::-1].copy()
        for step in range(60):
            got = moves.log_q(np.array([step]), query, np.array([apart]))[0]
            assert got == pytest.approx(gnmax_log_q([hand], SIGMA)[0], rel=1e-9)
            if hand[1] == 0 if apart > 0 else hand[0] - hand[1] < 2:
                break
            hand[0] += apart
            hand[1] -= apart
            hand = np.sort(hand)[::-1]


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


def test_conditions_that_fail_are_a_refusal_that_says_why() -> None:
    with pytest.raises(InputError, match="condition C6"):
        check_sanitisable(SanitiseSettings.at_order(25.0), sigma2=20.0, num_classes=10)
    check_sanitisable(SanitiseSettings.at_order(14.0), sigma2=40.0, num_classes=10)


@pytest.mark.parametrize(
    ("sigma2", "protection", "what"),
    [
        (1.5, Protection(), "below 2 votes"),
        (math.nan, Protection(), "below 2 votes"),
        (40.0, Protection(votes_moved=2), "one moved vote"),
        (40.0, Protection(unit="hospital", adjacency="add-or-remove-one"), "one moved vote"),
    ],
)
def test_what_is_not_derived_is_not_sanitised(sigma2: float, protection: Protection, what: str) -> None:
    with pytest.raises(InputError, match=what):
        check_sanitisable(
            SanitiseSettings.at_order(14.0), sigma2=sigma2, num_classes=10, protection=protection
        )


def test_integer_tails_stay_below_the_margin() -> None:
    """What the release assumes: discrete noise with ties as losses is below gaps less one vote."""
    for sigma in (2.0, 3.7, 40.0):
        for gaps in ([50, 3, 1], [9, 9, 9], [120, 60, 0]):
            votes = np.array([[130 - gap for gap in (0, *gaps)]])
            moves = VoteMoves(votes, sigma=sigma, margin=1)
            margin = moves.log_q(np.zeros(1, dtype=np.int64), moves.every)[0]
            assert gnmax_log_q(votes, sigma, discrete=True)[0] <= margin + 1e-12


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


CONFIDENT = ConfidentGNMax(
    num_teachers=TEACHERS, num_classes=CLASSES, threshold=150, sigma1=60.0, sigma2=SIGMA
)


def run(seed: int = 1, **change: object) -> object:
    votes = np.stack([histogram((row, 0.05, TEACHERS)) for row in range(400)])
    arguments: dict[str, object] = {
        "mechanism": CONFIDENT,
        "totals": votes,
        "answered": votes.max(axis=1) > 150,
        "settings": SanitiseSettings.at_order(14.0),
        "delta": 1e-5,
        "noise": SeededNoise(seed),
    }
    return sanitised_epsilon(**{**arguments, **change})  # type: ignore[arg-type]


def test_the_release_is_its_mean_plus_noise_of_its_deviation() -> None:
    results = [run(seed) for seed in range(60)]
    mean, deviation = results[0].mean_do_not_publish, results[0].deviation_do_not_publish
    assert {result.mean_do_not_publish for result in results} == {mean}
    z = np.array([(result.epsilon - mean) / deviation for result in results])
    assert abs(z.mean()) < 4 / math.sqrt(60) and 0.7 < z.std() < 1.35
    exact = gnss_rdp(14.0, beta=results[0].beta, sigma_ss=results[0].sigma_ss)
    assert exact < results[0].cost <= exact + 0.0011  # what the noise's steps may cost


def test_what_is_released_covers_the_integer_noise_that_ran() -> None:
    """The mean is at least the data-dependent figure at the declared order, noise tails and ties included."""
    votes = np.stack([histogram((row, 0.05, TEACHERS)) for row in range(400)])
    answered = votes.max(axis=1) > 150
    ran = data_dependent_rdp(CONFIDENT, votes, answered, orders=[14.0])[0]
    plain = gnmax_rdp(votes[answered], SIGMA, [14.0])[:, 0].sum()
    result = run()
    spent = result.mean_do_not_publish - result.cost - overhead(np.array([14.0]), 1e-5)[0]
    assert spent >= ran > plain
    assert spent < 1.3 * ran


def test_what_depends_on_the_votes_is_not_shown() -> None:
    text = repr(run())
    assert "mean" not in text and "deviation" not in text and "epsilon=" in text


def test_a_run_without_answers_or_threshold_can_be_released() -> None:
    none = run(answered=np.zeros(400, dtype=bool))
    assert none.deviation_do_not_publish == 0.0 and none.epsilon > 0
    plain = run(mechanism=GNMax(num_teachers=TEACHERS, num_classes=CLASSES, sigma=SIGMA))
    assert plain.mean_do_not_publish < run().mean_do_not_publish
    assert run(noise=SystemNoise()).epsilon > 0


def test_settings_come_from_the_terms_alone() -> None:
    terms = {"sigma1": 150.0, "sigma2": 40.0, "num_classes": 10, "delta": 1e-5}
    settings_ = SanitiseSettings.for_study(asked=640, answered=300, **terms)
    assert 8 <= settings_.order <= 16 and settings_.beta == pytest.approx(0.25 / settings_.order)
    check_sanitisable(settings_, sigma2=40.0, num_classes=10)
    # A small spend asks for a high order, at which C6 fails; it is lowered until it holds.
    small = SanitiseSettings.for_study(asked=20, answered=10, **{**terms, "sigma2": 20.0})
    check_sanitisable(small, sigma2=20.0, num_classes=10)


@pytest.mark.parametrize(
    "change",
    [
        {"answered": np.ones(3, dtype=bool)},
        {"answered": np.ones(400)},
        {"delta": 0.0},
        {"mechanism": replace(CONFIDENT, num_teachers=10)},
        {"mechanism": replace(CONFIDENT, sigma2=1.5)},
    ],
)
def test_releases_that_do_not_fit_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError):
        run(**change)


@pytest.mark.parametrize(
    ("order", "beta", "sigma_ss"),
    [(1.0, 0.01, 5.0), (60.0, 0.01, 5.0), (5.0, -0.1, 5.0), (5.0, 0.01, 0.0), (math.nan, 0.01, 5.0)],
)
def test_bad_release_parameters_are_refused(order: float, beta: float, sigma_ss: float) -> None:
    with pytest.raises(InputError):
        SanitiseSettings(order=order, beta=beta, sigma_ss=sigma_ss)


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

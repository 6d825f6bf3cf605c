"""Laws that every bound must obey, against exact divergences computed by other means."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published import joint_rdp, threshold_rdp
from scipy.special import log_ndtr, logsumexp

from pate_fed.privacy import ConfidentGNMax, PrivacyEvent, Protection, epsilon_of, total_cost
from pate_fed.privacy.bounds.conversion import confident_mu, confident_rho, gaussian_dp_epsilon, to_epsilon
from pate_fed.privacy.bounds.gnmax import bit_divergence, exact_bit_rdp, gnmax_rdp, log_answered
from pate_fed.privacy.bounds.lnmax import lnmax_log_q, lnmax_rdp_from_log_q
from pate_fed.privacy.bounds.noise_law import log_tail_gaussian_difference
from pate_fed.privacy.checks import DEFAULT_ORDERS

ORDERS = np.array([1.5, 2.0, 4.0, 14.0, 32.0])
LAW = settings(max_examples=60, deadline=None, derandomize=True)
# 40 pieces of 20 nodes each.
PIECE, WEIGHT = np.polynomial.legendre.leggauss(20)
NODES = ((PIECE + 1 + 2 * np.arange(40)[:, None]) / 40 - 1).ravel()
WEIGHTS = np.tile(WEIGHT / 40, 40)


def log_law(votes: np.ndarray, sigma: float) -> np.ndarray:
    """Log-chance of each class to win with continuous noise, by quadrature."""
    # A loser's chance lies between the two, far from where the winner usually is.
    low, high = votes.min() - 9 * sigma, votes.max() + 9 * sigma
    t = (high - low) / 2 * NODES + (high + low) / 2
    z = (t - votes[:, None]) / sigma
    below = log_ndtr(z)
    density = -(z**2) / 2 + below.sum(axis=0) - below
    scale = (high - low) / (2 * sigma * math.sqrt(2 * math.pi))
    return logsumexp(density, b=WEIGHTS, axis=1) + math.log(scale)


def divergence(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Exact Rényi divergence at each of ORDERS."""
    a = ORDERS[:, None]
    return np.maximum(logsumexp(a * first + (1 - a) * second, axis=1), 0) / (ORDERS - 1)


def all_moves(votes: np.ndarray) -> list[np.ndarray]:
    eye = np.eye(len(votes), dtype=int)
    return [votes - eye[i] + eye[j] for i in np.flatnonzero(votes) for j in range(len(votes)) if i != j]


HISTOGRAMS = st.lists(st.integers(0, 120), min_size=2, max_size=5).map(np.array)


@given(votes=HISTOGRAMS, sigma=st.sampled_from([1.0, 3.0, 10.0, 40.0]))
@LAW
def test_exact_forward_is_below_theorem_6_is_below_the_worst_case(votes: np.ndarray, sigma: float) -> None:
    bound = gnmax_rdp([votes], sigma, ORDERS)[0]
    here = log_law(votes, sigma)
    # The quadrature is good to about 1e-12 of probability, amplified by the order.
    for other in all_moves(votes):
        exact = divergence(here, log_law(other, sigma))
        assert (exact <= bound * (1 + 1e-6) + 1e-9).all()
    assert (bound <= ORDERS / sigma**2).all()


@given(votes=HISTOGRAMS, sigma=st.sampled_from([20.0, 40.0]))
@LAW
def test_with_wide_noise_the_reverse_was_never_above_either(votes: np.ndarray, sigma: float) -> None:
    bound, here = gnmax_rdp([votes], sigma, ORDERS)[0], log_law(votes, sigma)
    for other in all_moves(votes):
        assert (divergence(log_law(other, sigma), here) <= bound * (1 + 1e-6) + 1e-9).all()


def test_with_narrow_noise_the_reverse_is_far_above_as_the_docs_warn() -> None:
    votes, other = np.array([20, 14]), np.array([19, 15])
    bound = gnmax_rdp([votes], 1.0, ORDERS)[0]
    reverse = divergence(log_law(other, 1.0), log_law(votes, 1.0))
    assert (reverse > bound).any()


@given(gap=st.integers(-40, 40), sigma=st.sampled_from([0.6, 1.0, 2.5, 10.0, 30.0]))
@LAW
def test_integer_noise_with_random_ties_is_covered(gap: int, sigma: float) -> None:
    """Two classes: the exact law of the mechanism that runs, in the forward direction."""

    def law(g: int) -> np.ndarray:
        tail = log_tail_gaussian_difference(np.array([-g, -g + 1, g, g + 1]), sigma)
        # A tie is won by either with equal chance.
        return np.array([np.logaddexp(tail[0], tail[1]), np.logaddexp(tail[2], tail[3])]) - math.log(2)

    votes = np.array([100 + gap, 100])
    bound = gnmax_rdp([votes], sigma, ORDERS, discrete=True)[0]
    for step in (-2, 2):
        exact = divergence(law(gap), law(gap + step))
        assert (exact <= bound * (1 + 1e-9) + 1e-12).all()
    assert (bound <= ORDERS / sigma**2).all()


@given(top=st.integers(0, 250), threshold=st.integers(0, 300), sigma=st.floats(1.0, 200.0))
@LAW
def test_the_check_forward_is_below_theorem_6(top: int, threshold: int, sigma: float) -> None:
    bound = threshold_rdp(top, threshold, sigma, ORDERS)
    here = log_answered(float(top), threshold, sigma)
    for step in (-1.0, 1.0):
        forward = bit_divergence(*here, *log_answered(top + step, threshold, sigma), ORDERS)
        assert (forward <= bound * (1 + 1e-9) + 1e-15).all()
    assert (bound <= ORDERS / (2 * sigma**2) * (1 + 1e-12)).all()


@given(votes=HISTOGRAMS, threshold=st.integers(0, 150))
@LAW
def test_the_joint_bound_covers_the_exact_query(votes: np.ndarray, threshold: int) -> None:
    """Bit and label together, exactly, against every neighbour."""
    sigma1, sigma2 = 30.0, 20.0
    bound = joint_rdp([votes], ORDERS, threshold=threshold, sigma1=sigma1, sigma2=sigma2)[0]

    def law(v: np.ndarray) -> np.ndarray:
        yes, no = log_answered(float(v.max()), threshold, sigma1)
        return np.append(yes + log_law(v, sigma2), no)

    for other in all_moves(votes):
        assert (divergence(law(votes), law(other)) <= bound * (1 + 1e-6) + 1e-9).all()


@given(gap=st.integers(0, 60), scale=st.floats(0.7, 20.0))
@LAW
def test_lnmax_forward_is_below_its_three_theorems(gap: int, scale: float) -> None:
    def law(g: int) -> np.ndarray:
        lost = math.log(2 + abs(g) / scale) - math.log(4) - abs(g) / scale
        both = np.array([math.log1p(-math.exp(lost)), lost])
        return both if g >= 0 else both[::-1]

    bound = lnmax_rdp_from_log_q(lnmax_log_q([[gap + 70, 70]], scale), 2 / scale, ORDERS)[0]
    for step in (-2, 2):
        assert (divergence(law(gap), law(gap + step)) <= bound * (1 + 1e-9) + 1e-12).all()


@given(asked=st.integers(1, 5000), share=st.floats(0, 1), sigma=st.floats(5, 300), delta=st.floats(1e-9, 0.1))
@LAW
def test_exact_gaussian_is_below_improved_is_below_classic(
    asked: int, share: float, sigma: float, delta: float
) -> None:
    run = {"asked": asked, "answered": int(share * asked), "sigma1": 3 * sigma, "sigma2": sigma}
    exact = gaussian_dp_epsilon(confident_mu(**run), delta)  # type: ignore[arg-type]
    curve = DEFAULT_ORDERS * confident_rho(**run)  # type: ignore[arg-type]
    improved = to_epsilon(DEFAULT_ORDERS, curve, delta)
    classic = to_epsilon(DEFAULT_ORDERS, curve, delta, conversion="classic")
    assert exact <= improved.epsilon * (1 + 1e-9) <= classic.epsilon * (1 + 2e-9)


@given(counts=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), min_size=1, max_size=6))
@LAW
def test_the_ledger_s_epsilon_is_monotone_and_knows_no_order(counts: list[tuple[int, int]]) -> None:
    mechanism = ConfidentGNMax(num_teachers=250, num_classes=10, threshold=200, sigma1=150.0, sigma2=40.0)
    events = [
        PrivacyEvent(
            mechanism=mechanism,
            asked=a + b,
            answered=a,
            protection=Protection(),
            noise="a test",
            private=False,
        )
        for a, b in counts
    ]
    readings = [epsilon_of(total_cost(events[:k]), 1e-5) for k in range(len(events) + 1)]
    assert readings == sorted(readings)
    assert epsilon_of(total_cost(reversed(events)), 1e-5) == readings[-1]
    # Charged by its outcome a run costs less than its noisy totals; in small spends, by 2/π's square root.
    asked, answered = sum(a + b for a, b in counts), sum(a for a, _ in counts)
    curve = DEFAULT_ORDERS * confident_rho(asked, answered, sigma1=150.0, sigma2=40.0)
    grid = to_epsilon(DEFAULT_ORDERS, curve, 1e-5)
    assert readings[-1] <= grid.epsilon
    if not grid.at_edge:
        assert readings[-1] > 0.6 * grid.epsilon
    # The ledger's search over all orders is never worse than the grid, and both are the same curve.
    totals = epsilon_of(total_cost(events).as_totals, 1e-5)
    assert totals <= grid.epsilon
    if not grid.at_edge:
        assert totals == pytest.approx(grid.epsilon, rel=2e-3)


def test_the_realised_bit_of_a_run_is_at_most_its_worst_case() -> None:
    tops = np.arange(0, 251)
    for sigma in (20.0, 150.0):
        exact = exact_bit_rdp(tops, 200, sigma, ORDERS, discrete=True)
        assert (exact <= ORDERS / (2 * sigma**2) * (1 + 1e-9)).all()

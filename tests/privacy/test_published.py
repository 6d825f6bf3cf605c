"""Figures that the papers print, from the votes that their authors published and the right settings."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from published import (
    gnmax_local_sensitivity,
    gnss_rdp_printed,
    joint_rdp,
    pate_plus_plus_epsilon,
    threshold_rdp,
)

from pate_fed.privacy.bounds.conversion import (
    confident_mu,
    confident_rho,
    gaussian_dp_epsilon,
    overhead,
    to_epsilon,
)
from pate_fed.privacy.bounds.gnmax import exact_bit_rdp, exact_bit_worst_case, gnmax_rdp, log_answered
from pate_fed.privacy.bounds.lnmax import DEFAULT_MOMENTS, lnmax_log_moments, moments_epsilon
from pate_fed.privacy.bounds.smooth import smooth_sensitivity
from pate_fed.privacy.checks import DEFAULT_ORDERS

EIGHT = np.arange(1.0, 9.0)
MNIST = {"threshold": 200, "sigma1": 150.0}


@pytest.fixture(scope="module")
def mnist(shared: Path) -> np.ndarray:
    return np.load(shared / "data" / "pate_votes" / "mnist_250_teachers.npy").astype(int)


@pytest.fixture(scope="module")
def adult(shared: Path) -> np.ndarray:
    return np.load(shared / "data" / "pate_votes" / "adult_250_teachers.npy").astype(int)


@pytest.fixture(scope="module")
def labelled(shared: Path) -> np.ndarray:
    folder = shared / "data" / "pate_votes"
    return np.load(folder / "mnist_250_teachers_100_indices_used_by_student.npy")


@pytest.mark.parametrize(
    ("scale", "moments", "epsilon", "best"),
    [
        (10.0, EIGHT, 2.048561, 8),  # published as 2.04, cut off
        (10.0, DEFAULT_MOMENTS, 1.407853, 22),
        (20.0, EIGHT, 1.958683, 8),
        (20.0, DEFAULT_MOMENTS, 1.437085, 26),
    ],
)
def test_lnmax_on_mnist(
    mnist: np.ndarray,
    labelled: np.ndarray,
    scale: float,
    moments: np.ndarray,
    epsilon: float,
    best: int,
) -> None:
    total = lnmax_log_moments(mnist[labelled], scale, moments).sum(axis=0)
    got = moments_epsilon(total, 1e-5, moments)
    assert got.epsilon == pytest.approx(epsilon, abs=1e-6)
    assert got.order == best and got.at_edge == (best == 8)


def test_lnmax_on_a_thousand_mnist_queries(mnist: np.ndarray) -> None:
    # Published as 8.03 on a thousand queries that were never named.
    total = lnmax_log_moments(mnist[:1000], 10.0, EIGHT).sum(axis=0)
    assert moments_epsilon(total, 1e-5, EIGHT).epsilon == pytest.approx(8.257444, abs=1e-6)
    rng, spread = np.random.default_rng(0), []
    for _ in range(20):
        some = mnist[rng.choice(len(mnist), 1000, replace=False)]
        spread.append(moments_epsilon(lnmax_log_moments(some, 10.0, EIGHT).sum(axis=0), 1e-5, EIGHT).epsilon)
    assert min(spread) < 8.03 + 0.3 and max(spread) > 8.03 - 0.3


def test_the_released_labels_have_laplace_scale_20(mnist: np.ndarray, shared: Path) -> None:
    """The trap of P17: its text and labels say scale 20, its ε comes from scale 10."""
    labels = np.load(shared / "data" / "pate_votes" / "mnist_250_student_labels_lap_20.npy")
    agreement = np.mean(labels == mnist.argmax(axis=1))
    assert agreement == pytest.approx(0.969, abs=1e-3)
    rng = np.random.default_rng(1)
    shares = {}
    for scale in (10.0, 20.0):
        noisy = mnist + rng.laplace(scale=scale, size=mnist.shape)
        shares[scale] = np.mean(noisy.argmax(axis=1) == mnist.argmax(axis=1))
    assert abs(shares[20.0] - agreement) < 0.006 < abs(shares[10.0] - agreement)


def expected(votes: np.ndarray, threshold: int, sigma1: float) -> tuple[float, float, np.ndarray]:
    """What the scripts of P18 print: classic ε, mean answers, and the curve of the argmax alone."""
    top = votes.max(axis=1)
    chance = np.exp(log_answered(top, threshold, sigma1)[0])
    argmax = chance @ gnmax_rdp(votes, 40.0, DEFAULT_ORDERS)
    check = threshold_rdp(top, threshold, sigma1, DEFAULT_ORDERS).sum(axis=0)
    return (
        to_epsilon(DEFAULT_ORDERS, check + argmax, 1e-5, conversion="classic").epsilon,
        chance.sum(),
        argmax,
    )


def test_confident_gnmax_on_mnist(mnist: np.ndarray) -> None:
    epsilon, answered, argmax = expected(mnist[:640], **MNIST)
    assert epsilon == pytest.approx(1.998817, abs=1e-6) and answered == pytest.approx(282.7, abs=0.05)
    top = mnist[:640].max(axis=1)
    check = threshold_rdp(top, orders=DEFAULT_ORDERS, **MNIST).sum(axis=0)
    improved = to_epsilon(DEFAULT_ORDERS, check + argmax, 1e-5)
    assert improved.epsilon == pytest.approx(1.711902, abs=1e-6)
    bit = exact_bit_rdp(top, orders=DEFAULT_ORDERS, **MNIST).sum(axis=0)
    assert to_epsilon(DEFAULT_ORDERS, bit + argmax, 1e-5).epsilon == pytest.approx(1.642758, abs=1e-6)


def test_the_published_run_is_one_of_many_random_orders(mnist: np.ndarray) -> None:
    """1.97 at 286 answers: one draw of queries and noise, within the spread of such draws."""
    rng, epsilons, counts = np.random.default_rng(2018), [], []
    for _ in range(25):
        votes = mnist[rng.permutation(len(mnist))[:640]]
        top = votes.max(axis=1)
        answered = top + np.rint(rng.normal(0, 150, 640)) >= 200
        curve = threshold_rdp(top, orders=DEFAULT_ORDERS, **MNIST).sum(axis=0)
        curve = curve + gnmax_rdp(votes[answered], 40.0, DEFAULT_ORDERS).sum(axis=0)
        epsilons.append(to_epsilon(DEFAULT_ORDERS, curve, 1e-5, conversion="classic").epsilon)
        counts.append(answered.sum())
    assert abs(1.97 - np.mean(epsilons)) < 3 * np.std(epsilons)
    assert abs(286 - np.mean(counts)) < 3 * np.std(counts)


def test_confident_gnmax_on_adult(adult: np.ndarray) -> None:
    epsilon, answered, _ = expected(adult[:1500], 300, 200.0)
    assert round(epsilon, 2) == 1.68 and answered == pytest.approx(538, abs=0.5)


@pytest.mark.parametrize(
    ("asked", "answered", "sigma1", "classic", "improved", "exact"),
    [
        (640, 283, 150.0, 3.159, 2.743, 2.529),
        (1000, 442, 150.0, 4.008, 3.526, 3.255),
        (1500, 538, 200.0, 4.401, 3.892, 3.594),
    ],
)
def test_the_data_independent_table(
    asked: int, answered: int, sigma1: float, classic: float, improved: float, exact: float
) -> None:
    run = {"sigma1": sigma1, "sigma2": 40.0}
    curve = DEFAULT_ORDERS * confident_rho(asked, answered, **run)
    got = [to_epsilon(DEFAULT_ORDERS, curve, 1e-5, conversion=c).epsilon for c in ("classic", "improved")]
    got.append(gaussian_dp_epsilon(confident_mu(asked, answered, **run), 1e-5))
    np.testing.assert_allclose(got, [classic, improved, exact], atol=6e-4)


def test_the_exact_bit_on_a_thousand_mnist_queries(mnist: np.ndarray) -> None:
    top = mnist[:1000].max(axis=1)
    theorem6 = threshold_rdp(top, orders=[14.0], **MNIST).sum()
    exact = exact_bit_rdp(top, orders=[14.0], **MNIST).sum()
    worst = 1000 * exact_bit_worst_case(250, orders=[14.0], **MNIST)[0]
    np.testing.assert_allclose([theorem6, exact, worst], [0.311, 0.194, 0.198], atol=6e-4)


def test_validity_beforehand_costs_a_few_percent(mnist: np.ndarray) -> None:
    votes = mnist[:1000]
    joint = joint_rdp(votes, DEFAULT_ORDERS, sigma2=40.0, **MNIST).sum(axis=0)
    _, _, argmax = expected(votes, **MNIST)
    bit = exact_bit_rdp(votes.max(axis=1), orders=DEFAULT_ORDERS, **MNIST).sum(axis=0)
    before, average = (to_epsilon(DEFAULT_ORDERS, curve, 1e-5).epsilon for curve in (joint, bit + argmax))
    assert before == pytest.approx(2.262, abs=6e-4) and average == pytest.approx(2.165, abs=6e-4)


def test_parameters_fixed_beforehand_cost_little(mnist: np.ndarray) -> None:
    """The scripts tune β and σ_ss on the votes; fixed ones give nearly the same sanitised figure.

    Both by the paper's Theorem 23 as printed, which the published figures rest on; see `gnss_rdp`.
    """
    votes, order = mnist[:640], 14.0
    top = votes.max(axis=1)
    chance = np.exp(log_answered(top, **MNIST)[0])
    local = gnmax_local_sensitivity(votes, 40.0, order, num_teachers=250, weights=chance)
    spent = chance @ gnmax_rdp(votes, 40.0, [order])[:, 0]
    spent += threshold_rdp(top, orders=[order], **MNIST).sum() + overhead(np.array([order]), 1e-5)[0]
    tuned = spent + gnss_rdp_printed(order, beta=0.46 / order, sigma_ss=6.2328)
    fixed = spent + gnss_rdp_printed(order, beta=0.4 / order, sigma_ss=6.0)
    assert tuned == pytest.approx(2.239, abs=2e-3) and fixed == pytest.approx(2.226, abs=2e-3)
    deviation = [s * smooth_sensitivity(local, beta / order) for beta, s in ((0.46, 6.2328), (0.4, 6.0))]
    np.testing.assert_allclose(deviation, [0.385, 0.406], atol=2e-3)


def test_what_pate_plus_plus_needs_for_its_figures() -> None:
    """It prints ε without σ1, σ2 and T; by its Proposition 2 without the check, σ2 must be at least this."""
    for labels, delta, epsilon, sigma2 in (
        (2200, 1e-5, 5.04, 69.4),
        (2200, 1e-5, 4.05, 85.0),
        (3000, 1e-6, 4.93, 89.4),
        (3000, 1e-6, 3.96, 109.7),
    ):
        for noise, fits in ((sigma2 + 0.1, True), (sigma2 - 0.1, False)):
            got, order = pate_plus_plus_epsilon(labels, labels, sigma1=1e9, sigma2=noise, delta=delta)
            assert (got <= epsilon) == fits
            assert order == pytest.approx(1 + math.sqrt(math.log(1 / delta) / (labels / noise**2)), rel=1e-6)


def test_noisy_totals_of_every_query() -> None:
    """Against a coordinator with distributed noise: ρ = 1/σ² for every asked query."""
    for queries, sigma, epsilon in ((640, 40.0, 3.849), (1000, 40.0, 4.983), (1000, 100.0, 1.760)):
        mu = confident_mu(queries, queries, sigma1=None, sigma2=sigma)
        assert gaussian_dp_epsilon(mu, 1e-5) == pytest.approx(epsilon, abs=6e-4)

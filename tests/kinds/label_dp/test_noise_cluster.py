"""NoiseCluster: its noise against Equation 5, the discrete Gaussian's own δ, and samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_discrete_gaussian_mechanism
from published import noise_cluster_epsilon

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.noise_cluster import (
    NoiseCluster,
    cluster_majority,
    label_counts,
    least_share,
    summed_labels,
)
from pate_fed.kinds.label_dp.release import label_accuracy
from pate_fed.privacy import SeededNoise, SystemNoise
from pate_fed.privacy.bounds.conversion import gaussian_delta, gaussian_dp_epsilon, moved_count_delta
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.label_dp import SharedClusterCounts, equation5_sigma
from pate_fed.privacy.protection import LABEL


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.5, 1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-7])
def test_noise_clusters_sigma_is_the_least_of_equation_5(epsilon: float, delta: float) -> None:
    sigma = equation5_sigma(epsilon, delta)
    assert gaussian_delta(math.sqrt(2) / sigma, epsilon) <= delta
    assert gaussian_delta(math.sqrt(2) / (sigma * (1 - 1e-9)), epsilon) > delta
    assert noise_cluster_epsilon(sigma, delta) == pytest.approx(epsilon, rel=1e-6)
    assert gaussian_dp_epsilon(math.sqrt(2) / sigma, delta) == pytest.approx(epsilon, rel=1e-6)


def test_the_published_epsilon_is_not_that_of_integer_noise() -> None:
    published = noise_cluster_epsilon(1.0, 1e-5)
    assert moved_count_delta(1.0, published) > 1.3e-5
    mechanism = NoiseCluster(num_clusters=2, num_classes=2, epsilon=published, delta=1e-5)
    assert mechanism.sigma > 1.01 and moved_count_delta(mechanism.sigma, published) <= 1e-5


@pytest.mark.parametrize("sigma", [0.9, 1.7, 5.3, 40.0])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_the_discrete_delta_is_the_sum_over_the_noise(sigma: float, epsilon: float) -> None:
    reach = math.ceil(12 * sigma) + 3
    x = np.arange(-reach, reach + 1)
    mass = np.exp(-(x**2) / (2 * sigma**2))
    mass /= mass.sum()
    moved = np.roll(mass, 1)
    here, there = np.outer(mass, mass), np.outer(moved, np.roll(mass, -1))
    slow = np.maximum(here - math.exp(epsilon) * there, 0).sum()
    assert moved_count_delta(sigma, epsilon) == pytest.approx(slow, rel=1e-6, abs=1e-18)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-5), (0.5, 1e-5), (1.0, 1e-6), (4.0, 1e-5)])
def test_noise_that_runs_is_accounted_for(epsilon: float, delta: float) -> None:
    mechanism = NoiseCluster(num_clusters=20, num_classes=10, epsilon=epsilon, delta=delta)
    least = equation5_sigma(epsilon, delta)
    assert least <= mechanism.sigma < 1.2 * least
    assert moved_count_delta(mechanism.sigma, epsilon) <= delta
    one = from_discrete_gaussian_mechanism(mechanism.sigma, sensitivity=1, value_discretization_interval=1e-4)
    library = one.self_compose(2).get_epsilon_for_delta(delta)
    assert library == pytest.approx(epsilon, rel=0.15)
    assert library <= epsilon * 1.001 + 2e-4  # its grid is pessimistic


def test_noise_cluster_names_clusters_by_their_majority() -> None:
    clusters = np.arange(3000) % 3
    labels = (clusters + 1) % 3
    mechanism = NoiseCluster(num_clusters=3, num_classes=3, epsilon=0.5, delta=1e-5)
    found = mechanism.release(clusters, labels, SeededNoise(1))
    assert np.array_equal(found.label, labels) and label_accuracy(found.label, labels) == 1.0
    assert label_counts(clusters, labels, 3, 3).tolist() == [[0, 1000, 0], [0, 0, 1000], [1000, 0, 0]]
    noisy = mechanism.noisy_counts(np.zeros((3, 3), dtype=int), SystemNoise())
    assert noisy.shape == (3, 3) and noisy.any()


def _seen(counts: list[int], shrink: float, *, draws: int = 40_000) -> float:
    """How often the first of two classes wins, in one cluster, with the real noise or less."""
    mechanism = NoiseCluster(num_clusters=2, num_classes=2, epsilon=1.0, delta=1e-5)
    noise = SeededNoise(counts[0])
    drawn = noise.discrete_gaussian((draws, 2), sigma=mechanism.sigma / shrink)
    return float(np.mean((np.array(counts) + drawn).argmax(axis=1) == 0))


def test_an_observer_learns_no_more_than_epsilon() -> None:
    """Neighbours on the edge: the winner's odds move by less than e^ε; with little noise, by more."""
    for counts, neighbour in (([5, 5], [4, 6]), ([20, 30], [19, 31])):
        ratio = _seen(counts, 1.0) / max(_seen(neighbour, 1.0), 1e-9)
        assert math.log(max(ratio, 1e-9)) < 1.0
    assert math.log(_seen([5, 5], 20.0) / max(_seen([4, 6], 20.0), 1e-9)) > 1.0


def test_ties_fall_to_no_class_in_particular() -> None:
    tied = np.zeros((4, 2), dtype=np.int64)
    winners = [cluster_majority(np.arange(4), tied, SeededNoise(seed)) for seed in range(50)]
    assert 60 < np.sum(winners) < 140


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoiseCluster(num_clusters=9, num_classes=10, epsilon=1, delta=1e-5), "at least the 10"),
        (lambda: NoiseCluster(num_clusters=10, num_classes=10, epsilon=1, delta=0), "delta"),
        (lambda: NoiseCluster(num_clusters=10, num_classes=10, epsilon=0, delta=1e-5), "epsilon"),
        (lambda: equation5_sigma(1e-12, 1e-12), "noise of more than"),
        (lambda: label_counts([0, 5], [0, 1], 3, 2), "clusters run"),
        (lambda: label_counts([0], [0, 1], 3, 2), "clusters are"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


def _shared(share: float, *, survivors: int, colluders: int = 0, clusters: int = 20) -> SharedClusterCounts:
    return SharedClusterCounts(
        num_clusters=clusters,
        num_classes=clusters // 2,
        sigma_party=share,
        survivors=survivors,
        colluders=colluders,
    )


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_shares_of_noise_cost_epsilon_and_little_less(epsilon: float) -> None:
    alone = NoiseCluster(num_clusters=20, num_classes=10, epsilon=epsilon, delta=1e-5)
    share = least_share(alone, survivors=7, colluders=1)
    spent = epsilon_of(_shared(share, survivors=7, colluders=1).cost_asked(LABEL), 1e-5)
    assert spent <= epsilon < spent * 1.01
    # The honest noise is what one place would need: both are held to the noise's exact law.
    honest = share * math.sqrt(6)
    assert honest == pytest.approx(alone.sigma, rel=2e-4)
    assert gaussian_dp_epsilon(math.sqrt(2) / honest, 1e-5) < 1.001 * epsilon


def test_noisy_counts_name_clusters_where_enough_hospitals_are_in_them() -> None:
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 6, 2400)
    labels = clusters % 3
    share = least_share(NoiseCluster(num_clusters=6, num_classes=3, epsilon=1.0, delta=1e-5), survivors=4)
    total, counts = label_counts(clusters, labels, 6, 3), _shared(share, survivors=4, clusters=6)
    for _ in range(4):
        total += SystemNoise().discrete_gaussian((6, 3), sigma=share)
    found = summed_labels(counts, total, clusters, SystemNoise(), survivors=4)
    assert label_accuracy(found, labels) == 1.0
    with pytest.raises(InputError, match="3 hospitals are in the sum: 4"):
        summed_labels(counts, total, clusters, SystemNoise(), survivors=3)
    with pytest.raises(InputError, match="the sum has the shape"):
        summed_labels(counts, total[:-1], clusters, SystemNoise(), survivors=4)


def test_what_a_federation_cannot_be() -> None:
    counts = NoiseCluster(num_clusters=20, num_classes=10, epsilon=1.0, delta=1e-5)
    for survivors, colluders, message in (
        (2, 2, "no hospital is left"),
        (0, 0, "no hospital is left"),
        (-1, 0, "survivors"),
    ):
        with pytest.raises(InputError, match=message):
            least_share(counts, survivors=survivors, colluders=colluders)
    loose = NoiseCluster(num_clusters=20, num_classes=10, epsilon=8.0, delta=1e-5)
    share = least_share(loose, survivors=500)
    assert share == math.sqrt(2)  # no share may be smaller
    assert epsilon_of(_shared(share, survivors=500).cost_asked(LABEL), 1e-5) < 8

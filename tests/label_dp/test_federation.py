"""NoiseCluster over hospitals: shares of noise, and what their sum costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.label_dp import NoiseCluster, label_accuracy, label_counts
from pate_fed.label_dp.federation import FederatedClusters
from pate_fed.privacy import SystemNoise
from pate_fed.privacy.bounds.gaussian import gaussian_dp_epsilon


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_shares_of_noise_cost_epsilon_and_little_less(epsilon: float) -> None:
    federated = FederatedClusters(
        num_clusters=20, num_classes=10, epsilon=epsilon, delta=1e-5, hospitals=9, dropouts=2, colluders=1
    )
    assert federated.honest == 6
    spent = federated.spent_with(federated.sigma_party)
    assert spent <= epsilon < spent * 1.01
    # The honest noise is no less than one place would need, and not much more: Rényi against the exact law.
    honest = federated.sigma_party * math.sqrt(6)
    alone = NoiseCluster(num_clusters=20, num_classes=10, epsilon=epsilon, delta=1e-5).sigma
    assert alone < honest < 1.3 * alone
    assert gaussian_dp_epsilon(math.sqrt(2) / honest, 1e-5) < epsilon


def test_noisy_counts_name_clusters_where_enough_hospitals_are_in_them() -> None:
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 6, 2400)
    labels = clusters % 3
    federated = FederatedClusters(
        num_clusters=6, num_classes=3, epsilon=1.0, delta=1e-5, hospitals=5, dropouts=1
    )
    total = label_counts(clusters, labels, 6, 3)
    for _ in range(4):
        total += SystemNoise().discrete_gaussian((6, 3), sigma=federated.sigma_party)
    found = federated.release(total, clusters, SystemNoise(), survivors=4)
    assert label_accuracy(found.label, labels) == 1.0 and found.private
    with pytest.raises(InputError, match="3 hospitals are in the sum: 4"):
        federated.release(total, clusters, SystemNoise(), survivors=3)
    with pytest.raises(InputError, match="the sum has the shape"):
        federated.release(total[:-1], clusters, SystemNoise(), survivors=4)


def test_what_a_federation_cannot_be() -> None:
    good = {"num_clusters": 20, "num_classes": 10, "epsilon": 1.0, "delta": 1e-5, "hospitals": 5}
    for wrong, message in (
        ({"dropouts": 3, "colluders": 2}, "no hospital is left"),
        ({"num_clusters": 9}, "at least the 10 classes"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"hospitals": 0}, "hospitals"),
    ):
        with pytest.raises(InputError, match=message):
            FederatedClusters(**{**good, **wrong})
    lots = FederatedClusters(**{**good, "epsilon": 8.0, "hospitals": 500})
    assert (
        lots.sigma_party == math.sqrt(2) and lots.spent_with(lots.sigma_party) < 8
    )  # no share may be smaller

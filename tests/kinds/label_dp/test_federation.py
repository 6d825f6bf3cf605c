"""NoiseCluster over hospitals: shares of noise, and what their sum costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.federation import least_share, summed_labels
from pate_fed.kinds.label_dp.noise_cluster import NoiseCluster, label_counts
from pate_fed.kinds.label_dp.release import label_accuracy
from pate_fed.privacy import SystemNoise
from pate_fed.privacy.bounds.conversion import gaussian_dp_epsilon
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.label_dp import SharedClusterCounts
from pate_fed.privacy.protection import LABEL


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

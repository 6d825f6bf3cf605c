"""Clusters of public inputs."""

from __future__ import annotations

import numpy as np

from pate_fed.kinds.label_dp.clusters import (
    cluster_means,
    encoder_clusters,
    fine_clusters,
    noise_clusters,
)
from pate_fed.kinds.label_dp.public import PublicInputs


def test_light_clusters_are_the_classes(public: PublicInputs, truth: np.ndarray) -> None:
    found = public.clusters(encoder_clusters, 8)
    counts = np.zeros((8, 4))
    np.add.at(counts, (found, truth), 1)
    assert counts.max(axis=1).sum() > 0.8 * len(truth)
    assert public.clusters(encoder_clusters, 8) is found  # found once


def test_the_number_of_clusters_follows_from_public_numbers() -> None:
    assert fine_clusters(60_000, 10) == 1200 and fine_clusters(100, 10) == 10
    few = noise_clusters(60_000, 10, epsilon=0.05, delta=1e-5)
    assert 50 < few < 150 < noise_clusters(60_000, 10, epsilon=1.0, delta=1e-5)
    assert noise_clusters(60_000, 10, epsilon=1e-3, delta=1e-5) == 10
    means = cluster_means(np.array([[1.0], [3.0], [5.0]], dtype=np.float32), np.array([0, 0, 2]), 3)
    assert means.tolist() == [[2.0], [0.0], [5.0]]

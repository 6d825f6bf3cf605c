"""Clusters of public inputs, found without a label; any other clusterer fits in as one function.

The light ones are k-means, on the encoder's self-supervised features or on principal components of pixels.
`Scan` in `scan` is the paper's. With many small clusters a majority says more, but each majority is
less sure: `noise_clusters` says how many NoiseCluster can name.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pate_fed.privacy.label_dp import equation5_sigma

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

MOST = 1200  # more small clusters cost time, and smoothing joins them again
COMPONENTS = 50
_LARGE = 7.0  # records a cluster in units of σ, so that a majority stands out


class ClusterInputs(Protocol):
    """What a clusterer is shown of the public inputs."""

    images: NDArray[np.uint8]  # (n, H, W, C)
    shape: tuple[int, int, int]  # of one image
    device: str
    flip: bool  # whether a mirrored image shows the same

    @property
    def features(self) -> Floats:
        """The encoder's features, float32 (n, d)."""


class Clusterer(Protocol):
    """A function of public inputs: of `images`, uint8 (n, H, W, C), or of `features`, float32 (n, d)."""

    def __call__(self, inputs: ClusterInputs, num_clusters: int, *, seed: int) -> Ints:
        """The cluster of each input, int64 (n,), 0 .. `num_clusters` - 1."""


def encoder_clusters(inputs: ClusterInputs, num_clusters: int, *, seed: int) -> Ints:
    """K-means on the features of the encoder that was fitted to these inputs."""
    return _kmeans(inputs.features, num_clusters, seed)


def pixel_clusters(inputs: ClusterInputs, num_clusters: int, *, seed: int) -> Ints:
    """K-means on the principal components of the pixels."""
    from sklearn.decomposition import PCA

    pixels = inputs.images.reshape(len(inputs.images), -1).astype(np.float32) / 255
    most = min(COMPONENTS, *pixels.shape)
    found = PCA(most, svd_solver="randomized", random_state=seed).fit_transform(pixels)
    return _kmeans(found.astype(np.float32), num_clusters, seed)


def fine_clusters(records: int, num_classes: int) -> int:
    """How many clusters DenoiseSSL takes: 50 records each, 1,200 at most; smoothing joins what is alike."""
    return _within(records / 50, records, num_classes)


def noise_clusters(records: int, num_classes: int, *, epsilon: float, delta: float) -> int:
    """How many clusters NoiseCluster can name: 7σ records in each. Public numbers only.

    Raises:
        InputError: ε or δ out of range.
    """
    return _within(records / (_LARGE * equation5_sigma(epsilon, delta)), records, num_classes)


def cluster_means(features: Floats, clusters: Ints, num_clusters: int) -> Floats:
    """Mean features of each cluster, float32 (clusters, d); 0 for an empty one."""
    sums = np.zeros((num_clusters, features.shape[1]))
    np.add.at(sums, clusters, features)
    counts = np.bincount(clusters, minlength=num_clusters)
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)


def _within(wanted: float, records: int, num_classes: int) -> int:
    least = num_classes
    return min(records, max(least, min(MOST, math.floor(wanted))))


def _kmeans(features: Floats, num_clusters: int, seed: int) -> Ints:
    from sklearn.cluster import MiniBatchKMeans

    size = min(len(features), max(2048, 3 * num_clusters))
    fitted = MiniBatchKMeans(num_clusters, batch_size=size, n_init=1, max_iter=20, random_state=seed)
    return np.asarray(fitted.fit_predict(features), dtype=np.int64)

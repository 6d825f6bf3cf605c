"""NoiseCluster: clusters from public features alone, noisy class counts in each, one label a cluster.

Tang et al., PoPETs 2022, Algorithms 1 and 2, Theorem 1: a replaced label moves one count from one class to
another within one cluster, so the L2 sensitivity of all counts is √2 and clusters do not compose. Equation 5
is for continuous Gaussian noise. What runs is the discrete Gaussian, which can need a little more: its own δ
is computed exactly (`pate_fed.privacy.label_dp`), and both must hold.

Where labels are at many hospitals each counts its own, adds its share of the noise, and masks: the
coordinator learns the noisy counts of all, and of no hospital its own. The shares are discrete Gaussians,
whose sum is close to one but is none: the cost is that of `pate_fed.privacy.label_dp.SharedClusterCounts`,
ρ = 1/σ² and its slack on the two counts that differ (arXiv 2102.06387, Proposition 14), which no others can
add to, as their laws are the same for both neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.release import PrivateLabels, check_labels
from pate_fed.privacy.bounds.conversion import moved_count_delta
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.checks import check_count
from pate_fed.privacy.label_dp import ClusterCounts, SharedClusterCounts, equation5_sigma
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.mechanisms.noisy_max import noisy_argmax
from pate_fed.privacy.protection import LABEL

Ints = NDArray[np.int64]

_LEAST_SHARE = math.sqrt(2)  # of noise at one hospital: below, sums of discrete Gaussians are far from one
_STEP = 1e-4  # of σ, by which noise grows until the discrete Gaussian's own δ is small enough


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseCluster:
    """Noisy majority of each cluster, (ε, δ)-label-DP.

    Raises:
        InputError: fewer clusters than classes, or ε or δ out of range.
    """

    num_clusters: int
    num_classes: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_count("num_classes", self.num_classes, least=2)
        check_count("num_clusters", self.num_clusters, least=1)
        if self.num_clusters < self.num_classes:
            raise InputError(
                f"num_clusters={self.num_clusters}: must be at least the {self.num_classes} classes, or a "
                "class has no cluster"
            )
        equation5_sigma(self.epsilon, self.delta)

    @property
    def sigma(self) -> float:
        """σ in labels: Equation 5's, or a little more where the discrete Gaussian asks for it."""
        found = equation5_sigma(self.epsilon, self.delta)
        while moved_count_delta(found, self.epsilon) > self.delta:
            found *= 1 + _STEP
        return found

    @property
    def how(self) -> str:
        """The mechanism as text."""
        return f"noisy majority of {self.num_clusters} clusters, σ={self.sigma:.4g} labels"

    @property
    def on_ledger(self) -> ClusterCounts:
        """The release as a row of the ledger states it."""
        return ClusterCounts(
            num_clusters=self.num_clusters,
            num_classes=self.num_classes,
            sigma=self.sigma,
            epsilon=float(self.epsilon),
            delta=float(self.delta),
        )

    def noisy_counts(self, counts: ArrayLike, noise: NoiseSource) -> Ints:
        """Counts with noise, int64 (clusters, classes).

        Raises:
            InputError: counts of another shape, or negative ones.
        """
        array = np.asarray(counts)
        shape = self.num_clusters, self.num_classes
        if array.shape != shape or array.dtype.kind not in "iu" or array.min() < 0:
            raise InputError(f"counts are {array.dtype} {array.shape}: whole numbers {shape} are meant")
        return array.astype(np.int64) + noise.discrete_gaussian(shape, sigma=self.sigma)

    def release(self, clusters: ArrayLike, labels: ArrayLike, noise: NoiseSource) -> PrivateLabels:
        """The class of each record's cluster.

        Shapes: `clusters` int (n,) from public features alone, `labels` int (n,).

        Raises:
            InputError: clusters or labels that are none, or outside their range.
        """
        counts = label_counts(clusters, labels, self.num_clusters, self.num_classes)
        noisy = self.noisy_counts(counts, noise)
        return PrivateLabels.by(self, cluster_majority(np.asarray(clusters), noisy, noise), noise)


def cluster_majority(clusters: Ints, noisy: Ints, noise: NoiseSource) -> Ints:
    """Each record's label by its cluster's largest noisy count, int64 (n,); ties fall to any class alike.

    Shapes: `clusters` int64 (n,), `noisy` int64 (clusters, classes), wherever these were added up.
    """
    return noisy_argmax(noisy, np.zeros_like(noisy), noise)[clusters]


def label_counts(clusters: ArrayLike, labels: ArrayLike, num_clusters: int, num_classes: int) -> Ints:
    """How often each class occurs in each cluster (LDP, Algorithm 1), int64 (clusters, classes).

    Raises:
        InputError: clusters and labels that do not fit together, or outside their range.
    """
    true = check_labels(labels, num_classes)
    group = np.asarray(clusters)
    if group.shape != true.shape or group.dtype.kind not in "iu":
        raise InputError(f"clusters are {group.dtype} {group.shape}: whole numbers {true.shape} are meant")
    if group.min() < 0 or group.max() >= num_clusters:
        raise InputError(
            f"clusters run from {group.min()} to {group.max()}: 0 to {num_clusters - 1} is meant"
        )
    flat = np.bincount(group.astype(np.int64) * num_classes + true, minlength=num_clusters * num_classes)
    return np.asarray(flat.reshape(num_clusters, num_classes), dtype=np.int64)


def least_share(counts: NoiseCluster, *, survivors: int, colluders: int = 0) -> float:
    """The least noise of one hospital on each of the `counts`, in labels, to one part in 10,000.

    It keeps their ε where at least `survivors` are in the sum, of which `colluders` tell their noise.

    Raises:
        InputError: no honest hospital left.
    """
    check_count("survivors", survivors), check_count("colluders", colluders)
    if survivors <= colluders:
        raise InputError(
            f"survivors={survivors}, colluders={colluders}: no hospital is left whose noise nobody knows"
        )

    def suffices(share: float) -> bool:
        shared = SharedClusterCounts(
            num_clusters=counts.num_clusters,
            num_classes=counts.num_classes,
            sigma_party=share,
            survivors=survivors,
            colluders=colluders,
        )
        return epsilon_of(shared.cost_asked(LABEL), counts.delta) <= counts.epsilon

    low, high = _LEAST_SHARE, 1e9
    if suffices(low):
        return low
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def summed_labels(
    counts: SharedClusterCounts, total: Ints, clusters: Ints, noise: NoiseSource, *, survivors: int
) -> Ints:
    """Labels of all records from the unmasked sum, int64 (clusters, classes), of so many `survivors`.

    Shapes: `clusters` int64 (n,) of the records that are to be labelled.

    Raises:
        InputError: fewer survivors than the noise was shared out for, or a sum of another length.
    """
    if survivors < counts.survivors:
        raise InputError(
            f"{survivors} hospitals are in the sum: {counts.survivors} at least are meant, or there is too "
            "little noise in it"
        )
    shape = counts.num_clusters, counts.num_classes
    if total.shape != shape:
        raise InputError(f"the sum has the shape {total.shape}: {shape} is meant")
    return cluster_majority(clusters, total, noise)

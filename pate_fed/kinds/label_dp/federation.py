"""Private labels at many hospitals, with public features: two ways in which none trusts anyone.

Local: each hospital runs `RandRes` on its own labels and sends what comes out. Summed: each hospital counts
its labels in public clusters, adds its share of the noise, and masks; the coordinator learns the noisy counts
of all and of no hospital its own. One label moves one count of one cluster, so the L2 sensitivity is √2 and
the noise is paid for once, whatever the number of clusters.

The shares are discrete Gaussians, whose sum is close to one but is none: the cost is that of
`pate_fed.privacy.label_dp.SharedClusterCounts`, ρ = 1/σ² and its slack on the two counts that differ (arXiv
2102.06387, Proposition 14), which no others can add to, as their laws are the same for both neighbours.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.noise_cluster import NoiseCluster, cluster_majority
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.checks import check_count
from pate_fed.privacy.label_dp import SharedClusterCounts
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.protection import LABEL

Ints = NDArray[np.int64]

_LEAST_SHARE = math.sqrt(2)  # of noise at one hospital: below, sums of discrete Gaussians are far from one


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

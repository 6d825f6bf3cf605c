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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.label_dp.noise_cluster import NoiseCluster, cluster_majority
from pate_fed.label_dp.release import PrivateLabels
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.checks import check_count, check_delta, check_epsilon
from pate_fed.privacy.label_dp import SharedClusterCounts
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.protection import LABEL

__all__ = ["FederatedClusters"]

Ints = NDArray[np.int64]

_LEAST_SHARE = math.sqrt(2)  # of noise at one hospital: below, sums of discrete Gaussians are far from one


@dataclass(frozen=True, slots=True, kw_only=True)
class FederatedClusters:
    """NoiseCluster over `hospitals`, of which up to `dropouts` may fail and `colluders` tell their noise.

    Raises:
        InputError: fewer clusters than classes, no honest hospital left, or a budget out of range.
    """

    num_clusters: int
    num_classes: int
    epsilon: float
    delta: float
    hospitals: int
    dropouts: int = 0
    colluders: int = 0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon), check_delta(self.delta)
        check_count("dropouts", self.dropouts), check_count("colluders", self.colluders)
        check_count("hospitals", self.hospitals, least=1)
        if self.honest < 1:
            raise InputError(
                f"hospitals={self.hospitals}, dropouts={self.dropouts}, colluders={self.colluders}: no "
                "hospital is left whose noise nobody knows"
            )
        # Holds clusters and classes to its rules.
        NoiseCluster(
            num_clusters=self.num_clusters,
            num_classes=self.num_classes,
            epsilon=self.epsilon,
            delta=self.delta,
        )

    @property
    def honest(self) -> int:
        """Hospitals whose noise is in the sum and known to nobody else, at least."""
        return self.hospitals - self.dropouts - self.colluders

    @property
    def sigma_party(self) -> float:
        """The noise of one hospital on each count, in labels: the least, to one part in 10,000."""
        low, high = _LEAST_SHARE, 1e9
        if self.spent_with(low) <= self.epsilon:
            return low
        while high / low > 1.0001:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self.spent_with(middle) <= self.epsilon else (middle, high)
        return high

    def with_shares(self, sigma_party: float) -> SharedClusterCounts:
        """The sum as a row of the ledger states it, where each hospital's noise is of `sigma_party` labels.

        Raises:
            InputError: shares that are too small for a bound.
        """
        return SharedClusterCounts(
            num_clusters=self.num_clusters,
            num_classes=self.num_classes,
            sigma_party=sigma_party,
            survivors=self.hospitals - self.dropouts,
            colluders=self.colluders,
        )

    @property
    def on_ledger(self) -> SharedClusterCounts:
        """The release as a row of the ledger states it."""
        return self.with_shares(self.sigma_party)

    @property
    def how(self) -> str:
        """The mechanism as text."""
        return (
            f"noisy majority of {self.num_clusters} clusters, noise of at least {self.honest} hospitals, "
            f"σ={self.sigma_party:.4g} labels each, summed under masks"
        )

    def spent_with(self, sigma_party: float) -> float:
        """ε at δ, against anyone, where each hospital's noise is of `sigma_party` labels."""
        return epsilon_of(self.with_shares(sigma_party).cost_asked(LABEL), self.delta)

    def release(self, total: Ints, clusters: Ints, noise: NoiseSource, *, survivors: int) -> PrivateLabels:
        """Labels of all records from the unmasked sum, int64 (clusters, classes).

        Shapes: `clusters` int64 (n,) of the records that are to be labelled.

        Raises:
            InputError: fewer survivors than the noise was shared out for, or a sum of another length.
        """
        if survivors < self.hospitals - self.dropouts:
            raise InputError(
                f"{survivors} hospitals are in the sum: {self.hospitals - self.dropouts} at least are meant, "
                "or there is too little noise in it"
            )
        if total.shape != (self.num_clusters, self.num_classes):
            raise InputError(
                f"the sum has the shape {total.shape}: ({self.num_clusters}, {self.num_classes}) is meant"
            )
        return PrivateLabels.by(self, cluster_majority(clusters, total, noise), noise)

"""Label differential privacy: features are public, one record's label is replaced. Closed forms and ledger.

LDP is Tang et al., PoPETs 2022. Anything computed from released labels is post-processing. The mechanisms
here are what a ledger's row says of a release, with its cost; those that draw are in
`pate_fed.kinds.label_dp`. A release costs the same however many records are in it: a replaced label moves one
response, or one count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

from pate_fed.errors import InputError
from pate_fed.format import delta_text
from pate_fed.privacy.bounds.conversion import gaussian_delta, moved_count_delta
from pate_fed.privacy.bounds.cost import Cost, OutcomeCost
from pate_fed.privacy.bounds.noise_law import GAUSSIAN
from pate_fed.privacy.checks import (
    check_count,
    check_delta,
    check_epsilon,
    check_scale,
)
from pate_fed.privacy.mechanisms.events import Mechanism, hospital_noise, sum_distance, sum_sigma
from pate_fed.privacy.protection import RECORD, Protection

MOST_SIGMA = 1e6
_MOVED = 2  # counts that differ where one label is replaced


@lru_cache(maxsize=256)
def equation5_sigma(epsilon: float, delta: float) -> float:
    """The least σ with Φ(√2/(2σ) - εσ/√2) - e^ε Φ(-√2/(2σ) - εσ/√2) ≤ δ (LDP, Theorem 1), in labels.

    Raises:
        InputError: ε or δ out of range, or so small that σ would pass 10^6.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)

    def holds(sigma: float) -> bool:
        return gaussian_delta(math.sqrt(2) / sigma, epsilon) <= delta

    low, high = 1e-3, MOST_SIGMA
    if not holds(high):
        raise InputError(
            f"epsilon={epsilon:g}, delta={delta_text(delta)}: noise of more than {MOST_SIGMA:g} labels would "
            "be needed; larger ones are meant"
        )
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if holds(middle) else (middle, high)  # δ falls as σ grows
    return high


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRelease(Mechanism):
    """A release of private labels as a ledger's row states it: it costs the same for any count of records."""

    num_teachers: ClassVar[int] = 0
    answers_all: ClassVar[bool] = True
    num_classes: int

    def __post_init__(self) -> None:
        check_count("num_classes", self.num_classes, least=2)

    def cost(self, asked: int, answered: int, protection: Protection) -> Cost:
        """What the whole release costs."""
        return self.cost_asked(protection)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelResponse(LabelRelease):
    """Every record's label is answered about by itself, `epsilon`-DP with δ = 0.

    Responses of different records compose in parallel: no label is in two of them.
    """

    epsilon: float

    def __post_init__(self) -> None:
        LabelRelease.__post_init__(self)
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))

    def cost_asked(self, protection: Protection) -> Cost:
        """Pure ε, once."""
        return Cost(epsilon=Fraction(self.epsilon))


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomisedResponse(LabelResponse):
    """The label with probability e^ε/(e^ε + K - 1), else another class (LDP, Theorem 2)."""

    name: ClassVar[str] = "randomised-response"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorResponse(LabelResponse):
    """Randomised response among the classes that a public prior makes likely (LP-2ST's second stage)."""

    name: ClassVar[str] = "prior-response"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceResponse(LabelResponse):
    """Discrete Laplace noise of scale at least 2/ε on the one-hot label (ALIBI)."""

    name: ClassVar[str] = "laplace-response"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCounts(LabelRelease):
    """NoiseCluster: discrete Gaussian noise of `sigma` labels on the class counts of public clusters.

    (`epsilon`, `delta`)-DP by the noise's own privacy profile (`moved_count_delta`).

    Raises:
        InputError: `sigma` is too small for that.
    """

    name: ClassVar[str] = "noise-cluster"
    num_clusters: int
    sigma: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        LabelRelease.__post_init__(self)
        check_count("num_clusters", self.num_clusters, least=1)
        check_scale("sigma", self.sigma), check_epsilon(self.epsilon)
        if not moved_count_delta(self.sigma, self.epsilon) <= check_delta(self.delta):
            raise InputError(f"sigma={self.sigma!r}: too small for ε={self.epsilon!r} at δ={self.delta!r}")

    def cost_asked(self, protection: Protection) -> Cost:
        """(ε, δ), once: clusters are disjoint and do not compose (LDP, Theorem 1)."""
        return Cost(epsilon=Fraction(self.epsilon), delta=Fraction(self.delta))


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedClusterCounts(LabelRelease):
    """NoiseCluster over hospitals: each adds discrete Gaussian noise of `sigma_party` labels to its counts.

    At least `survivors` hospitals are in the sum, and at most `colluders` of them tell their noise. Sums of
    discrete Gaussians are close to one, and the slack is on the two counts that differ.
    """

    name: ClassVar[str] = "noise-cluster-shares"
    num_clusters: int
    sigma_party: float
    survivors: int
    colluders: int

    def __post_init__(self) -> None:
        LabelRelease.__post_init__(self)
        check_count("num_clusters", self.num_clusters, least=1)
        self.cost_asked(RECORD)

    def cost_asked(self, protection: Protection) -> Cost:
        """The exact law of the noise that nobody knows, as a sum of shares is near to (`OutcomeCost.alone`).

        Beside others it is ρ = 1/σ² and the slack (arXiv 2102.06387, Proposition 14).
        """
        seen = hospital_noise(
            sigma_party=self.sigma_party, survivors=self.survivors, colluders=self.colluders
        )
        totals = seen.cost(1, RECORD, num_classes=_MOVED) or Cost()
        honest = self.survivors - self.colluders
        counts = OutcomeCost(
            of="counts",
            kind=GAUSSIAN,
            scale=sum_sigma(self.sigma_party, honest),
            votes=1,
            totals=totals.as_totals.rho,
            distance=sum_distance(self.sigma_party, honest),
        )
        return Cost(outcomes=((counts, 1),))


LABEL_MECHANISMS: dict[str, type[LabelRelease]] = {
    kind.name: kind
    for kind in (RandomisedResponse, PriorResponse, LaplaceResponse, ClusterCounts, SharedClusterCounts)
}

"""What hospitals agree to before they answer about their labels, and what that costs at most.

Both sides use it: the coordinator to ask and to release, a hospital to hold the terms against its policy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.about import About
from pate_fed.config.trust import AT_HOSPITALS, TrustModel
from pate_fed.errors import InputError
from pate_fed.kinds.base import Bounds
from pate_fed.kinds.label_dp.federation import least_share
from pate_fed.kinds.label_dp.noise_cluster import NoiseCluster
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.kinds.terms import Terms
from pate_fed.kinds.words import Words
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.label_dp import LabelRelease, SharedClusterCounts
from pate_fed.privacy.ledger.terms import is_digest
from pate_fed.privacy.mechanisms.events import NOISY_COUNTS, NOISY_LABELS, CoordinatorView
from pate_fed.privacy.mechanisms.noise import NoiseSource, noise_from_seed
from pate_fed.privacy.protection import LABEL, LEAST_PARTIES, Assumptions
from pate_fed.protocol.agreed import Agreed
from pate_fed.structure import check, entries, refusal, same_as, setting

Ints = NDArray[np.int64]

RANDRES = "randres"
COUNTS_UNDER_MASKS = "cluster-counts"
_MOST_COUNTS = 10**8  # in one message


def clusters_digest(clusters: Ints) -> str:
    """SHA-256 hex of public clusters, int64 (n,)."""
    return hashlib.sha256(np.asarray(clusters).astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTerms(Agreed):
    """A study of private labels of `pool_size` public inputs, fixed before the first label is asked about.

    `mechanism` is "randres", by which each hospital responds about its own labels (δ = 0, nothing is masked),
    or "cluster-counts": each counts its labels in `num_clusters` public clusters, adds noise of `sigma_party`
    labels to each count and masks; sums over `least_clients` hospitals, less `colluders` that may tell their
    noise, keep ε at δ. With a `seed` simulated hospitals' noise is seeded, and protects nobody.

    Raises:
        InputError: a value out of range, or of the other mechanism.
    """

    study: str = same_as(Terms, "study")
    mechanism: str = setting(choices=(RANDRES, COUNTS_UNDER_MASKS))
    num_classes: int = setting(low=2, high=10_000)
    pool_size: int = setting(low=1, high=10**9)
    pool_digest: str = same_as(Terms, "pool_digest")
    num_clients: int = setting(low=1, high=10**6)
    least_clients: int = setting(low=1, high=10**6)
    epsilon: float = setting(low=0, high=1e6)
    delta: float = setting(low=0, high=1)
    num_clusters: int = setting(0, low=0, high=10**6)
    clusters_digest: str = setting("", most=64)
    sigma_party: float | None = setting(None, unit="labels", low=0, high=1e9)
    colluders: int = setting(0, low=0, high=10**6)
    seed: int | None = setting(None, low=0, high=2**64 - 1)
    classes: tuple[str, ...] = setting((), most=100)

    def __post_init__(self) -> None:
        check(self)
        if self.least_clients > self.num_clients:
            raise refusal(self, "least_clients", f"at most {self.num_clients} is meant")
        if self.num_clusters * self.num_classes > _MOST_COUNTS:
            raise refusal(self, "num_clusters", f"at most {_MOST_COUNTS:,} counts is meant")
        if self.secure_sum:
            self._check_counts()
        else:
            self._check_response()

    def _check_response(self) -> None:
        RandRes(num_classes=self.num_classes, epsilon=self.epsilon)
        summed = (self.num_clusters, self.clusters_digest, self.sigma_party, self.colluders)
        if summed != (0, "", None, 0) or self.delta != 0:
            raise InputError("randomised response has δ = 0, and neither clusters nor shares of noise")

    def _check_counts(self) -> None:
        NoiseCluster(
            num_clusters=self.num_clusters,
            num_classes=self.num_classes,
            epsilon=self.epsilon,
            delta=self.delta,
        )
        if not is_digest(self.clusters_digest):
            raise refusal(self, "clusters_digest", "a SHA-256 in hexadecimal is meant")
        if self.sigma_party is None or not self.spent <= self.epsilon:
            raise refusal(self, "sigma_party", "more noise is meant, or ε is passed")

    @property
    def counts(self) -> SharedClusterCounts:
        """What leaves all hospitals where their counts are summed, as a row of the ledger states it."""
        return SharedClusterCounts(
            num_clusters=self.num_clusters,
            num_classes=self.num_classes,
            sigma_party=self.sigma_party or 0.0,
            survivors=self.least_clients,
            colluders=self.colluders,
        )

    @property
    def on_ledger(self) -> LabelRelease:
        """What leaves all hospitals, as a row of the ledger states it."""
        if self.secure_sum:
            return self.counts
        return RandRes(num_classes=self.num_classes, epsilon=self.epsilon).on_ledger

    @property
    def how(self) -> str:
        """The mechanism as text."""
        if self.sigma_party is None:
            return RandRes(num_classes=self.num_classes, epsilon=self.epsilon).how
        return (
            f"noisy majority of {self.num_clusters} clusters, noise of at least "
            f"{self.least_clients - self.colluders} hospitals, σ={self.sigma_party:.4g} labels each, summed "
            "under masks"
        )

    @property
    def words(self) -> Words:
        """What is said of the study."""
        from pate_fed.kinds.labels_words import LabelWords

        return LabelWords(self)

    # What terms of other kinds have beside, for those who read either.

    @property
    def about(self) -> About:
        """Nobody says who asks, and what for."""
        return About()

    @property
    def table(self) -> None:
        """Inputs may be of any kind."""

    @property
    def privacy(self) -> LabelTerms:
        """These: they have the budget, the unit and the adjacency themselves."""
        return self

    @property
    def unit(self) -> str:
        """One record's label."""
        return LABEL.unit

    @property
    def adjacency(self) -> str:
        """It is another."""
        return LABEL.adjacency

    def assumptions(self) -> Assumptions:
        """None: its mechanisms are ours."""
        return Assumptions()

    @property
    def seen(self) -> CoordinatorView:
        """What the coordinator sees of the labels."""
        return NOISY_COUNTS if self.secure_sum else NOISY_LABELS

    @property
    def spent(self) -> float:
        """ε at δ of what leaves all hospitals, against the coordinator and everyone else alike."""
        return epsilon_of(self.counts.cost_asked(LABEL), self.delta) if self.secure_sum else self.epsilon

    @property
    def secure_sum(self) -> bool:
        """Whether what leaves a hospital is masked."""
        return self.mechanism == COUNTS_UNDER_MASKS

    @property
    def adds_noise(self) -> bool:
        """Whether what is summed has noise in it: always."""
        return self.secure_sum

    @property
    def bounds(self) -> Bounds:
        """Counts of all clusters at once; labels after randomised response are no sum."""
        return Bounds(rows=self.num_clusters, columns=self.num_classes)

    @property
    def max_queries(self) -> int:
        """Requests for answers about labels: a hospital answers one."""
        return 1

    def same_answer(self, other: LabelTerms) -> bool:
        """Whether an answer that was given under `other` may be given again under these.

        Randomised response is drawn once for labels and kept: the kept answer tells nothing new under any
        terms by which it would have been drawn alike. Counts are answered under the very terms, once.
        """
        if self.secure_sum or other.secure_sum:
            return self == other
        names = ("num_classes", "pool_size", "pool_digest", "epsilon", "seed")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def hospital_noise(self, number: int) -> NoiseSource:
        """The source of a simulated hospital: seeded where the terms have a seed, else the system's."""
        if self.seed is None:
            return noise_from_seed(None)
        text = f"{self.seed}/labels/{number}".encode()
        return noise_from_seed(int.from_bytes(hashlib.sha256(text).digest()[:4], "big"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicPool:
    """The public inputs whose labels are private: how many, their SHA-256 hex, and how many classes."""

    size: int
    digest: str
    num_classes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicClusters:
    """The cluster of each public input, int64 (n,), of `count`, and the δ of noisy counts in them."""

    place: Ints = field(repr=False)
    count: int
    delta: float


def label_terms(
    pool: PublicPool,
    *,
    num_clients: int,
    quorum: float,
    epsilon: float,
    seed: int | None,
    clusters: PublicClusters | None = None,
    study: str = "label-dp",
) -> LabelTerms:
    """Terms of randomised response or, with `clusters`, of counts under masks.

    At least the share `quorum` of the hospitals must answer; under masks two thirds at least, and one in ten
    may tell the coordinator its own noise, as in a study with votes.

    Raises:
        InputError: a value out of range, or too few hospitals to hide one among.
    """
    if clusters is not None and num_clients < LEAST_PARTIES:
        raise InputError(
            f"hospitals={num_clients}: a sum over fewer than {LEAST_PARTIES} hides too little; give more of "
            "them, or a method with randres"
        )
    trust = TrustModel() if clusters is None else TrustModel(secure_sum=True, noise_at=AT_HOSPITALS)
    least = trust.least_voters(num_clients, quorum)
    counted: dict[str, Any] = {}
    if clusters is not None:
        colluders = trust.shares(num_clients, least).colluders
        counts = NoiseCluster(
            num_clusters=clusters.count, num_classes=pool.num_classes, epsilon=epsilon, delta=clusters.delta
        )
        counted = {
            "num_clusters": clusters.count,
            "clusters_digest": clusters_digest(clusters.place),
            "sigma_party": least_share(counts, survivors=least, colluders=colluders),
            "colluders": colluders,
        }
    return LabelTerms(
        study=study,
        mechanism=RANDRES if clusters is None else COUNTS_UNDER_MASKS,
        num_classes=pool.num_classes,
        pool_size=pool.size,
        pool_digest=pool.digest,
        num_clients=num_clients,
        least_clients=least,
        epsilon=epsilon,
        delta=0.0 if clusters is None else clusters.delta,
        seed=seed,
        **counted,
    )


_FIELDS = entries(LabelTerms)  # read now: one that cannot be read is no refusal by every hospital

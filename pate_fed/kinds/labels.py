"""Private labels of public inputs: what hospitals agree to before they answer, and what it costs at most."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.kinds.base import Bounds, Check, KindTerms
from pate_fed.kinds.label_dp.noise_cluster import NoiseCluster
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.label_dp import LabelRelease, SharedClusterCounts
from pate_fed.privacy.ledger.terms import LedgerTerms, is_digest
from pate_fed.privacy.mechanisms.events import NOISY_COUNTS, NOISY_LABELS, CoordinatorView
from pate_fed.privacy.protection import LABEL
from pate_fed.protocol.messages import digest_of
from pate_fed.structure import check, setting
from pate_fed.structure.parts import PartIdentity

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms
    from pate_fed.kinds.words import Words

Ints = NDArray[np.int64]

PRIVATE_LABELS = "private-labels"
RANDRES = "randres"
COUNTS_UNDER_MASKS = "cluster-counts"
THERE, LABEL_OF = 0, 1
"""Columns of an answer by randomised response: whether an input is the hospital's, and then its label."""

_MOST_COUNTS = 10**8  # in one message
_NUMBER = 8  # bytes of an int64
_CLEARLY = 0.9  # of the asked ε: what is spent below that is said


def clusters_file(clusters: Ints) -> bytes:
    """Public clusters, int64 (n,), as hospitals get them with the terms."""
    return np.asarray(clusters).astype("<i8").tobytes()


def clusters_digest(clusters: Ints) -> str:
    """SHA-256 hex of public clusters, int64 (n,)."""
    return hashlib.sha256(clusters_file(clusters)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseBounds(Bounds):
    """Of labels of `classes` after randomised response: a row an input, (1, label) where it is there, else 0.

    So the sum over hospitals lists whose inputs are whose, where no two claim one.
    """

    classes: int

    def check(self, answer: Ints, *, rows: int) -> None:
        """Refuse an answer that no honest hospital can give.

        Raises:
            IntegrityError: wrong type or shape, no label, or one that is no class.
        """
        Bounds.check(self, answer, rows=rows)
        there, label = answer[:, THERE], answer[:, LABEL_OF]
        if not np.isin(there, (0, 1)).all() or not there.any():
            raise IntegrityError("the answer does not mark the hospital's own inputs")
        if (label < 0).any() or (label >= self.classes).any() or label[there == 0].any():
            raise IntegrityError("the answer holds labels that are no classes, or of others' inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTerms(KindTerms):
    """How the labels of the pool's inputs, which hospitals have, are made private at each of them.

    `method` is "randres", by which each hospital responds about its own labels (δ = 0, nothing is masked),
    or "cluster-counts": each counts its labels in `num_clusters` public clusters, adds noise of
    `Terms.sigma_party` labels to each count and masks; the budget ε at δ is kept by the sum over the fewest
    hospitals, less those that may tell their noise. A hospital is asked once.

    Raises:
        InputError: a value of the wrong type or out of range.
    """

    reads_inputs: ClassVar[bool] = False
    once_for_all: ClassVar[bool] = True
    units: ClassVar[tuple[str, ...]] = (LABEL.unit,)
    kind: str = setting(PRIVATE_LABELS, choices=(PRIVATE_LABELS,))
    method: str = setting(choices=(RANDRES, COUNTS_UNDER_MASKS))
    num_clusters: int = setting(0, low=0, high=10**6)
    clusters: str = setting("", most=64)

    def __post_init__(self) -> None:
        check(self)

    def checks(self, terms: Terms) -> Iterator[Check]:
        """A budget that the mechanism keeps, and masks and shares of noise for counts alone."""
        epsilon, summed = terms.privacy.epsilon, self.method == COUNTS_UNDER_MASKS
        yield "privacy.epsilon", epsilon is not None, "a budget"
        yield "privacy.adjacency", terms.privacy.adjacency == LABEL.adjacency, LABEL.adjacency
        yield "privacy.sanitise", not terms.privacy.sanitise, "false"
        yield "secrecy.secure_sum", terms.secure_sum == summed, "masks, for counts alone,"
        yield "secrecy.noise_at", terms.adds_noise == summed, "noise at hospitals, for counts alone,"
        yield "secrecy.colluders", summed or terms.secrecy.colluders is None, "a number, for counts alone,"
        named = is_digest(self.clusters) if summed else not self.clusters
        yield "asks.clusters", named, "a SHA-256, for counts alone,"
        yield "asks.num_clusters", bool(self.num_clusters) == summed, "a number, for counts alone,"
        few = self.num_clusters * terms.num_classes <= _MOST_COUNTS
        yield "asks.num_clusters", few, f"at most {_MOST_COUNTS:,} counts"
        self._exact(terms)  # refuses what the mechanism has none for
        yield "sigma_party", not summed or self.hides_enough(terms), "more noise, or ε is passed,"

    def _exact(self, terms: Terms) -> RandRes | NoiseCluster:
        """The mechanism with all of its noise in one place."""
        classes, epsilon = terms.num_classes, terms.privacy.epsilon or 0.0
        if self.method == RANDRES:
            return RandRes(num_classes=classes, epsilon=epsilon)
        return NoiseCluster(
            num_clusters=self.num_clusters, num_classes=classes, epsilon=epsilon, delta=terms.delta
        )

    @property
    def labels(self) -> int:
        """Labels are not counted: every input may have one."""
        return 1

    @property
    def max_queries(self) -> int:
        """A hospital answers once about all of its labels."""
        return 1

    @property
    def mechanism(self) -> str:
        """The method."""
        return self.method

    @property
    def noisy_alone(self) -> bool:
        """A response is private by itself."""
        return self.method == RANDRES

    def answer_digest(self, terms: Terms) -> str:
        """Randomised response is drawn once for labels, and kept: it tells nothing new under like terms."""
        if not self.noisy_alone:
            return terms.digest
        drawn = (terms.num_classes, terms.pool_size, terms.privacy.epsilon, terms.seed)
        return digest_of(b"pate_fed/v2 response", terms.pool_digest.encode(), repr(drawn).encode())

    def bounds(self, terms: Terms) -> Bounds:
        """Counts of all clusters at once, or a response about all inputs."""
        if self.method == RANDRES:
            return ResponseBounds(rows=terms.pool_size, columns=2, classes=terms.num_classes)
        return Bounds(rows=self.num_clusters, columns=terms.num_classes, file=_NUMBER * terms.pool_size)

    def release(self, terms: Terms) -> LabelRelease:
        """What leaves all hospitals, as a row of the ledger states it."""
        return self._exact(terms).on_ledger if terms.sigma_party is None else self.shared(terms)

    def shared(self, terms: Terms) -> SharedClusterCounts:
        """The counts of all hospitals, with the noise of the fewest that may be in the sum."""
        return SharedClusterCounts(
            num_clusters=self.num_clusters,
            num_classes=terms.num_classes,
            sigma_party=terms.sigma_party or 0.0,
            survivors=terms.least_clients,
            colluders=terms.colluders,
        )

    def spent(self, terms: Terms) -> float:
        """ε at δ of what leaves all hospitals, against the coordinator and everyone else alike."""
        return epsilon_of(self.release(terms).cost_asked(LABEL), terms.delta)

    def spendable(self, terms: Terms) -> float:
        """How much of ε is spent: clearly less only where least shares of noise are more than it asks for."""
        spent, epsilon = self.spent(terms), terms.privacy.epsilon or 0.0
        return spent if spent < _CLEARLY * epsilon else epsilon

    def how(self, terms: Terms) -> str:
        """The mechanism as text."""
        if terms.sigma_party is None:
            return self._exact(terms).how
        return (
            f"noisy majority of {self.num_clusters} clusters, noise of at least "
            f"{terms.least_clients - terms.colluders} hospitals, σ={terms.sigma_party:.4g} labels each, "
            "summed under masks"
        )

    def ledger_terms(self, terms: Terms, *, noise: str, private: bool, together: bool = False) -> LedgerTerms:
        """One release about all inputs."""
        return LedgerTerms(
            study_digest=terms.digest,
            delta=terms.delta,
            mechanisms=(self.release(terms),),
            protection=LABEL,
            noise=noise,
            private=private,
            coordinator=self.view(terms, terms.least_clients),
            most_asked=terms.pool_size,
            most_answered=terms.pool_size,
        )

    def view(self, terms: Terms, voters: int) -> CoordinatorView:
        """Noisy counts over all hospitals, or each one's response."""
        return NOISY_COUNTS if terms.secure_sum else NOISY_LABELS

    def require_use(self, terms: Terms) -> None:
        """Labels always serve."""

    def hides_enough(self, terms: Terms) -> bool:
        """Whether the sum of all shares keeps the budget."""
        return terms.sigma_party is not None and self.spent(terms) <= (terms.privacy.epsilon or 0.0)

    @property
    def parts(self) -> tuple[tuple[str, PartIdentity], ...]:
        """None: its mechanisms are ours."""
        return ()

    def words(self, terms: Terms) -> Words:
        """Those of `labels_words.py`."""
        from pate_fed.kinds.labels import LabelWords

        return LabelWords(terms, self.method)

    @property
    def file(self) -> str | None:
        """The public clusters."""
        return self.clusters or None

"""Sources of private labels: what a method asks, and who puts a release on record before it is learnt from.

A method asks its source, and nobody else, for labels. The source hands every release to its record first,
which has it on the disk when it returns, and gives a release that is there already back as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pate_fed.kinds.label_dp.noise_cluster import NoiseCluster
from pate_fed.kinds.label_dp.randres import RandRes
from pate_fed.kinds.label_dp.release import NO_LABEL, PrivateLabels
from pate_fed.privacy.ledger.terms import LedgerTerms
from pate_fed.privacy.mechanisms.events import IN_ONE_PLACE, Mechanism
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.protection import LABEL

if TYPE_CHECKING:
    from pate_fed.kinds.label_dp.release import LabelMechanism

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Released:
    """What one release gave.

    Shapes: `index` int64 (asked,) places of the records, `label` int64 (asked,), -1 where not answered.
    """

    index: Ints = field(repr=False)
    label: Ints = field(repr=False)

    @classmethod
    def of_all(cls, label: Ints) -> Released:
        """A release about every record, int64 (n,) in their order."""
        return cls(index=np.arange(len(label), dtype=np.int64), label=label)

    def everywhere(self, records: int) -> Ints:
        """Labels of all records, int64 (records,), -1 where none was released."""
        label = np.full(records, NO_LABEL, dtype=np.int64)
        label[self.index] = self.label
        return label


class Record:
    """Where releases are put on record, in the order of a method's stages.

    This one keeps nothing: it is for experiments on labels that are public.
    """

    def release(self, terms: LedgerTerms, draw: Callable[[], Released], *, stage: int = 0) -> Released:
        """Draw a release, have it on the disk with what it cost, and only then return it.

        `terms` hold for all stages and are the ledger's. A release that an earlier process put on record is
        returned as it was, and nothing is drawn.
        """
        return draw()

    def keep(self, name: str, draw: Callable[[], Ints]) -> Ints:
        """What a release is made of: as it was kept by an earlier process, else drawn and kept.

        It is to be called while the release is drawn, so that no two processes draw it.
        """
        return draw()


class LabelSource(Protocol):
    """Whoever has the private labels of the public inputs; each is answered about once."""

    @property
    def truth(self) -> Ints | None:
        """The private labels, int64 (n,), to measure a simulation with; None where they are not here."""

    def respond(self, epsilon: float) -> PrivateLabels:
        """Labels after randomised response, -1 where there is none."""

    def count(self, clusters: Ints, num_clusters: int, *, epsilon: float, delta: float) -> PrivateLabels:
        """Labels by the noisy majority of public clusters, int64 (n,)."""

    def spendable(self, epsilon: float, delta: float) -> float:
        """How much of ε counts in clusters will spend."""

    @property
    def sigma(self) -> float | None:
        """The noise on each count that was released, in labels; None where none was, or it is not known."""


@dataclass(slots=True, kw_only=True, eq=False)
class LabelsInOnePlace:
    """All private labels `truth`, int64 (n,), in this process; `study_digest` names the study on record."""

    truth: Ints = field(repr=False)
    num_classes: int
    noise: NoiseSource
    record: Record
    study_digest: str = "0" * 64
    sigma: float | None = None

    def respond(self, epsilon: float) -> PrivateLabels:
        """Labels of all records after randomised response."""
        mechanism = RandRes(num_classes=self.num_classes, epsilon=epsilon)
        return self.release(mechanism, lambda: mechanism.release(self.truth, self.noise))

    def count(self, clusters: Ints, num_clusters: int, *, epsilon: float, delta: float) -> PrivateLabels:
        """Labels of all records by NoiseCluster."""
        mechanism = NoiseCluster(
            num_clusters=num_clusters, num_classes=self.num_classes, epsilon=epsilon, delta=delta
        )
        self.sigma = mechanism.sigma
        return self.release(mechanism, lambda: mechanism.release(clusters, self.truth, self.noise))

    def spendable(self, epsilon: float, delta: float) -> float:
        """All of it."""
        return epsilon

    def release(self, mechanism: LabelMechanism, draw: Callable[[], PrivateLabels]) -> PrivateLabels:
        """One release about all records, on record before it is returned."""
        released = self.record.release(
            self.terms(mechanism.on_ledger, delta=mechanism.delta), lambda: Released.of_all(draw().label)
        )
        return PrivateLabels.by(mechanism, released.label, self.noise)

    def terms(self, *mechanisms: Mechanism, delta: float, asked: int = 0, answered: int = 0) -> LedgerTerms:
        """The ledger's terms of a method's releases; without caps they are about each record once."""
        return LedgerTerms(
            study_digest=self.study_digest,
            delta=delta,
            mechanisms=mechanisms,
            protection=LABEL,
            noise=self.noise.kind,
            private=self.noise.private,
            coordinator=IN_ONE_PLACE,
            most_asked=asked or len(self.truth),
            most_answered=answered or len(self.truth),
        )

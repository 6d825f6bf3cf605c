"""Sources of private labels: what a method asks, and who puts a release on record before it is learnt from.

A method asks its source, and nobody else, for labels. The source hands every release to its record first,
which has it on the disk when it returns, and gives a release that is there already back as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pate_fed.label_dp.noise_cluster import NoiseCluster
from pate_fed.label_dp.randres import RandRes
from pate_fed.label_dp.release import NO_LABEL, LabelMechanism, PrivateLabels
from pate_fed.privacy.mechanisms.events import IN_ONE_PLACE, CoordinatorView, Mechanism
from pate_fed.privacy.mechanisms.noise import NoiseSource

__all__ = ["LabelSource", "LabelsInOnePlace", "Planned", "Record", "Released", "Unrecorded"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A method's releases as they are fixed before the first one: a mechanism each, and their caps.

    `asked` and `answered` are the most records that are asked about and answered in all; `noise` and
    `private` are of the source of noise. `terms_digest` names what hospitals agreed to, where they did.
    """

    mechanisms: tuple[Mechanism, ...]
    delta: float
    asked: int
    answered: int
    noise: str
    private: bool
    coordinator: CoordinatorView = IN_ONE_PLACE
    terms_digest: str | None = None


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


class Record(Protocol):
    """Where releases are put on record, in the order of a method's stages."""

    def release(self, planned: Planned, draw: Callable[[], Released], *, stage: int = 0) -> Released:
        """Draw a release, have it on the disk with what it cost, and only then return it.

        One that an earlier process put on record is returned as it was, and nothing is drawn.
        """

    def keep(self, name: str, draw: Callable[[], Ints]) -> Ints:
        """Draw what a release is made of and keep it for a later process; returned as it was, once kept."""


class Unrecorded:
    """Keeps nothing: for experiments on labels that are public."""

    def release(self, planned: Planned, draw: Callable[[], Released], *, stage: int = 0) -> Released:
        """What is drawn."""
        return draw()

    def keep(self, name: str, draw: Callable[[], Ints]) -> Ints:
        """What is drawn."""
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
    """All private labels `truth`, int64 (n,), in this process."""

    truth: Ints = field(repr=False)
    num_classes: int
    noise: NoiseSource
    record: Record = field(default_factory=Unrecorded)
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
            self.plan(mechanism.on_ledger, delta=mechanism.delta), lambda: Released.of_all(draw().label)
        )
        return PrivateLabels.by(mechanism, released.label, self.noise)

    def plan(self, *mechanisms: Mechanism, delta: float) -> Planned:
        """Releases of these mechanisms that are about each record at most once."""
        return Planned(
            mechanisms=mechanisms,
            delta=delta,
            asked=len(self.truth),
            answered=len(self.truth),
            noise=self.noise.kind,
            private=self.noise.private,
        )

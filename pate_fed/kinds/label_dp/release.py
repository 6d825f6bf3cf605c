"""Private labels as they leave a mechanism, with what they cost, and the checks on labels that go in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text
from pate_fed.privacy.bounds.cost import epsilon_of
from pate_fed.privacy.checks import check_count
from pate_fed.privacy.mechanisms.noise import NoiseSource
from pate_fed.privacy.protection import LABEL

if TYPE_CHECKING:
    from pate_fed.kinds.label_dp.noise_cluster import NoiseCluster
    from pate_fed.kinds.label_dp.randres import Alibi, PriorRes, RandRes

    LabelMechanism: TypeAlias = RandRes | PriorRes | Alibi | NoiseCluster

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NO_LABEL = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateLabels:
    """Labels that anyone may see, (ε, δ)-label-DP: features are public, one record's label is replaced.

    Shapes: `label` int64 (n,), -1 where there is none; `posterior` float64 (n, classes), or None where the
    mechanism gives no more than classes. `how` is the mechanism as text, `noise` its source; `private` is
    false where the noise is seeded and protects nobody.
    """

    label: Ints
    num_classes: int
    epsilon: float
    delta: float
    how: str
    noise: str
    private: bool
    posterior: Floats | None = None

    @classmethod
    def by(
        cls, mechanism: LabelMechanism, label: Ints, noise: NoiseSource, posterior: Floats | None = None
    ) -> PrivateLabels:
        """What a mechanism has released, at the ε that its row on the ledger states."""
        return cls(
            label=label,
            num_classes=mechanism.num_classes,
            epsilon=epsilon_of(mechanism.on_ledger.cost_asked(LABEL), mechanism.delta),
            delta=mechanism.delta,
            how=mechanism.how,
            noise=noise.kind,
            private=noise.private,
            posterior=posterior,
        )

    def text(self) -> str:
        """ε, δ, the unit and the adjacency in one sentence."""
        kind = "" if self.private else f"; {self.noise}"
        cost = f"ε={epsilon_text(self.epsilon)} δ={delta_text(self.delta)}"
        return f"{cost}, one record's label replaced ({self.how}{kind})"


def check_labels(labels: ArrayLike, num_classes: int) -> Ints:
    """The labels as int64 (n,).

    Raises:
        InputError: no labels, not whole numbers, or one outside 0 .. `num_classes` - 1. The message names no
            record and no count.
    """
    check_count("num_classes", num_classes, least=2)
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) == 0:
        raise InputError(f"labels are {array.dtype} {array.shape}: at least one whole number (n,) is meant")
    if array.min() < 0 or array.max() >= num_classes:
        raise InputError(f"a label is outside the classes: 0 to {num_classes - 1} is meant")
    return array.astype(np.int64)


def label_accuracy(label: Ints, truth: Ints) -> float | None:
    """The share of labels that are right among those there are; None where there are none."""
    there = label != NO_LABEL
    return float((label[there] == truth[there]).mean()) if there.any() else None

"""What several reproductions measure, each in one place: spreads, noise at a price, a student's accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset
from pate_fed.errors import InputError

if TYPE_CHECKING:
    from pate_fed.learning import StudentSettings
    from pate_fed.learning.students.student import Student

__all__ = ["accuracy_of", "least_noise", "mean_and_sd", "shown_sd", "train_and_test"]


class _Measured(Protocol):
    @property
    def accuracy(self) -> float: ...


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; of one value alone the deviation is not known: nan."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return float(np.mean(values)), spread


def shown_sd(spread: float) -> str:
    """A standard deviation to a tenth, "-" where it is not known."""
    return "-" if math.isnan(spread) else f"{spread:.1f}"


def accuracy_of(runs: Iterable[_Measured]) -> tuple[float, float]:
    """Mean and standard deviation over the seeds, in %, of accuracies that are shares."""
    return mean_and_sd([100 * run.accuracy for run in runs])


def least_noise(
    cost: Callable[[float], float], *, epsilon: float, above: float = 1.0, most: float = 10_000.0
) -> float:
    """The least noise in (`above`, `most`], to a tenth of a vote, at which `cost` is at most `epsilon`.

    `cost` takes votes, gives an ε, and falls as the noise grows.

    Raises:
        InputError: even `most` votes cost more.
    """
    low, high = round(10 * above), round(10 * most)
    if cost(high / 10) > epsilon:
        raise InputError(f"even noise of {most:g} votes costs more than ε {epsilon:g}")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if cost(middle / 10) <= epsilon else (middle, high)
    return high / 10


def train_and_test(
    dataset: Dataset,
    index: NDArray[np.int64],
    label: NDArray[np.int64],
    *,
    classes: int,
    settings: StudentSettings,
    seed: int,
    device: str,
    tested: slice,
) -> tuple[Student, float]:
    """A student of the public images before `tested`, and its accuracy on those in `tested`.

    `index` (m,) are the labelled ones, `label` (m,) their labels.
    """
    from pate_fed.learning.students.data import LabelledPool
    from pate_fed.learning.students.train import train_student

    images = dataset.public_images[: tested.start]
    pool = LabelledPool(images=images, labelled_index=index, labels=label, num_classes=classes)
    trained = train_student(pool, settings, seed=seed, device=device)
    right = trained.predict(dataset.public_images[tested]) == dataset.public_labels[tested]
    return trained, float(right.mean())

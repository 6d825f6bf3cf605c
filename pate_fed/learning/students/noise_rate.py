"""β without manual checks and without privacy cost: an estimate from released labels and public inputs alone.

Two quick classifiers learn from one half of the labels each and predict the other half's; β̂ is the share of
labels that they contradict. A wrong label is contradicted unless the teachers were wrong together, in a way
that can be learnt; a right one only where the classifier errs. The two faults pull in opposite directions.

Error, measured on Fashion-MNIST with totals of 250 teachers, 400 to 2,200 labels, 12 to 37 % of them wrong:
β̂ - β between -0.05 and +0.02 in 14 draws (`tests/benchmarks/test_learning_benchmark.py` prints it). With few
labels a class the classifiers err more, and β̂ is too large.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pate_fed.learning.settings import StudentSettings, TeacherSettings
from pate_fed.learning.teachers.network import train_teacher

__all__ = ["estimate_noise_rate", "least_noise_rate"]

FEWEST_A_CLASS = 4  # labels a class and half, on average, for an estimate that is worth having
MOST = 0.6  # beyond it small losses point nowhere


def estimate_noise_rate(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    num_classes: int,
    seed: int,
    device: str = "cpu",
    least: float = 0.0,
) -> float:
    """β̂, the share of released labels that are wrong: those contradicted by a classifier of the other half.

    It is at least `least`, which `least_noise_rate` gives, and at most 0.6. Too few labels give
    the default β.
    Shapes: the labelled images uint8 (m, H, W, C) and their released labels int64 (m,).

    Raises:
        InputError: images or labels are not that.
    """
    if len(labels) < 2 * FEWEST_A_CLASS * num_classes:
        return min(max(StudentSettings.DEFAULT_NOISE_RATE, least), MOST)
    order = np.random.default_rng(seed).permutation(len(labels))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    contradicted = 0
    for number, (own, other) in enumerate((halves, halves[::-1])):
        classifier = train_teacher(
            images[own],
            labels[own],
            num_classes=num_classes,
            settings=TeacherSettings(name="small-cnn"),
            seed=seed + number,
            device=device,
        )
        contradicted += int(np.sum(classifier.predict(images[other]) != labels[other]))
    return min(max(contradicted / len(labels), least), MOST)


def least_noise_rate(*, sigma2: float, num_teachers: int, num_classes: int) -> float:
    """The share of labels that noise alone turns when all teachers agree and are right: the least there is.

    1 - ∫ φ(z) Φ(z + n/σ2)^(K-1) dz: the winner's noise is z·σ2, each rival stays below it by itself.
    """
    z = np.linspace(-9.0, 9.0, 4001)
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-(each + num_teachers / sigma2) / math.sqrt(2)) for each in z])
    wins = float(np.sum(density * below ** (num_classes - 1)) * (z[1] - z[0]))
    return min(max(1.0 - wins, 0.0), 1.0)

"""Invented emergency patients for the demonstration: vital signs that mean another thing at another age.

Nobody's records: they are drawn. At rest a small child's heart beats 130 times a minute and an adult's 75
times, so 120 is a healthy child and a sick adult. What is usual at an age follows the form of paediatric and
adult reference charts, not their figures. Who falls ill shows it in all signs, each in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COLUMNS = ("age", "heart_rate", "breaths", "systolic", "temperature", "oxygen")
CLASSES = ("stable", "critical")
_CRITICAL = 0.45


@dataclass(frozen=True, slots=True)
class DemoHospital:
    """A hospital, whom it treats, and from what age to what age."""

    name: str
    treats: str
    ages: tuple[float, float]


SITES = (
    DemoHospital("north", "children", (0, 10)),
    DemoHospital("east", "the young", (10, 40)),
    DemoHospital("south", "adults", (40, 65)),
    DemoHospital("west", "the old", (65, 95)),
)


@dataclass(frozen=True, slots=True, eq=False)
class Patients:
    """Vital signs, float64 (n, 6), and classes, int64 (n,), both in the order of the constants here."""

    signs: NDArray[np.float64]
    classes: NDArray[np.int64]


def draw_patients(rng: np.random.Generator, count: int, ages: tuple[float, float]) -> Patients:
    """So many patients of these ages, rounded as a chart has them."""
    import numpy as np

    age = rng.uniform(*ages, count)
    classes = (rng.random(count) < _CRITICAL).astype(np.int64)
    ill = classes * rng.gamma(4.0, 0.5, count)
    heart, breaths, pressure, warmth, oxygen = rng.normal(size=(5, count))
    child, old = np.exp(-age / 6), np.maximum(age - 40, 0)
    signs = (
        age,
        (76 + 62 * child) * (1 + 0.09 * heart + 0.13 * ill),
        (15 + 24 * child) * (1 + 0.10 * breaths + 0.16 * ill),
        (118 - 44 * child + 0.35 * np.maximum(age - 45, 0)) * (1 + 0.08 * pressure - 0.09 * ill),
        37.0 - 0.008 * np.maximum(age - 55, 0) + 0.35 * warmth + 0.35 * ill,
        np.minimum(100, 98 - 0.06 * old + oxygen - 1.4 * ill),
    )
    return Patients(np.round(np.stack(signs, axis=1), 1), classes)

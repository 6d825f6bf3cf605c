"""What the demonstration's hospitals get alone and together; each seed draws patients and noise anew."""

from __future__ import annotations

import math
from statistics import mean, stdev

import numpy as np
import pytest

from pate_fed.cli.demo import alone, drawn_patients
from pate_fed.cli.demo_patients import CLASSES, COLUMNS, SITES
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.settings import FeatureSettings
from pate_fed.learning.students.class_sums import fit_sums_student
from pate_fed.privacy import SeededNoise
from pate_fed.privacy.mechanisms.class_sums import ClassSums, SumShape, least_share
from pate_fed.privacy.protection import Shares

SEEDS = range(5)
EPSILON, DELTA = 1.0, 1e-5  # as the demonstration's study


def _together(seed: int) -> float:
    drawn = drawn_patients(seed=seed)
    pool = drawn["pool"]
    features = build_feature_map(FeatureSettings(columns=(1,) * len(COLUMNS)), pool.signs[:1080])
    sizes = {
        "num_classes": len(CLASSES),
        "dimension": features.dimension,
        "squared_norm": features.squared_norm,
    }
    total = sum(
        features.contributions(drawn[site.name].signs, drawn[site.name].classes, num_classes=len(CLASSES))
        for site in SITES
    )
    shares = Shares.usual(len(SITES))
    share = least_share(
        EPSILON, DELTA, SumShape(**sizes), survivors=shares.least_voters, colluders=shares.colluders
    )
    sigma = share * math.sqrt(len(SITES))  # all are there
    noisy = ClassSums(**sizes, sigma=sigma).noisy(total, SeededNoise(seed))
    student = fit_sums_student(noisy, features, pool.signs[:1080], sigma=sigma)
    return float((student.predict(pool.signs) == pool.classes).mean())


@pytest.mark.benchmark
def test_together_every_hospital_gets_more_than_alone() -> None:
    rows = []
    for seed in SEEDS:
        drawn = drawn_patients(seed=seed)
        pool = drawn["pool"]
        own = [float((alone(drawn[site.name], pool) == pool.classes).mean()) for site in SITES]
        rows.append([*own, _together(seed)])
        assert max(own) < rows[-1][-1]
    names = [*(f"{site.name} alone" for site in SITES), "together"]
    for name, column in zip(names, np.array(rows).T, strict=True):
        print(f"{name:<12} {100 * mean(column):.1f} ± {100 * stdev(column):.1f} %")
    least = min(row[-1] - max(row[:-1]) for row in rows)
    print(f"together above the best hospital alone by at least {100 * least:.1f} points")

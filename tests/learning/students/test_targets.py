"""The student of a number, by sums of both ends of its range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.data.schema import TARGET_STEPS
from pate_fed.errors import InputError
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureSettings
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.learning.students.targets import fit_target_student
from pate_fed.report.targets import TargetFigures


def test_a_student_of_exact_sums_tells_the_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (4000, 1))
    place = np.clip(0.2 + 0.5 * x[:, 0] + rng.normal(0, 0.05, 4000), 0, 1)
    features = build_feature_map(FeatureSettings(name="bins", columns=(1,)), x[:1000])
    labels = np.round(place * TARGET_STEPS).astype(np.int64)
    sums = features.contributions(x[1000:], labels[1000:], num_classes=2, steps=TARGET_STEPS)
    student = fit_target_student(sums, features, x[:1000], sigma=1.0, target_range=(0.0, 20.0))
    figures = TargetFigures.of(student.numbers(x[:1000]), 20 * place[:1000], (0.0, 20.0))
    assert figures is not None and figures.r2 > 0.8 and figures.r2_interval[0] < figures.r2
    student.save(tmp_path / "student.npz")
    again = SumsStudent.load(tmp_path / "student.npz")
    assert again.target_range == (0.0, 20.0)
    assert np.array_equal(again.numbers(x), student.numbers(x))
    with pytest.raises(InputError, match="one at least is meant"):
        fit_target_student(sums, features, x[:0], sigma=1.0, target_range=(0.0, 20.0))


def test_noise_that_drowns_the_sums_leaves_the_middle() -> None:
    """Weights shrink to nothing, and every number told is within the range."""
    x = np.linspace(0, 1, 400)[:, None]
    features = build_feature_map(FeatureSettings(name="bins", columns=(1,)), x)
    rng, sigma = np.random.default_rng(3), 1e7
    noisy = np.round(rng.normal(0, sigma, (features.dimension, 2))).astype(np.int64)
    told = fit_target_student(noisy, features, x, sigma=sigma, target_range=(-4.0, 6.0)).numbers(x)
    assert told.min() >= -4 and told.max() <= 6 and np.ptp(told) < 2

"""The class-sums student's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.settings import FeatureSettings
from pate_fed.learning.students.class_sums import SumsStudent


@pytest.mark.parametrize("kind", ["table", "images"])
def test_a_student_comes_back_from_its_file(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    if kind == "table":
        inputs, settings = rng.normal(0, 1, (40, 2)), FeatureSettings(columns=(1, 1))
    else:
        inputs = rng.integers(0, 256, (40, 10, 10, 1), dtype=np.uint8)
        settings = FeatureSettings(dimension=12)
    feature_map = build_feature_map(settings, inputs)
    weights = rng.normal(0, 1, (feature_map.dimension, 3))
    student = SumsStudent(feature_map, weights, sharpness=4.0, offset=np.array([0.0, 0.5, -0.5]))
    student.class_names = ("a", "b", "c")
    path = tmp_path / "student.npz"
    student.save(path)
    again = SumsStudent.load(path)
    assert (again.predict_proba(inputs) == student.predict_proba(inputs)).all()
    assert again.class_names == student.class_names and again.num_classes == 3
    assert path.stat().st_mode & 0o077 == 0


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    feature_map = build_feature_map(FeatureSettings(columns=(1,)), np.arange(9.0)[:, None])
    path = tmp_path / "student.npz"
    for weights in (np.zeros((feature_map.dimension + 1, 2)), np.full((feature_map.dimension, 2), np.nan)):
        SumsStudent(feature_map, weights).save(path)
        with pytest.raises(IntegrityError, match="damaged or holds no student"):
            SumsStudent.load(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(IntegrityError, match="damaged"):
        SumsStudent.load(path)
    np.savez(path, weights=np.zeros((2, 2)))
    with pytest.raises(IntegrityError, match="damaged"):
        SumsStudent.load(path)
    with pytest.raises(InputError, match="no such file"):
        SumsStudent.load(tmp_path / "none.npz")

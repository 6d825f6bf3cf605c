"""The default student beside the head, of the same labels."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.learning import StudentSettings, TeacherSettings
from pate_fed.reproduce import Reproduction, default_student, reproduce, rows


def test_both_students_learn_from_the_same_labels(
    small: Reproduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_student, "DATASETS", ("fashion-mnist", "mnist"))
    monkeypatch.setattr(default_student, "LABELS", 60)
    small.out_dir.mkdir()
    assert small.data_dir is not None
    kept = small.out_dir / f"totals-fashion-mnist-{TeacherSettings().name}.npz"
    np.savez(kept, totals=np.load(small.data_dir / "b.npy"))
    lines = reproduce("default-student", small)
    assert reproduce("default-student", small) == lines
    for name in ("fashion-mnist", "mnist"):
        path = small.out_dir / f"default-student-{name}-runs.csv"
        ours, head = rows.read_rows(path, default_student.StudentOfLabels)
        assert (ours.student, head.student) == (StudentSettings().name, "encoder-head")
        assert ours.labels_wrong == head.labels_wrong and ours.seconds > 0
        assert {ours.dataset, head.dataset} == {name}
    assert sum("encoder-head" in line for line in lines) == 2


def test_a_seed_asks_about_other_inputs_and_few_labels_are_wrong() -> None:
    totals = np.zeros((1200, 4), dtype=np.int64)
    totals[:, 1], totals[:, 2] = 230, 20
    one, two = (default_student.labels_of(totals, seed) for seed in (0, 1))
    assert len(one.index) == 500 < len(one.asked)
    assert not np.array_equal(one.index, two.index)
    assert np.mean(one.label == 1) > 0.95

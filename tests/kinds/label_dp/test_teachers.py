"""PATE-FM's teachers."""

from __future__ import annotations

import numpy as np

from pate_fed.kinds.label_dp.learners import LearnSettings
from pate_fed.kinds.label_dp.public import PublicInputs
from pate_fed.kinds.label_dp.teachers import TeachSettings, queries_of, teach


def test_each_teacher_sees_its_own_labels_alone(public: PublicInputs, truth: np.ndarray) -> None:
    queries = queries_of(600, 40, seed=0)
    settings = TeachSettings(num_teachers=5, learn=LearnSettings(epochs=1, batch_size=32), unlabelled=0)
    before = teach(public, truth, queries, settings, seed=0)
    assert before.sum(axis=1).tolist() == [5] * 40
    changed = truth.copy()
    changed[17] = (changed[17] + 1) % 4
    after = teach(public, changed, queries, settings, seed=0)
    assert np.abs(after - before).sum(axis=1).max() <= 2  # one vote moves, in each query

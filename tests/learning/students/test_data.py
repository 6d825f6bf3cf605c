"""The pool that a student learns from, its sets, and the order of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.learning.students.trainer import LabelledPool, TrainingSets, batches

MakePool = Callable[..., LabelledPool]


def test_every_sample_comes_before_one_comes_again() -> None:
    found = batches(7, 20, 6, torch.device("cpu"))
    assert found.shape == (4, 6)
    flat = found.flatten().tolist()
    for start in (0, 7, 14):
        assert sorted(flat[start : start + 7]) == list(range(7))


def test_a_batch_is_no_larger_than_the_sets_and_no_smaller_than_two() -> None:
    cpu = torch.device("cpu")
    assert batches(7, 20, 10**9, cpu).shape == (1, 20)
    assert batches(1, 1, 100, cpu).tolist() == [[0, 0]]


def test_removed_samples_join_the_unlabelled(pool_of: MakePool) -> None:
    index, labels = np.array([5, 2, 9]), np.array([0, 1, 1])
    images = np.zeros((10, 8, 8, 1), dtype=np.uint8)
    shares = np.eye(4, dtype=np.float32)[[0, 1, 2]]
    pool = replace(
        pool_of(images, labels, index=index, true_labels=np.array([0, 0, 1])), probabilities=shares
    )
    sets = TrainingSets.of(pool, "cpu")
    clean = sets.without(torch.tensor([False, True, False]))
    assert clean.labelled.tolist() == [5, 9] and clean.labels.tolist() == [0, 1]
    assert clean.targets.tolist() == shares[[0, 2]].tolist()
    assert sets.wrong.tolist() == [False, True, False] and clean.wrong.tolist() == [False, False]
    assert sorted(clean.unlabelled.tolist() + clean.labelled.tolist()) == list(range(10))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(0, np.int64), "labelled_index": np.zeros(0, np.int64)}, "0 labels"),
        ({"labelled_index": np.array([0, 60])}, "0 to 59"),
        ({"labelled_index": np.array([-1, 0])}, "-1"),
        ({"labelled_index": np.array([0.0, 1.0])}, "float64"),
        ({"labels": np.array([0, 4])}, "0 to 3"),
        ({"labels": np.array([0]), "labelled_index": np.array([0, 1])}, r"\(2,\)"),
        ({"probabilities": np.full((2, 3), 1 / 3)}, r"\(2, 3\): \(2, 4\)"),
        ({"probabilities": np.full((2, 4), 0.3)}, "sum to 1"),
        ({"probabilities": np.array([[1.5, -0.5, 0, 0]] * 2)}, "sum to 1"),
    ],
)
def test_bad_input_is_named(change: dict[str, NDArray[np.int64]], message: str) -> None:
    given = {"labels": np.array([0, 1]), "labelled_index": np.arange(2)} | change
    with pytest.raises(InputError, match=message):
        LabelledPool(images=np.zeros((60, 8, 8, 1), dtype=np.uint8), num_classes=4, **given)

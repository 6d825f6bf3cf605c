"""Learning from private labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.learners import (
    LearnSettings,
    TeachSettings,
    queries_of,
    teach,
    train,
)
from pate_fed.kinds.label_dp.methods import MethodSettings
from pate_fed.kinds.label_dp.public import PublicInputs

QUICK = MethodSettings(
    learn=LearnSettings(epochs=4, batch_size=32, learning_rate=3e-3, ema_decay=0.95),
    num_clusters=12,
    teach=TeachSettings(num_teachers=6, learn=LearnSettings(epochs=1, batch_size=16), unlabelled=64),
    student_labels=30,
)


def test_networks_on_images_learn_too(easy: Callable[..., Any]) -> None:
    images, labels = easy(200)
    inputs = PublicInputs(images, num_classes=4, network="small-cnn", flip=False)
    settings = LearnSettings(epochs=6, batch_size=20, ema_decay=0.9, learning_rate=5e-3)
    network = train(inputs, np.arange(200), labels, settings, seed=0)
    fresh, answers = easy(100, seed=3)
    assert np.mean(inputs.probabilities([network], fresh).argmax(axis=1) == answers) > 0.8
    assert np.array_equal(
        inputs.classes_at(network, np.arange(50)),
        inputs.probabilities([network]).argmax(axis=1)[:50],
    )


def test_a_norms_measures_are_averaged_too(easy: Callable[..., Any]) -> None:
    """ResNet-18 for one step: the averaged network has the norms of the trained one."""
    inputs = PublicInputs(easy(4)[0], num_classes=4, network="resnet-18")
    network = train(
        inputs, np.arange(4), np.arange(4), LearnSettings(epochs=1, batch_size=4, sgd=True), seed=0
    )
    means = [value for name, value in network.state_dict().items() if name.endswith("running_mean")]
    assert means and any(bool(value.abs().sum() > 0) for value in means)


def test_soft_labels_and_mixup(public: PublicInputs, truth: np.ndarray) -> None:
    soft = np.full((600, 4), 0.1)
    soft[np.arange(600), truth] = 0.7
    for mixup in (0.0, 1.0):
        network = train(public, np.arange(600), soft, QUICK.learn, seed=0, unlabelled_weight=0.0, mixup=mixup)
        shares = public.probabilities([network])
        assert np.mean(shares.argmax(axis=1) == truth) > 0.95
        assert shares.max(axis=1).mean() < 0.85  # what it is taught, and not more
    with pytest.raises(InputError, match="no private label"):
        train(public, np.array([], dtype=np.int64), truth[:0], QUICK.learn, seed=0)


def test_each_teacher_sees_its_own_labels_alone(public: PublicInputs, truth: np.ndarray) -> None:
    queries = queries_of(600, 40, seed=0)
    settings = TeachSettings(num_teachers=5, learn=LearnSettings(epochs=1, batch_size=32), unlabelled=0)
    before = teach(public, truth, queries, settings, seed=0)
    assert before.sum(axis=1).tolist() == [5] * 40
    changed = truth.copy()
    changed[17] = (changed[17] + 1) % 4
    after = teach(public, changed, queries, settings, seed=0)
    assert np.abs(after - before).sum(axis=1).max() <= 2  # one vote moves, in each query

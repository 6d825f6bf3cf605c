"""The estimate of β: near the truth on learnable data, safe where there is little of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.learning import StudentSettings
from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.students.noise_rate import estimate_noise_rate, least_noise_rate
from pate_fed.learning.students.student import Student

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]
TrainOn = Callable[..., Student]


@pytest.mark.parametrize("wrong", [0.0, 0.15, 0.4])
def test_the_estimate_is_near_the_truth(stripes: MakeStripes, wrong: float) -> None:
    images, labels = stripes(600)
    rng = np.random.default_rng(0)
    turned = rng.random(600) < wrong
    labels[turned] = (labels[turned] + rng.integers(1, 4, turned.sum())) % 4
    found = estimate_noise_rate(images, labels, num_classes=4, encoder=fit_encoder(images))
    assert abs(found - turned.mean()) < 0.1


def test_few_labels_give_the_default(stripes: MakeStripes) -> None:
    images, labels = stripes(31)
    found = estimate_noise_rate(images, labels, num_classes=4, encoder=fit_encoder(images))
    assert found == StudentSettings.DEFAULT_NOISE_RATE


def test_the_noise_sets_a_floor(stripes: MakeStripes) -> None:
    images, labels = stripes(31)
    floor = least_noise_rate(sigma2=100.0, num_teachers=100, num_classes=4)
    found = estimate_noise_rate(images, labels, num_classes=4, encoder=fit_encoder(images), least=floor)
    assert found == pytest.approx(floor) and floor > StudentSettings.DEFAULT_NOISE_RATE


@pytest.mark.parametrize(("sigma2", "classes"), [(40.0, 10), (100.0, 10), (250.0, 3)])
def test_the_floor_is_what_the_noise_does(sigma2: float, classes: int) -> None:
    rng = np.random.default_rng(0)
    votes = np.zeros((200_000, classes))
    votes[:, 0] = 250
    turned = np.mean((votes + rng.normal(0, sigma2, votes.shape)).argmax(axis=1) != 0)
    assert least_noise_rate(sigma2=sigma2, num_teachers=250, num_classes=classes) == pytest.approx(
        turned, abs=0.004
    )


def test_a_student_estimates_its_own_rate(stripes: MakeStripes, train_on: TrainOn) -> None:
    images, labels = stripes(120)
    settings = StudentSettings(epochs=1, batch_size=50)
    student = train_on(images, labels[:80], settings)
    expected = estimate_noise_rate(images[:80], labels[:80], num_classes=4, encoder=fit_encoder(images))
    assert student.settings.noise_rate == expected

"""ALIBI: the scale of its noise, and Bayes' rule."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.randres import Alibi
from pate_fed.privacy import SeededNoise


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.7])
def test_alibis_noise_costs_epsilon_and_no_step_less(epsilon: float) -> None:
    mechanism = Alibi(num_classes=10, epsilon=epsilon)
    from fractions import Fraction

    assert Fraction(2 * 1024) / Fraction(mechanism.scale) <= Fraction(epsilon)
    assert 2 * 1024 / mechanism.scale == pytest.approx(epsilon, rel=1e-12)


def test_alibis_posterior_is_bayes_rule() -> None:
    mechanism = Alibi(num_classes=4, epsilon=1.5)
    rows = mechanism.noisy_rows([0, 1, 3], SeededNoise(3))
    prior = np.array([0.1, 0.2, 0.3, 0.4])
    slow = np.empty((3, 4))
    for k in range(4):
        one_hot = 1024 * (np.arange(4) == k)
        slow[:, k] = prior[k] * np.exp(-np.abs(rows - one_hot).sum(axis=1) / mechanism.scale)
    slow /= slow.sum(axis=1, keepdims=True)
    assert mechanism.posterior(rows, np.tile(prior, (3, 1))) == pytest.approx(slow)
    released = mechanism.private_labels(mechanism.noisy_rows(np.arange(4), SeededNoise(3)), SeededNoise(3))
    assert released.posterior is not None and released.posterior.sum(axis=1) == pytest.approx(1)


def test_alibis_posterior_is_calibrated() -> None:
    mechanism, labels = Alibi(num_classes=10, epsilon=2.0), np.arange(20_000) % 10
    noise = SeededNoise(0)
    released = mechanism.private_labels(mechanism.noisy_rows(labels, noise), noise)
    assert released.posterior is not None
    claimed = released.posterior.max(axis=1).mean()
    assert np.mean(released.label == labels) == pytest.approx(claimed, abs=0.015)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Alibi(num_classes=10, epsilon=0), "epsilon"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]

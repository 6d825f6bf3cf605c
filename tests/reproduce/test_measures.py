"""Labels, noise at a price, and what is measured of a student."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from affordable import affordable_sigma2

from pate_fed.data import Dataset
from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings
from pate_fed.privacy import RECORD, ConfidentGNMax, GNMax, LNMax, epsilon_of
from pate_fed.reproduce import Reproduction, glyph_scale, measures


def test_noise_at_a_price_is_what_it_was() -> None:
    """Measured before the three searches became one."""
    before = {
        (0.5, 500): 242.5,
        (1.0, 800): 161.9,
        (2.0, 1000): 96.2,
        (3.0, 1300): 76.2,
        (4.05, 1500): 62.8,
        (5.04, 2000): 59.9,
        (6.0, 2200): 54.0,
    }
    priced = partial(affordable_sigma2, delta=1e-5)
    assert {(e, n): priced(n, epsilon=e) for e, n in before} == before
    assert priced(500, epsilon=4.05) == 36.3
    for kind, values in {"LNMax": (1321.9, 353.8, 99.1), "GNMax": (934.8, 250.2, 70.1)}.items():
        again = [glyph_scale.noise_for(kind, queries=4000, epsilon=e) for e in (0.5, 2.0, 8.0)]
        assert again == list(values)


def test_what_no_noise_affords_is_named() -> None:
    with pytest.raises(InputError, match="9000 queries cost more"):
        affordable_sigma2(9000, epsilon=0.01, delta=1e-5)


@pytest.mark.parametrize("epsilon", [0.5, 4.05])
def test_the_noise_costs_what_it_says_and_no_tenth_less(epsilon: float) -> None:
    def cost(sigma: float) -> float:
        mechanism = GNMax(num_teachers=250, num_classes=10, sigma=sigma)
        return epsilon_of((mechanism.cost_asked(RECORD) * 800).as_totals, 1e-5)

    sigma = affordable_sigma2(800, epsilon=epsilon, delta=1e-5)
    assert cost(sigma) <= epsilon < cost(sigma - 0.1)


def test_the_least_noise_is_the_least() -> None:
    def least(epsilon: float, **bounds: float) -> float:
        return measures.least_noise(
            lambda scale: LNMax(num_teachers=1, num_classes=2, scale=scale),
            queries=1,
            epsilon=epsilon,
            delta=1e-300,  # ε is 2 / scale
            **bounds,
        )

    assert least(0.2501) == 8.0
    assert least(5.001) == 1.1  # above one vote
    assert least(5.001, above=0.1) == 0.4
    with pytest.raises(InputError, match="with noise of 100 votes"):
        least(0.001, most=100)


def test_labels_are_of_inputs_in_random_order() -> None:
    totals = np.tile([900, 50, 50], (30, 1))
    given = measures.release_labels(
        GNMax(num_teachers=1000, num_classes=3, sigma=2.0), totals, seed=1, labels=10
    )
    assert len(given.index) == len(set(given.index)) == 10 and given.index.tolist() == given.asked.tolist()
    assert given.label.tolist() == [0] * 10
    assert epsilon_of(given.event.cost(), 1e-5) == epsilon_of(
        given.event.mechanism.cost_asked(RECORD) * 10, 1e-5
    )
    totals[::2] = [340, 330, 330]
    mechanism = ConfidentGNMax(num_teachers=1000, num_classes=3, threshold=600, sigma1=2.0, sigma2=2.0)
    given = measures.release_labels(mechanism, totals, seed=1, labels=10)
    assert len(given.index) == 10 < len(given.asked) and set(given.index % 2) == {1}


@pytest.mark.parametrize("name", ["gan", "co-teaching"])
def test_a_students_networks_are_measured_together_and_alone(
    name: str, loaded: dict[str, Dataset], tmp_path: Path
) -> None:
    data, plan = loaded["mnist"], Reproduction(data_dir=None, out_dir=tmp_path)
    index = np.arange(60)
    label = np.where(index < 6, (data.public_labels[:60] + 1) % 10, data.public_labels[:60])
    student, figures = measures.train_and_test(
        plan, data, index, label, StudentSettings(name=name, epochs=1, batch_size=50), seed=0
    )
    assert figures["labels_wrong"] == 0.1
    alone = student.predict_each(data.public_images[200:]) == data.public_labels[200:]
    assert alone.shape == (1 if name == "gan" else 2, 60)
    assert figures["accuracy_single"] == alone.mean()
    if name == "gan":
        assert figures["accuracy_single"] == figures["accuracy"]

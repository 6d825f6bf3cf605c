"""How sure students are: a power of their probabilities, set beside what a head expects."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.learning import StudentSettings
from pate_fed.learning.students.calibration import calibrate, sharpened, sharpness_for
from pate_fed.learning.students.student import Student

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]
TrainOn = Callable[..., Student]


BY_HEART = StudentSettings(name="supervised", epochs=15, batch_size=50, dropout=0.0, input_noise=0.0)


def test_calibration_finds_the_noise_and_the_sharpness() -> None:
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(rng.normal(size=(4000, 5)))
    truth = torch.distributions.Categorical(logits=4 * scores)
    torch.manual_seed(0)
    labels = truth.sample()
    random = torch.from_numpy(rng.random(4000) < 0.3)
    labels = torch.where(random, torch.from_numpy(rng.integers(0, 5, 4000)), labels)
    sharpness, share = calibrate(scores, labels)
    assert sharpness == pytest.approx(4, rel=0.25) and share == pytest.approx(0.3, abs=0.06)


@pytest.mark.parametrize("exponent", [0.3, 1.0, 2.5])
def test_a_power_of_probabilities_is_found_again_and_keeps_their_order(exponent: float) -> None:
    rng = np.random.default_rng(1)
    shares = torch.from_numpy(rng.dirichlet(np.full(5, 0.4), 500))
    made = sharpened(shares, exponent)
    plain = shares**exponent / (shares**exponent).sum(dim=1, keepdim=True)
    assert torch.allclose(made, plain) and torch.equal(made.argmax(dim=1), shares.argmax(dim=1))
    found = sharpness_for(shares, confidence=float(made.amax(dim=1).mean()))
    assert found == pytest.approx(exponent, rel=1e-4)


def test_the_power_has_bounds_and_what_is_certain_stays_so() -> None:
    certain = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert torch.equal(sharpened(certain, 0.5), certain)
    shares = torch.tensor([[0.6, 0.3, 0.1]])
    assert sharpness_for(shares, confidence=0.0) == pytest.approx(0.1, rel=1e-3)
    assert sharpness_for(shares, confidence=1.0) == pytest.approx(10, rel=1e-3)


def test_a_head_calibrates_a_student_on_images_without_a_label(
    stripes: MakeStripes, train_on: TrainOn, tmp_path: Path
) -> None:
    """A fifth of the labels falls at random: networks that learn them by heart are far too sure."""
    images, truth = stripes(500)
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(300) < 0.8, truth[:300], rng.integers(0, 4, 300))
    student = train_on(images, labels, BY_HEART)
    fresh, right = stripes(400, seed=7)

    def unlikely() -> float:
        shares = student.predict_proba(fresh)[np.arange(400), right]
        return float(-np.log(shares + 1e-9).mean())

    calibrated, sharpness, said = unlikely(), student.sharpness, student.predict(fresh)
    student.save(tmp_path / "student.pt")
    loaded = Student.load(tmp_path / "student.pt")
    assert loaded.sharpness == sharpness != 1.0
    assert np.allclose(loaded.predict_proba(fresh), student.predict_proba(fresh))
    student.export(tmp_path / "student.ts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript old
        found = torch.jit.load(str(tmp_path / "student.ts"))(torch.from_numpy(fresh[:9]))
    assert np.allclose(found.numpy(), student.predict_proba(fresh[:9]), atol=1e-5)
    student.sharpness = 1.0
    assert calibrated < unlikely()
    assert np.array_equal(said, student.predict(fresh))


@pytest.mark.parametrize(
    ("count", "labelled", "classes"),
    [(120, 120, 4), (120, 49, 4), (120, 60, 1)],
    ids=["no image without a label", "too few labels", "one class"],
)
def test_where_nothing_can_be_expected_a_student_is_as_sure_as_its_networks(
    stripes: MakeStripes, train_on: TrainOn, count: int, labelled: int, classes: int
) -> None:
    images, truth = stripes(count)
    settings = replace(BY_HEART, epochs=1)
    assert train_on(images, truth[:labelled] % classes, settings).sharpness == 1.0

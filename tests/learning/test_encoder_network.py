"""Students whose discriminators are a hidden layer on the public encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings
from pate_fed.learning.inputs import to_tensor
from pate_fed.learning.networks.encoder import fit_encoder, oriented_histograms
from pate_fed.learning.students.gan import Trainer
from pate_fed.learning.students.sets import Sets
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.train import train_student

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]
QUICK = StudentSettings(network="encoder", epochs=6, batch_size=20, noise_rate=0.2, removal=0.1)


def test_the_slope_of_histograms_is_that_of_their_values() -> None:
    stream = torch.Generator().manual_seed(1)
    x = (0.2 + 0.6 * torch.rand(1, 1, 9, 9, generator=stream, dtype=torch.float64)).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda image: oriented_histograms(image, 3), (x,))


@pytest.mark.parametrize("image", ["black", "white", "black corner", "almost black"])
def test_flat_and_black_places_have_a_finite_slope(image: str) -> None:
    x = {
        "black": torch.zeros(1, 1, 12, 12),
        "white": torch.ones(1, 1, 12, 12),
        "black corner": torch.rand(1, 1, 12, 12) * (torch.arange(12) > 5),
        "almost black": torch.rand(1, 1, 12, 12) * 1e-30,
    }[image].requires_grad_(True)
    oriented_histograms(x, 3).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and bool(torch.isfinite(x.grad * x.detach()).all())  # as behind a sigmoid
    if image in ("black", "white"):
        assert not x.grad.any()


@pytest.mark.parametrize("cell", [3, 5])
def test_the_slope_is_finite_at_pixels_of_every_size(cell: int) -> None:
    """Generators end in a sigmoid, which comes as near to black as a float can: there 1/steepness is none."""
    stream = torch.Generator().manual_seed(1)
    size = 10.0 ** (-48 * torch.rand(200, 1, 1, 1, generator=stream, dtype=torch.float64))
    spread = torch.rand(200, 1, 12, 12, generator=stream, dtype=torch.float64)
    x = (size * spread).float().requires_grad_(True)
    oriented_histograms(x, cell).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and bool(torch.isfinite(x.grad * x.detach()).all())


@pytest.mark.parametrize("name", ["supervised", "gan", "co-teaching", "pate+", "pate++", "vat"])
def test_every_student_learns_on_the_encoder(stripes: MakeStripes, tmp_path: Path, name: str) -> None:
    images, truth = stripes(200)
    labels = truth[:80].copy()
    labels[::8] = (labels[::8] + 1) % 4
    encoder = fit_encoder(images)
    student = train_student(
        images,
        labelled_index=np.arange(80),
        labels=labels,
        num_classes=4,
        settings=replace(QUICK, name=name),
        seed=0,
        encoder=encoder,
    )
    fresh, answers = stripes(200, seed=1)
    assert np.mean(student.predict(fresh) == answers) > 0.6
    student.save(tmp_path / "student.pt")
    again = Student.load(tmp_path / "student.pt")
    assert np.array_equal(again.predict_proba(fresh), student.predict_proba(fresh))
    for network in again._networks:
        assert torch.equal(network.front.mean, encoder.front().mean)
        assert torch.equal(network.front.basis, encoder.front().basis)


def test_the_generator_learns_through_the_encoder_that_stays_as_it_is(stripes: MakeStripes) -> None:
    images, labels = stripes(60)
    encoder = fit_encoder(images)
    torch.manual_seed(0)
    learner = Trainer(
        replace(QUICK, name="gan"), (16, 16, 1), 4, to_tensor(images, "cpu"), samples=30, encoder=encoder
    )
    assert learner.generator is not None
    before = [each.clone() for each in learner.generator.parameters()]
    learner.run_epoch(1, Sets.of(np.arange(30), labels[:30], None, count=60, device="cpu"))
    after = list(learner.generator.parameters())
    # The bias before a batch norm has no slope.
    assert sum(not torch.equal(old, new) for old, new in zip(before, after, strict=True)) >= len(after) - 2
    assert all(bool(torch.isfinite(each).all()) for each in after)
    assert torch.equal(learner.front.basis, encoder.front().basis)  # type: ignore[arg-type]


def test_without_the_studys_encoder_one_is_fitted_and_another_shape_is_refused(stripes: MakeStripes) -> None:
    images, labels = stripes(60)
    given = {"labelled_index": np.arange(30), "labels": labels[:30], "num_classes": 4, "seed": 0}
    settings = replace(QUICK, name="supervised", epochs=1)
    ours = train_student(images, settings=settings, **given)  # type: ignore[arg-type]
    theirs = train_student(images, settings=settings, encoder=fit_encoder(images), **given)  # type: ignore[arg-type]
    assert np.array_equal(ours.predict_proba(images), theirs.predict_proba(images))
    other = fit_encoder(stripes(60, size=12)[0])
    with pytest.raises(InputError, match="12"):
        train_student(images, settings=settings, encoder=other, **given)  # type: ignore[arg-type]


def test_what_a_student_is_built_on() -> None:
    assert StudentSettings().built_on == "small-cnn"
    assert StudentSettings(name="fixmatch").built_on == "encoder"
    assert StudentSettings(name="fixmatch", network="small-cnn").built_on == "small-cnn"

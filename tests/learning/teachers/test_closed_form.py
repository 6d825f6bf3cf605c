"""Teachers in closed form: they learn, take any part, share a pool's features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.learning import TeacherSettings, tensors
from pate_fed.learning.networks.encoder import (
    fit_encoder,
)
from pate_fed.learning.teachers import network
from pate_fed.learning.teachers.network import Teacher, shifted_copies, train_teacher

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]


@pytest.mark.parametrize("name", ["hog-linear", "encoder-head"])
@pytest.mark.parametrize("shape", [(16, 1), (11, 3)])
def test_teachers_learn_and_are_kept(
    stripes: MakeStripes, tmp_path: Path, name: str, shape: tuple[int, int]
) -> None:
    size, channels = shape
    images, labels = stripes(200, size=size, channels=channels)
    fresh, truth = stripes(200, size=size, channels=channels, seed=1)
    teacher = train_teacher(
        images,
        labels,
        num_classes=4,
        settings=TeacherSettings(name=name),
        seed=0,
        encoder=fit_encoder(fresh),
    )
    voted = teacher.predict(fresh)
    assert np.mean(voted == truth) > 0.6
    teacher.save(tmp_path / "t.pt")
    assert np.array_equal(Teacher.load(tmp_path / "t.pt").predict(fresh), voted)


def test_a_file_holds_the_encoder_in_the_half_precision_it_came_in(
    stripes: MakeStripes, tmp_path: Path
) -> None:
    """Ten thousand simulated parties have a file each, most of which is the encoder."""
    images, labels = stripes(60)
    encoder, path = fit_encoder(images), tmp_path / "t.pt"
    settings = TeacherSettings(name="encoder-head")
    teacher = train_teacher(images, labels, num_classes=4, settings=settings, seed=0, encoder=encoder)
    teacher.save(path)
    held = torch.load(path, weights_only=True)["weights"]
    assert held["preprocess.basis"].dtype == torch.float16
    assert held["output.weights"].dtype == torch.float32  # which no half has
    again = Teacher.load(path)._model.state_dict()
    for name, value in teacher._model.state_dict().items():
        assert again[name].dtype == value.dtype and torch.equal(again[name], value)


@pytest.mark.parametrize("name", ["hog-linear", "encoder-head"])
@pytest.mark.parametrize("count", [1, 2, 31])
def test_teachers_take_any_part(stripes: MakeStripes, name: str, count: int) -> None:
    images, _ = stripes(40)
    labels = np.full(count, 3, dtype=np.int64)
    settings = TeacherSettings(name=name)
    teacher = train_teacher(
        images[:count], labels, num_classes=4, settings=settings, seed=0, encoder=fit_encoder(images)
    )
    assert np.all(teacher.predict(images) == 3)  # labels all of one class


@pytest.mark.parametrize(("most", "times"), [(network.MOST_CACHED, 1), (0, 2)])
@pytest.mark.parametrize("name", ["encoder-head", "hog-linear", "small-cnn"])
def test_teachers_share_what_is_measured_of_a_pool(
    stripes: MakeStripes, monkeypatch: pytest.MonkeyPatch, name: str, most: int, times: int
) -> None:
    images, labels = stripes(90)
    encoder, settings = fit_encoder(images), TeacherSettings(name=name, epochs=2)
    teachers = [
        train_teacher(images[part], labels[part], num_classes=4, settings=settings, seed=0, encoder=encoder)
        for part in (slice(30), slice(30, 36))  # the second one knows little
    ]
    expected = [teacher.predict(images[60:]) for teacher in teachers]
    true, calls = tensors.tensor_batches, []

    def counted(*args: object) -> object:
        calls.append(args)
        return true(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(tensors, "tensor_batches", counted)
    monkeypatch.setattr(network, "MOST_CACHED", most)
    found = [teacher.predict(images[50:]) for teacher in teachers]
    assert len(calls) == times  # of one pool once, but for those that are too large to keep
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one[10:], other)


def test_flat_images_give_a_teacher() -> None:
    images = np.zeros((5, 8, 8, 1), dtype=np.uint8)
    for name in ("hog-linear", "encoder-head"):
        teacher = train_teacher(
            images,
            np.array([1, 1, 0, 1, 1]),
            num_classes=2,
            settings=TeacherSettings(name=name),
            seed=0,
            encoder=fit_encoder(images),
        )
        assert len(set(teacher.predict(images).tolist())) == 1  # classes count alike, so either one


def test_a_teacher_without_its_encoder_is_refused(stripes: MakeStripes) -> None:
    images, labels = stripes(20)
    settings = TeacherSettings(name="encoder-head")
    with pytest.raises(InputError, match="encoder"):
        train_teacher(images, labels, num_classes=4, settings=settings, seed=0)
    with pytest.raises(InputError, match=r"\(16, 16, 1\)"):
        train_teacher(
            images,
            labels,
            num_classes=4,
            settings=settings,
            seed=0,
            encoder=fit_encoder(stripes(9, size=8)[0]),
        )


def test_shifted_copies_are_the_image_and_four_neighbours() -> None:
    pixels = torch.arange(64.0).view(1, 1, 8, 8)
    same, *moved = shifted_copies(pixels)
    assert torch.equal(same, pixels) and len(moved) == 4
    assert torch.equal(moved[0][0, 0, 1:], pixels[0, 0, :-1]) and torch.equal(
        moved[0][0, 0, 0], pixels[0, 0, 0]
    )
    assert torch.equal(moved[3][0, 0, :, :-1], pixels[0, 0, :, 1:])


def test_a_large_part_has_few_centres_and_no_copies(
    stripes: MakeStripes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time and memory do not follow the records for ever, and what is left out costs little."""
    images, labels = stripes(300)
    fresh, truth = stripes(200, seed=1)
    encoder, settings = fit_encoder(fresh), TeacherSettings(name="encoder-head")
    found = {}
    for name, most in (("all", 10_000), ("few", 40)):
        monkeypatch.setattr(network, "TEACHER_CENTRES", most)
        monkeypatch.setattr(network, "ENOUGH_SAMPLES", most)
        monkeypatch.setattr(network, "MOST_RECORDS", 200 if name == "few" else most)
        trained = [
            train_teacher(images, labels, num_classes=4, settings=settings, seed=seed, encoder=encoder)
            for seed in (5, 5)
        ]
        assert np.array_equal(*(teacher.predict(fresh) for teacher in trained))  # chance is seeded
        found[name] = trained[0]
    assert len(found["all"]._model.output.centres) == 300
    assert len(found["few"]._model.output.centres) == 40
    right = {name: np.mean(teacher.predict(fresh) == truth) for name, teacher in found.items()}
    assert right["few"] > right["all"] - 0.1

"""Many teachers at once against the plain loop, one after another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.learning import TeacherSettings
from pate_fed.learning.networks.classifiers import Classifier, Dropout, build_classifier
from pate_fed.learning.teachers.batched import train_many
from pate_fed.learning.teachers.network import fit_network, train_teacher
from pate_fed.learning.tensors import seeded, to_tensor

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]


SETTINGS = TeacherSettings(name="small-cnn", epochs=3, batch_size=16)


def _parts(
    stripes: MakeStripes, teachers: int, *, channels: int = 1
) -> tuple[list[NDArray[np.uint8]], list[NDArray[np.int64]]]:
    images, labels = stripes(40 * teachers, channels=channels)
    return np.split(images, teachers), np.split(labels, teachers)


def _plain(images: NDArray[np.uint8], labels: NDArray[np.int64], seed: int) -> Classifier:
    """The loop of `train_teacher`, without dropout, with the draws that one of many gets."""
    shape = (images.shape[1], images.shape[2], images.shape[3])
    with seeded(seed, "cpu"):
        model = build_classifier("small-cnn", shape, 4)
        for module in model.modules():
            if isinstance(module, Dropout):
                module.dropped = 0
        pixels = to_tensor(images, "cpu")
        model.preprocess.fit(pixels)
        fit_network(model, model.preprocess(pixels), torch.from_numpy(labels), SETTINGS)
    return model


@pytest.mark.parametrize("channels", [1, 3])
def test_each_of_many_is_the_teacher_that_it_would_be_alone(stripes: MakeStripes, channels: int) -> None:
    images, labels = _parts(stripes, 3, channels=channels)
    together = train_many(images, labels, num_classes=4, settings=SETTINGS, seeds=(5, 6, 7), dropout=0.0)
    for teacher, part, own, seed in zip(together, images, labels, (5, 6, 7), strict=True):
        plain = _plain(part, own, seed)
        for (name, found), expected in zip(
            teacher._model.state_dict().items(), plain.state_dict().values(), strict=True
        ):
            assert torch.allclose(found, expected, atol=2e-4), name
    first = together[0]._model.state_dict()["output.weight"]
    assert not torch.allclose(first, together[1]._model.state_dict()["output.weight"], atol=1e-2)


def test_with_dropout_and_parts_of_several_sizes_each_is_what_train_teacher_gives(
    stripes: MakeStripes,
) -> None:
    """Also of a part smaller than a batch, and in whatever company."""
    images, labels = _parts(stripes, 5)
    sizes = (40, 33, 39, 7, 16)
    images = [part[:size] for part, size in zip(images, sizes, strict=True)]
    labels = [own[:size] for own, size in zip(labels, sizes, strict=True)]
    together = train_many(images, labels, num_classes=4, settings=SETTINGS, seeds=range(5))
    for seed, teacher in enumerate(together):
        alone = train_teacher(images[seed], labels[seed], num_classes=4, settings=SETTINGS, seed=seed)
        for name, expected in alone._model.state_dict().items():
            assert torch.allclose(teacher._model.state_dict()[name], expected, atol=2e-5), (seed, name)


def test_of_many_records_patches_are_taken_at_each_step(
    stripes: MakeStripes, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = _parts(stripes, 2)
    given = {"num_classes": 4, "settings": SETTINGS, "seeds": range(2)}
    kept = train_many(images, labels, **given)
    monkeypatch.setattr("pate_fed.learning.teachers.batched._MOST_PATCHES", 0)
    for first, second in zip(kept, train_many(images, labels, **given), strict=True):
        for name, expected in first._model.state_dict().items():
            assert torch.allclose(second._model.state_dict()[name], expected, atol=1e-6), name


def test_many_learn(stripes: MakeStripes) -> None:
    images, labels = _parts(stripes, 4)
    fresh, truth = stripes(100, seed=1)
    settings = TeacherSettings(name="small-cnn", epochs=30, batch_size=16)
    for teacher in train_many(images, labels, num_classes=4, settings=settings, seeds=range(4)):
        assert np.mean(teacher.predict(fresh) == truth) > 0.6


def test_images_of_several_sizes_and_other_kinds_are_refused(stripes: MakeStripes) -> None:
    images, labels = _parts(stripes, 2)
    with pytest.raises(InputError, match="one size"):
        train_many([images[0], images[1][:, :9]], labels, num_classes=4, settings=SETTINGS, seeds=(0, 1))
    with pytest.raises(InputError, match="0 records"):
        train_many(
            [images[0], images[1][:0]],
            [labels[0], labels[1][:0]],
            num_classes=4,
            settings=SETTINGS,
            seeds=(0, 1),
        )
    with pytest.raises(InputError, match="small-cnn"):
        settings = TeacherSettings(name="deep-cnn")
        train_many(images, labels, num_classes=4, settings=settings, seeds=(0, 1))
    with pytest.raises(InputError, match="at least one"):
        train_many([], [], num_classes=4, settings=SETTINGS, seeds=())

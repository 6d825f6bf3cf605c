"""The improved GAN's networks: shapes, first scales, who learns what, files, real learning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from pate_fed.errors import PateFedError
from pate_fed.learning import EpochRecord, StudentSettings
from pate_fed.learning.inputs import to_tensor
from pate_fed.learning.networks.classifiers import build_discriminator
from pate_fed.learning.networks.generators import DeconvGenerator, DenseGenerator, build_generator
from pate_fed.learning.students import gan as steps
from pate_fed.learning.students.sets import Sets
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.train import train_student

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]
NETWORKS = ("dense", "nin-cnn", "nin-cnn-wide")
QUICK = StudentSettings(name="gan", network="dense", epochs=1, batch_size=20)


def _widths(network: nn.Module) -> list[int]:
    layers = [each for each in network.modules() if isinstance(each, nn.Linear | nn.Conv2d)]
    return [len(each.weight) for each in layers]


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3), (8, 9, 1), (13, 30, 3)])
@pytest.mark.parametrize("name", NETWORKS)
def test_any_image_fits(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    network, generator = build_discriminator(name, shape, 7), build_generator(name, shape)
    images = generator.draw(3)
    assert images.shape == (3, shape[2], *shape[:2]) and 0 <= images.min() <= images.max() <= 1
    fronted = network.front(images)
    assert network.features(fronted).shape == (3, {"dense": 250, "nin-cnn": 128}.get(name, 192))
    assert network(images).shape == (3, 7)
    assert isinstance(generator, DenseGenerator if name == "dense" else DeconvGenerator)


def test_the_layers_are_the_recipes() -> None:
    assert _widths(build_discriminator("dense", (28, 28, 1), 10)) == [1000, 500, 250, 250, 250, 10]
    for name, wide in (("nin-cnn", 64), ("nin-cnn-wide", 96)):
        expected = [wide] * 3 + [2 * wide] * 6 + [10]
        network = build_discriminator(name, (32, 32, 3), 10)
        assert _widths(network) == expected
        sizes = [each.kernel_size[0] for each in network.modules() if isinstance(each, nn.Conv2d)]
        assert sizes == [3] * 7 + [1] * 2
    assert DeconvGenerator((32, 32, 3)).start == (512, 4, 4)


@pytest.mark.parametrize("name", NETWORKS)
def test_only_the_last_layers_scale_is_trained(name: str) -> None:
    network = build_discriminator(name, (16, 16, 1), 4)
    scales = [w for key, w in network.named_parameters() if key.endswith("original0")]
    assert [w.requires_grad for w in scales] == [False] * (len(scales) - 1) + [True]
    assert all(w.requires_grad for key, w in network.named_parameters() if not key.endswith("original0"))


@pytest.mark.parametrize(("name", "std"), [("dense", 1.0), ("nin-cnn", 0.1)])
def test_first_answers_have_mean_0_and_one_deviation(stripes: MakeStripes, name: str, std: float) -> None:
    torch.manual_seed(0)
    images, _ = stripes(300)
    network = build_discriminator(name, (16, 16, 1), 4, dropout=0.0, input_noise=0.0)
    fronted = network.front(to_tensor(images, "cpu"))
    network.settle(fronted)
    answers: list[torch.Tensor] = []
    first = next(each for each in network.modules() if isinstance(each, nn.Linear | nn.Conv2d))
    first.register_forward_hook(lambda layer, given, answer: answers.append(answer))
    with torch.no_grad():
        logits = network.train().logits(fronted)
    units = answers[0].transpose(0, 1).flatten(1)  # (units, n·places)
    dropped = name == "nin-cnn"  # its input is, so a second look differs
    assert torch.allclose(units.mean(dim=1), torch.zeros(len(units)), atol=0.1 if dropped else 1e-4)
    assert torch.allclose(units.std(dim=1), torch.ones(len(units)), atol=0.1 if dropped else 1e-2)
    assert logits.std(dim=0).mean() == pytest.approx(std, rel=0.2)
    assert logits.mean(dim=0).abs().max() < 0.3 * std


def test_blank_inputs_settle_nothing_into_infinity() -> None:
    network = build_discriminator("dense", (8, 8, 1), 2, input_noise=0.0)
    network.settle(torch.zeros(1, 1, 8, 8))
    assert all(torch.isfinite(weight).all() for weight in network.parameters())


@pytest.mark.parametrize("name", ["dense", "nin-cnn"])
def test_each_loss_moves_its_own_weights(stripes: MakeStripes, name: str) -> None:
    images, labels = stripes(60, size=8)
    settings = replace(QUICK, network=name)
    trainer = steps.Trainer(settings, (8, 8, 1), 4, to_tensor(images, "cpu"), samples=30)
    generator = trainer.generator
    assert generator is not None
    u, (network,) = trainer.inputs[30:], trainer.networks

    def moved(step: Callable[[], object]) -> list[bool]:
        before = [[w.detach().clone() for w in each.parameters()] for each in (network, generator)]
        step()
        after = [list(each.parameters()) for each in (network, generator)]
        return [
            any(not torch.equal(*pair) for pair in zip(*both, strict=True))
            for both in zip(before, after, strict=True)
        ]

    assert moved(lambda: trainer._learn_generator(u, trainer.front(generator.draw(30)))) == [False, True]
    assert all(w.grad is not None for w in generator.parameters())  # every layer of it has a slope
    trainer.generator_optimiser = torch.optim.SGD(generator.parameters(), lr=0.0)
    y = torch.from_numpy(labels[:30].copy())
    assert moved(lambda: trainer._learn_batch(trainer.inputs[:30], y, u, 1.0)) == [True, False]
    assert all((w.grad is not None) == w.requires_grad for w in network.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_files_give_the_same_student(stripes: MakeStripes, tmp_path: Path, name: str) -> None:
    images, labels = stripes(40, size=8, channels=3)
    student = _student(images, labels[:20], replace(QUICK, network=name))
    student.save(tmp_path / "student.pt")
    student.export(tmp_path / "student.ts")
    again = Student.load(tmp_path / "student.pt")
    assert np.array_equal(again.predict_proba(images), student.predict_proba(images))
    made, remade = student.generate(4, seed=1), again.generate(4, seed=1)
    assert made is not None and made.shape == (4, 8, 8, 3) and np.array_equal(made, remade)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch calls TorchScript old
        exported = torch.jit.load(tmp_path / "student.ts")  # type: ignore[no-untyped-call]
        found = exported(torch.from_numpy(images.copy())).numpy()
    assert np.allclose(found, student.predict_proba(images), atol=1e-5)


@pytest.mark.parametrize(("name", "student"), [("dense", "pate++"), ("nin-cnn", "gan")])
def test_a_stopped_run_goes_on_to_the_same_student(
    stripes: MakeStripes, tmp_path: Path, name: str, student: str
) -> None:
    images, labels = stripes(40, size=8)
    settings = replace(QUICK, name=student, network=name, epochs=2, noise_rate=0.2)
    whole = _student(images, labels[:20], settings)

    def stop(record: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "student.checkpoint"
    with pytest.raises(KeyboardInterrupt):
        _student(images, labels[:20], settings, checkpoint=path, on_epoch=stop)
    resumed = _student(images, labels[:20], settings, checkpoint=path)
    assert resumed.history == whole.history
    assert np.array_equal(resumed.predict_proba(images), whole.predict_proba(images))


@pytest.mark.parametrize("name", ["dense", "nin-cnn"])
def test_few_labels_are_enough(name: str) -> None:
    images, labels = _patterns(200, seed=0)
    fresh, answers = _patterns(200, seed=1)
    settings = replace(QUICK, network=name, epochs=2, ema_decay=0.9)
    student = _student(images, labels[:30], settings)
    assert np.mean(student.predict(fresh) == answers) > 0.9


@pytest.mark.parametrize("name", ["dense", "nin-cnn"])
def test_a_broken_weight_ends_the_run_and_is_named(
    stripes: MakeStripes, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    images, labels = stripes(40, size=8)
    true = steps.Trainer.run_epoch

    def breaking(trainer: steps.Trainer, epoch: int, sets: Sets) -> EpochRecord:
        if epoch == 2:
            next(trainer.networks[0].parameters()).data.fill_(torch.nan)
        return true(trainer, epoch, sets)

    monkeypatch.setattr(steps.Trainer, "run_epoch", breaking)
    with pytest.raises(PateFedError, match="supervised loss is nan in epoch 2"):
        _student(images, labels[:20], replace(QUICK, network=name, epochs=3))


def _patterns(count: int, *, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Four fixed pictures of 9×9 under noise: what a network without convolutions can learn of few."""
    pictures = np.random.default_rng(7).integers(60, 196, (4, 3, 3)).repeat(3, axis=1).repeat(3, axis=2)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    noisy = pictures[labels] + rng.normal(0, 30, (count, 9, 9))
    return noisy.clip(0, 255).astype(np.uint8)[..., None], labels.astype(np.int64)


def _student(
    images: NDArray[np.uint8], labels: NDArray[np.int64], settings: StudentSettings, **given: object
) -> Student:
    """On the first so many images, as many as there are labels."""
    return train_student(
        images,
        labelled_index=np.arange(len(labels)),
        labels=labels,
        num_classes=4,
        settings=settings,
        seed=0,
        **given,  # type: ignore[arg-type]
    )

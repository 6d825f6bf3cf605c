"""Virtual adversarial training: the step found is the one that matters, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.learning import StudentSettings, optimisers
from pate_fed.learning.inputs import to_tensor
from pate_fed.learning.networks.classifiers import Classifier, build_discriminator
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.vat import _divergence, _unit, virtual_adversarial_loss

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]
TrainOn = Callable[..., Student]


@pytest.fixture
def network(stripes: MakeStripes) -> tuple[Classifier, torch.Tensor]:
    """A discriminator that has learnt a little, and images."""
    images, labels = stripes(200)
    torch.manual_seed(0)
    x, y = to_tensor(images, "cpu"), torch.from_numpy(labels.copy())
    made = build_discriminator("small-cnn", (16, 16, 1), 4)
    made.preprocess.fit(x)
    optimiser = optimisers.Adam(made.parameters(), lr=3e-3)
    for _ in range(40):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(made(x), y).backward()
        optimiser.step()
    return made, x[:50]


def test_the_step_sways_the_classes_more_than_any_step_of_its_length(
    network: tuple[Classifier, torch.Tensor],
) -> None:
    made, x = network
    made.eval()
    with torch.no_grad():
        log_p = made(x).log_softmax(dim=1)
        entropy = -(log_p.exp() * log_p).sum(dim=1).mean()
        steps = [0.5 * _unit(torch.randn_like(x)) for _ in range(5)]
        random = [float(_divergence(log_p, made(x + step))) for step in steps]
    worst = float(virtual_adversarial_loss(made, x, length=0.5).detach() - entropy)
    assert worst > 3 * max(random) > 0


def test_the_network_is_as_it_was_and_its_weights_get_a_slope(
    network: tuple[Classifier, torch.Tensor],
) -> None:
    made, x = network
    made.train()
    virtual_adversarial_loss(made, x).backward()  # type: ignore[no-untyped-call]
    assert made.training and x.grad is None
    slopes = [weight.grad for weight in made.parameters()]
    assert all(slope is not None and torch.isfinite(slope).all() for slope in slopes)


def test_flat_images_give_finite_numbers(network: tuple[Classifier, torch.Tensor]) -> None:
    made, x = network
    assert torch.isfinite(virtual_adversarial_loss(made, torch.zeros_like(x)))
    assert float(_unit(torch.full((1, 1, 2, 2), 1e-30)).norm()) == pytest.approx(1, rel=1e-4)


@pytest.mark.slow
def test_few_labels_teach_more_beside_unlabelled_images(stripes: MakeStripes, train_on: TrainOn) -> None:
    images, labels = stripes(600)
    fresh, answers = stripes(300, seed=1)
    found = {}
    for name, epochs in (("supervised", 60), ("vat", 10)):
        settings = StudentSettings(name=name, epochs=epochs, batch_size=50, ema_decay=0.9)
        student = train_on(images, labels[:16], settings)
        found[name] = float(np.mean(student.predict(fresh) == answers))
        assert (student.history[-1].loss_unsupervised is None) == (name == "supervised")
    assert found["vat"] > found["supervised"]

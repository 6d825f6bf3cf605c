"""FixMatch: its views, its threshold, its labels of small loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.errors import PateFedError
from pate_fed.learning import StudentSettings
from pate_fed.learning.networks.classifiers import build_discriminator
from pate_fed.learning.students import fixmatch
from pate_fed.learning.students.fixmatch import FixMatch, ImageViews, shifted, strong_view, weak_view
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.trainer import LabelledPool, TrainingSets
from pate_fed.learning.tensors import to_tensor

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]
TrainOn = Callable[..., Student]
MakePool = Callable[..., LabelledPool]


EPOCHS = 5
QUICK = StudentSettings(name="fixmatch", epochs=8, batch_size=20, noise_rate=0.2, learning_rate=3e-3)


def test_a_shift_is_the_plain_one() -> None:
    x = torch.rand(2, 3, 6, 5)
    found = shifted(x, torch.tensor([1, -2]), torch.tensor([0, 2]))
    for image, down, right in ((0, 1, 0), (1, -2, 2)):
        for row in range(6):
            for column in range(5):
                source = x[image, :, min(max(row - down, 0), 5), min(max(column - right, 0), 4)]
                assert torch.equal(found[image, :, row, column], source)


def test_views_stay_in_range_and_the_strong_one_is_stronger() -> None:
    torch.manual_seed(0)
    x = torch.rand(50, 1, 16, 16)
    weak, strong = weak_view(x), strong_view(x)
    for view in (weak, strong):
        assert view.shape == x.shape and 0 <= float(view.min()) and float(view.max()) <= 1
    hidden = (strong == 0.5).float().mean()
    assert 0.1 < float(hidden) < 0.3  # a square of half the side, cut at the edges
    assert float((weak == 0.5).float().mean()) == 0


def test_it_stands_wrong_labels(stripes: MakeStripes, noisy_student: Callable[[str], Student]) -> None:
    student, (fresh, answers) = noisy_student("fixmatch"), stripes(300, seed=1)
    assert np.mean(student.predict(fresh) == answers) > 0.7
    assert student.history[-1].kept_share == pytest.approx(0.8, abs=0.05)


def test_an_unsure_network_teaches_itself_nothing(
    stripes: MakeStripes, pool_of: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(60)
    losses = []
    for confidence in (1.1, 0.0):
        monkeypatch.setattr(fixmatch, "CONFIDENCE", confidence)
        torch.manual_seed(0)
        pixels = to_tensor(images, "cpu")
        sets = TrainingSets.of(pool_of(images, labels[:20]), "cpu")
        trainer = FixMatch.of_images(replace(QUICK, network="small-cnn"), (16, 16, 1), 4, pixels)
        record = trainer.run_epoch(1, sets)
        losses.append(record.loss_unsupervised)
    assert losses[0] == 0 and losses[1] > 0  # type: ignore[operator]


def test_divergence_is_named(
    stripes: MakeStripes, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(60)
    monkeypatch.setattr(fixmatch, "supervised_losses", lambda logits, y: logits.sum(dim=1) * torch.nan)
    with pytest.raises(PateFedError, match="supervised loss is nan in epoch 1"):
        train_on(images, labels[:20], QUICK)


def test_a_network_that_knows_the_responses_law_is_sure_of_the_true_class(
    stripes: MakeStripes, pool_of: MakePool
) -> None:
    """Four classes, labels kept with probability 0.6: the law makes up for what responses hide."""
    images, truth = stripes(700)
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(700) < 0.6, truth, (truth + rng.integers(1, 4, 700)) % 4)
    pixels, found = to_tensor(images, "cpu"), {}
    for kept in (1.0, 0.6):
        torch.manual_seed(0)
        settings = StudentSettings(name="fixmatch", epochs=EPOCHS, batch_size=40, noise_rate=0.0)
        network = build_discriminator("small-cnn", images.shape[1:], 4, dropout=0.0, input_noise=0.1)
        network.preprocess.fit(pixels)
        trainer = FixMatch(settings, network, ImageViews(pixels, network.preprocess), keep_probability=kept)
        sets = TrainingSets.of(pool_of(images, labels.astype(np.int64)), "cpu")
        for epoch in range(1, EPOCHS + 1):
            trainer.run_epoch(epoch, sets)
        with torch.no_grad():
            found[kept] = trainer.average(pixels).softmax(dim=1)
    right = {kept: float((p.argmax(dim=1).numpy() == truth).mean()) for kept, p in found.items()}
    assert right[0.6] > 0.9 and right[0.6] >= right[1.0] - 0.02
    assert float(found[1.0].max(dim=1).values.mean()) < 0.75 < float(found[0.6].max(dim=1).values.mean())

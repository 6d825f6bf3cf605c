"""PATE++'s cleansing against a slow version written from the paper, and its use in a whole run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.learning import StudentSettings
from pate_fed.learning.inputs import to_tensor
from pate_fed.learning.students import gan as steps
from pate_fed.learning.students.cleansing import decayed, most_suspected, suspects
from pate_fed.learning.students.sets import Sets
from pate_fed.learning.students.train import train_student

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]
QUICK = StudentSettings(name="pate++", epochs=3, batch_size=50, learning_rate=3e-3, noise_rate=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_cleansing_is_the_papers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples, epochs, alpha, tau = 40, 9, 0.9, 0.25
    labels = rng.integers(0, 3, samples)
    predictions = rng.integers(0, 3, (epochs, 2, samples))

    slow = [0.0] * samples
    for epoch in range(epochs):
        for i in range(samples):
            one, two = predictions[epoch, 0, i], predictions[epoch, 1, i]
            counted = one != two and one != labels[i] and two != labels[i]
            slow[i] = alpha * slow[i] + (1.0 if counted else 0.0)
    by_count = sorted(range(samples), key=lambda i: (-slow[i], i))
    slow_removed = {i for i in by_count[: int(tau * samples)] if slow[i] > 0}

    table = torch.zeros(samples, dtype=torch.float64)
    for one, two in predictions:
        found = suspects(torch.from_numpy(one), torch.from_numpy(two), torch.from_numpy(labels))
        table = decayed(table, found, decay=alpha)
    assert table.tolist() == pytest.approx(slow)
    assert set(most_suspected(table, share=tau).nonzero().flatten().tolist()) == slow_removed


def test_early_suspicion_fades_and_late_suspicion_stays() -> None:
    table = torch.zeros(2)
    for epoch in range(10):
        table = decayed(table, torch.tensor([epoch < 3, epoch >= 7]), decay=0.9)
    assert table[1] > table[0] * 1.5


def test_nobody_suspected_nobody_removed() -> None:
    assert not most_suspected(torch.zeros(10), share=0.5).any()
    assert not most_suspected(torch.ones(10), share=0.0).any()


@pytest.mark.parametrize(("share", "count"), [(0.318, 699), (0.4, 880), (0.091, 200)])
def test_the_removed_count_is_the_papers(share: float, count: int) -> None:
    assert int(most_suspected(torch.rand(2200) + 1, share=share).sum()) == count == math.floor(share * 2200)


def test_removed_samples_join_the_unlabelled() -> None:
    index, labels = np.array([5, 2, 9]), np.array([0, 1, 1])
    sets = Sets.of(index, labels, np.array([0, 0, 1]), count=10, device="cpu")
    clean = sets.without(torch.tensor([False, True, False]))
    assert clean.labelled.tolist() == [5, 9] and clean.labels.tolist() == [0, 1]
    assert sets.wrong.tolist() == [False, True, False] and clean.wrong.tolist() == [False, False]
    assert sorted(clean.unlabelled.tolist() + clean.labelled.tolist()) == list(range(10))


def test_pate_plus_learns_from_disagreement_only(stripes: MakeStripes) -> None:
    images, labels = stripes(60)
    settings = replace(QUICK, name="pate+")
    trainer = steps.Trainer(settings, (16, 16, 1), 4, to_tensor(images, "cpu"), samples=30)
    for network in trainer.networks:
        network.eval()  # without noise, so that the two passes here are the same
    x, y = trainer.inputs[:30], torch.from_numpy(labels[:30])
    with torch.no_grad():
        logits = [network.logits(x) for network in trainer.networks]
    figures, disagree, _ = trainer._learn_batch(x, y, trainer.inputs[30:], 0.8)
    assert torch.equal(disagree, logits[0].argmax(1) != logits[1].argmax(1))
    kept = math.ceil(0.8 * int(disagree.sum()) - 1e-9)
    assert figures[3].item() * 30 == pytest.approx(kept, abs=1e-4)
    losses = [torch.nn.functional.cross_entropy(each, y, reduction="none") for each in logits]
    chosen = [losses[1 - i][disagree].argsort()[:kept] for i in (0, 1)]
    expected = np.mean([losses[i][disagree][chosen[i]].mean().item() for i in (0, 1)])
    assert figures[0].item() == pytest.approx(expected, rel=1e-4)


def test_two_that_always_agree_learn_without_labels(
    stripes: MakeStripes, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(80)
    true = steps.build_discriminator

    def stubborn(*args: object, **options: object) -> object:
        network = true(*args, **options)  # type: ignore[arg-type]
        with torch.no_grad():
            network.output.bias[1] = 1000.0  # type: ignore[index, operator, union-attr]
        return network

    monkeypatch.setattr(steps, "build_discriminator", stubborn)
    student = train_student(
        images,
        labelled_index=np.arange(40),
        labels=labels[:40],
        num_classes=4,
        settings=QUICK,
        seed=0,
    )
    assert all(record.kept_share == 0.0 and record.disagreements == 0 for record in student.history)
    assert all(record.loss_supervised == 0.0 for record in student.history)
    assert np.isfinite(student.predict_proba(images)).all()


def test_pate_plus_plus_removes_wrong_labels_rather_than_right_ones(
    stripes: MakeStripes, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, truth = stripes(400)
    labels, rng = truth[:200].copy(), np.random.default_rng(0)
    wrong = rng.random(200) < 0.3
    labels[wrong] = (labels[wrong] + rng.integers(1, 4, wrong.sum())) % 4
    taken: list[NDArray[np.bool_]] = []
    true = Sets.without

    def spy(sets: Sets, removed: torch.Tensor) -> Sets:
        taken.append(removed.numpy())
        return true(sets, removed)

    monkeypatch.setattr(Sets, "without", spy)
    student = train_student(
        images,
        labelled_index=np.arange(200),
        labels=labels,
        num_classes=4,
        settings=replace(QUICK, epochs=6),
        seed=0,
        true_labels=truth[:200],
    )
    (removed,) = taken
    assert 0 < removed.sum() <= 60
    assert wrong[removed].mean() > 1.5 * wrong.mean()  # random removal would take 30 % wrong ones
    assert [record.epoch for record in student.history] == list(range(1, 13))
    assert [record.stage for record in student.history] == [1] * 6 + [2] * 6
    told = [r.disputed_wrong_share for r in student.history if r.disputed_wrong_share is not None]
    assert told and all(0 <= share <= 1 for share in told)

"""Training a student: each kind learns, odd inputs have a defined outcome, divergence is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.errors import InputError, PateFedError
from pate_fed.learning import STUDENTS, EpochRecord, StudentSettings
from pate_fed.learning.networks import classifiers
from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.students import gan as steps
from pate_fed.learning.students import train
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.train import train_student
from pate_fed.learning.students.trainer import LabelledPool, TrainingSets

MakeStripes = Callable[..., tuple[NDArray[np.uint8], NDArray[np.int64]]]
MakePool = Callable[..., LabelledPool]
TrainOn = Callable[..., Student]
QUICK = StudentSettings(epochs=2, batch_size=50, learning_rate=3e-3, noise_rate=0.2)


@pytest.mark.parametrize("name", STUDENTS)
def test_a_student_of_noisy_labels_beats_chance(
    stripes: MakeStripes, noisy_student: Callable[[str], Student], name: str
) -> None:
    student, (fresh, answers) = noisy_student(name), stripes(300, seed=1)
    accuracy, history = float(np.mean(student.predict(fresh) == answers)), student.history
    assert accuracy > 0.6
    assert [record.epoch for record in history] == list(range(1, student.settings.total_epochs + 1))
    assert history[-1].test_accuracy == pytest.approx(accuracy)
    alone = ("supervised", "fixmatch", "vat", "encoder-head")
    assert (history[-1].loss_generator is None) == (name in alone)
    assert (history[-1].disagreements is None) == (name in (*alone, "gan"))


@pytest.mark.parametrize("name", ["pate++", "encoder-head"])
def test_every_record_is_told(stripes: MakeStripes, train_on: TrainOn, name: str) -> None:
    images, labels = stripes(60, size=8)
    seen: list[EpochRecord] = []
    student = train_on(images, labels[:20], replace(QUICK, name=name), on_epoch=seen.append)
    assert seen == student.history and len(seen) == student.settings.total_epochs


def test_the_deep_network_takes_colour(stripes: MakeStripes, train_on: TrainOn) -> None:
    images, labels = stripes(40, size=8, channels=3)
    settings = StudentSettings(network="deep-cnn", epochs=1, batch_size=20)
    student = train_on(images, labels[:20], settings)
    made = student.generate(3)
    assert made is not None and made.shape == (3, 8, 8, 3) and made.dtype == np.uint8


def test_co_teaching_keeps_what_the_schedule_says(stripes: MakeStripes, train_on: TrainOn) -> None:
    images, labels = stripes(100)
    settings = replace(QUICK, name="co-teaching", noise_rate=0.3, ramp_epochs=3, epochs=4)
    student = train_on(images, labels[:50], settings)
    assert [record.kept_share for record in student.history] == pytest.approx([0.9, 0.8, 0.7, 0.7])


@pytest.mark.parametrize("name", ["supervised", "pate++", "vat", "fixmatch"])
def test_extreme_batches_and_dropout_work(stripes: MakeStripes, train_on: TrainOn, name: str) -> None:
    images, labels = stripes(30, size=8)
    for batch_size in (2, 100_000):
        settings = replace(QUICK, name=name, epochs=1, batch_size=batch_size, dropout=0.9999)
        assert np.isfinite(train_on(images, labels[:10], settings).predict_proba(images)).all()


@pytest.mark.parametrize("name", STUDENTS)
def test_labels_of_one_class_give_a_student_of_that_class(
    stripes: MakeStripes, train_on: TrainOn, name: str
) -> None:
    images, _ = stripes(70)
    labels = np.full(40, 2, dtype=np.int64)
    student = train_on(images, labels, replace(QUICK, name=name, epochs=8, ema_decay=0.9))
    assert np.all(student.predict(images) == 2)


@pytest.mark.parametrize("name", STUDENTS)
@pytest.mark.parametrize("count", [1, 3])
def test_fewer_labels_than_a_batch_work(
    stripes: MakeStripes, train_on: TrainOn, name: str, count: int
) -> None:
    images, labels = stripes(70, size=8)
    student = train_on(images, labels[:count], replace(QUICK, name=name, epochs=1))
    assert np.isfinite(student.predict_proba(images)).all()


@pytest.mark.parametrize("name", STUDENTS)
def test_without_unlabelled_data_the_labelled_ones_serve(
    stripes: MakeStripes, train_on: TrainOn, name: str
) -> None:
    images, labels = stripes(60, size=8)
    student = train_on(images, labels, replace(QUICK, name=name, epochs=1))
    assert np.isfinite(student.predict_proba(images)).all()


@pytest.mark.parametrize("name", STUDENTS)
def test_a_class_without_a_label_is_not_learnt(stripes: MakeStripes, train_on: TrainOn, name: str) -> None:
    images, labels = stripes(140)
    some = np.flatnonzero(labels != 3)[:80]
    student = train_on(images, labels[some], replace(QUICK, name=name, epochs=3), index=some)
    assert np.mean(student.predict(images) == 3) < 0.05


def test_one_public_image_works(train_on: TrainOn) -> None:
    images = np.full((1, 8, 8, 1), 7, dtype=np.uint8)
    student = train_on(images, np.array([1]), replace(QUICK, epochs=1))
    assert student.predict(images).shape == (1,)


@pytest.mark.parametrize("part", ["unsupervised_loss", "supervised_losses", "feature_matching_loss"])
def test_divergence_ends_the_run_and_is_named(
    stripes: MakeStripes, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    images, labels = stripes(60, size=8)
    true = getattr(steps, part)
    monkeypatch.setattr(steps, part, lambda *args: true(*args) * float("nan"))
    name = {"supervised_losses": "supervised loss", "unsupervised_loss": "unsupervised loss"}
    with pytest.raises(PateFedError, match=rf"{name.get(part, 'generator')}.* nan in epoch 1"):
        train_on(images, labels[:20], QUICK)


def test_the_callers_randomness_is_left_alone(stripes: MakeStripes, train_on: TrainOn) -> None:
    images, labels = stripes(60)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    student = train_on(images, labels[:20], QUICK)
    student.generate(2)
    assert torch.equal(torch.rand(3), expected)


def test_few_labels_are_enough(train_on: TrainOn) -> None:
    images, labels = _patterns(200, seed=0)
    fresh, answers = _patterns(100, seed=1)
    settings = replace(QUICK, name="gan", network="dense", batch_size=20, ema_decay=0.9)
    student = train_on(images, labels[:30], settings)
    assert np.mean(student.predict(fresh) == answers) > 0.9


def test_a_broken_weight_ends_the_run_and_is_named(
    stripes: MakeStripes, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(40, size=8)
    true = steps.GANTrainer.run_epoch

    def breaking(trainer: steps.GANTrainer, epoch: int, sets: TrainingSets) -> EpochRecord:
        if epoch == 2:
            next(trainer.networks[0].parameters()).data.fill_(torch.nan)
        return true(trainer, epoch, sets)

    monkeypatch.setattr(steps.GANTrainer, "run_epoch", breaking)
    with pytest.raises(PateFedError, match="supervised loss is nan in epoch 2"):
        train_on(images, labels[:20], replace(QUICK, name="gan", network="dense", epochs=3))


def _patterns(count: int, *, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Four fixed pictures of 9×9 under noise: what a network without convolutions can learn of few."""
    pictures = np.random.default_rng(7).integers(60, 196, (4, 3, 3)).repeat(3, axis=1).repeat(3, axis=2)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    noisy = pictures[labels] + rng.normal(0, 30, (count, 9, 9))
    return noisy.clip(0, 255).astype(np.uint8)[..., None], labels.astype(np.int64)


@pytest.mark.parametrize("name", ["supervised", "gan", "co-teaching", "pate+", "pate++", "vat"])
def test_every_student_learns_on_the_encoder(
    stripes: MakeStripes, train_on: TrainOn, tmp_path: Path, name: str
) -> None:
    images, truth = stripes(100)
    labels = truth[:80].copy()
    labels[::8] = (labels[::8] + 1) % 4
    encoder = fit_encoder(images)
    settings = replace(QUICK, name=name, network="encoder", epochs=4, batch_size=20, removal=0.1)
    student = train_on(images, labels, settings, encoder=encoder)
    fresh, answers = stripes(200, seed=1)
    assert np.mean(student.predict(fresh) == answers) > 0.6
    student.save(tmp_path / "student.pt")
    again = Student.load(tmp_path / "student.pt")
    assert np.array_equal(again.predict_proba(fresh), student.predict_proba(fresh))
    for network in again._networks:
        assert torch.equal(network.preprocess.mean, encoder.preprocessing().mean)
        assert torch.equal(network.preprocess.basis, encoder.preprocessing().basis)


def test_without_the_studys_encoder_one_is_fitted_and_another_shape_is_refused(
    stripes: MakeStripes, train_on: TrainOn
) -> None:
    images, labels = stripes(60)
    settings = replace(QUICK, name="supervised", network="encoder", epochs=1)
    ours = train_on(images, labels[:30], settings)
    theirs = train_on(images, labels[:30], settings, encoder=fit_encoder(images))
    assert np.array_equal(ours.predict_proba(images), theirs.predict_proba(images))
    other = fit_encoder(stripes(60, size=12)[0])
    with pytest.raises(InputError, match="12"):
        train_on(images, labels[:30], settings, encoder=other)


def test_two_that_always_agree_learn_without_labels(
    stripes: MakeStripes, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = stripes(80)
    true = classifiers.build_discriminator

    def stubborn(*args: object, **options: object) -> object:
        network = true(*args, **options)  # type: ignore[arg-type]
        with torch.no_grad():
            network.output.bias[1] = 1000.0  # type: ignore[index, operator, union-attr]
        return network

    monkeypatch.setattr(classifiers, "build_discriminator", stubborn)
    settings = replace(QUICK, name="pate+", network="small-cnn", ema_decay=0.0)  # the paper's
    student = train_on(images, labels[:40], settings)
    assert all(record.kept_share == 0.0 and record.disagreements == 0 for record in student.history)
    assert all(record.loss_supervised == 0.0 for record in student.history)
    assert np.isfinite(student.predict_proba(images)).all()


@pytest.mark.parametrize(
    "removal", [0.3, None]
)  # as often suspected in the paper's way, or as both contradict
def test_pate_plus_plus_removes_wrong_labels_rather_than_right_ones(
    stripes: MakeStripes, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch, removal: float | None
) -> None:
    images, truth = stripes(240)
    labels, rng = truth[:160].copy(), np.random.default_rng(0)
    wrong = rng.random(160) < 0.3
    labels[wrong] = (labels[wrong] + rng.integers(1, 4, wrong.sum())) % 4
    taken: list[NDArray[np.bool_]] = []
    true = TrainingSets.without

    def spy(sets: TrainingSets, removed: torch.Tensor) -> TrainingSets:
        taken.append(removed.numpy())
        return true(sets, removed)

    monkeypatch.setattr(TrainingSets, "without", spy)
    settings = replace(QUICK, name="pate++", network="small-cnn", epochs=6, noise_rate=0.3, removal=removal)
    settings = settings if removal is None else replace(settings, ema_decay=0.0)
    student = train_on(images, labels, settings, true_labels=truth[:160])
    (removed,) = taken
    assert 0 < removed.sum() <= 160 * (removal or 0.4)
    told_removal = {record.removal for record in student.history if record.stage == 2}
    assert told_removal == {removal or float(np.float32(removed.mean()))}
    assert wrong[removed].mean() > 1.5 * wrong.mean()  # random removal would take 30 % wrong ones
    assert [record.epoch for record in student.history] == list(range(1, 13))
    assert [record.stage for record in student.history] == [1] * 6 + [2] * 6
    told = [r.disputed_wrong_share for r in student.history if r.disputed_wrong_share is not None]
    assert told and all(0 <= share <= 1 for share in told)


def test_an_encoder_of_other_images_is_refused_before_anything_is_trained(
    stripes: MakeStripes, train_on: TrainOn
) -> None:
    images, truth = stripes(120)
    with pytest.raises(InputError):
        train_on(
            images,
            truth[:60],
            replace(QUICK, name="supervised"),
            encoder=fit_encoder(images[:, :8, :8]),
            on_epoch=lambda record: pytest.fail("it was trained"),
        )


def test_students_learn_from_probabilities(stripes: MakeStripes, pool_of: MakePool) -> None:
    """Of each image the second class is a little less probable; hard labels are of one class throughout."""
    images, truth = stripes(120)
    shares = np.full((120, 4), 0.02, dtype=np.float32)
    shares[:, 0] = 0.5
    shares[np.arange(120), truth] += 0.44
    hard = replace(pool_of(images, np.zeros(120, dtype=np.int64)))
    soft = replace(hard, probabilities=shares)
    for name in ("supervised", "co-teaching", "encoder-head"):
        settings = replace(QUICK, name=name, epochs=6, network="encoder" if name != "encoder-head" else None)
        of_shares = train_student(soft, settings, seed=0).predict_proba(images)
        of_labels = train_student(hard, settings, seed=0).predict_proba(images)
        others = truth != 0
        told = of_shares[others, truth[others]]
        assert told.mean() > of_labels[others, truth[others]].mean() + 0.1, name
        assert abs(of_shares.max(axis=1).mean() - shares.max(axis=1).mean()) < 0.15, name  # not too sure


def test_a_head_keeps_two_peers_from_giving_up_a_class(
    stripes: MakeStripes, train_on: TrainOn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The co-teaching student asks a head of the labels that teach; one alone and the paper's ask none."""
    asked: list[LabelledPool] = []
    true = train.fit_head_student

    def spy(pool: LabelledPool, *rest: Any, **options: Any) -> Student:
        asked.append(pool)
        return true(pool, *rest, **options)

    monkeypatch.setattr(train, "fit_head_student", spy)
    images, labels = stripes(80)
    for name, network in (("co-teaching", "encoder"), ("co-teaching", "small-cnn")):
        train_on(images, labels[:40], replace(QUICK, name=name, network=network, epochs=1))
    assert [len(pool.labels) for pool in asked] == [40, 40]
    count = len(asked)
    papers = replace(QUICK, name="co-teaching", network="small-cnn", ema_decay=0.0, epochs=1)
    for settings in (papers, replace(QUICK, name="gan", network="encoder", epochs=1)):
        train_on(images, labels[:40], settings)
    assert len(asked) == count

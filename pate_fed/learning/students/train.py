"""Training a student from released labels: the loop over stages and epochs, and its calibration.

PATE++ (arXiv 2211.01628), Algorithm 1: "supervised" is one network on the released labels alone, "gan" is the
original PATE (one discriminator), "co-teaching" has two discriminators that choose each other's samples,
"pate+" lets them choose only where they disagree, "pate++" (Algorithm 3) does so, takes the label off the
samples that look wrong, and starts again from scratch. "vat" is one network and no generator: unlabelled
images hold it still against small steps in the pixels. On the public encoder, as by default, the two
discriminators also tell each other the classes of unlabelled images.
Post-processing of released labels and public inputs only, so nothing here costs privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pate_fed.data.dataset import release_memory
from pate_fed.learning.networks.encoder import Encoder, fit_encoder
from pate_fed.learning.settings import CLOSED_FORM, EpochRecord, StudentSettings
from pate_fed.learning.students.closed_form import (
    PoolFeatures,
    fit_head_student,
    fit_plain_head,
    head_probabilities,
)
from pate_fed.learning.students.fixmatch import FixMatch
from pate_fed.learning.students.gan import GANTrainer, contradicted, most_suspected
from pate_fed.learning.students.student import Student
from pate_fed.learning.students.trainer import Checkpoint, LabelledPool, Trainer, TrainingSets
from pate_fed.learning.tensors import check_images, image_shape, resolve_device, seeded, to_tensor

# β without manual checks and without privacy cost: an estimate from released labels and public inputs
# alone.
#
# A head on the public encoder learns from all labels; β̂ is the share of them that it contradicts where it
# has not learnt from them (leaving one out has a closed form). A wrong label is contradicted unless the
# teachers were wrong together, in a way that can be learnt; a right one only where the head errs. The two
# faults pull in opposite directions.
#
# Measured on Fashion-MNIST, MNIST and Glyph, 500 to 2,200 labels, 4 to 31 % of them wrong: β̂ - β between
# -0.06 and +0.04 (`tests/benchmarks/test_learning_benchmark.py` prints it for Fashion-MNIST). With few
# labels a class the head errs more, and β̂ is too large.


FEWEST_A_CLASS = 8  # labels a class, on average, for an estimate that is worth having
MOST = 0.6  # beyond it small losses point nowhere


def estimate_noise_rate(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    num_classes: int,
    encoder: Encoder,
    device: str = "cpu",
    least: float = 0.0,
) -> float:
    """β̂, the share of released labels that are wrong: those which a head of all others contradicts.

    It is at least `least`, which `least_noise_rate` gives, and at most 0.6. Too few labels give
    the default β.
    Shapes: the labelled images uint8 (m, H, W, C) and their released labels int64 (m,).

    Raises:
        InputError: the images are not the encoder's.
    """
    if len(labels) < FEWEST_A_CLASS * num_classes:
        return min(max(StudentSettings.DEFAULT_NOISE_RATE, least), MOST)
    check_images(images, encoder.image_shape)
    _, left_out, truth = fit_plain_head(encoder, images, labels, num_classes=num_classes, device=device)
    contradicted = (left_out.argmax(dim=1) != truth).double().mean()
    return min(max(float(contradicted), least), MOST)


def least_noise_rate(*, sigma2: float, num_teachers: int, num_classes: int) -> float:
    """The share of labels that noise alone turns when all teachers agree and are right: the least there is.

    1 - ∫ φ(z) Φ(z + n/σ2)^(K-1) dz: the winner's noise is z·σ2, each rival stays below it by itself.
    """
    z = np.linspace(-9.0, 9.0, 4001)
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-(each + num_teachers / sigma2) / math.sqrt(2)) for each in z])
    wins = float(np.sum(density * below ** (num_classes - 1)) * (z[1] - z[0]))
    return min(max(1.0 - wins, 0.0), 1.0)


OnEpoch = Callable[[EpochRecord], None]
MakeNetwork = Callable[[], Any]

MOST_ASKED = 2000  # images on which a student is calibrated
ENOUGH_LABELS = 50  # for a head to calibrate it
LEAST_SHARE = 1e-4  # a head is never surer that a class is not meant


def train_student(
    pool: LabelledPool,
    settings: StudentSettings,
    *,
    seed: int,
    device: str = "cpu",
    encoder: Encoder | None = None,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
    make: MakeNetwork | None = None,
) -> Student:
    """Train a student on public images, some of which have released, partly wrong labels.

    The same seed, data, device and number of threads give the same student. Without unlabelled images the
    labelled ones serve as such; a class without a label is not learnt; labels all of one class give a student
    of that class.

    Where β is estimated it is at least the pool's `least_noise`. Probabilities are calibrated: those of
    "encoder-head" by left-out labels, others' on up to 2,000 images without a label, beside such a head
    (`Student.calibrate`), or beside the probabilities that labels came with; where there are none, fewer than
    50 labels or labels of one class alone, they are the networks' own, and too sure.

    With `checkpoint` the state is written there after each epoch; a later call with the same arguments goes
    on from it, to the student that an undisturbed run would have given. The file is removed at the end.
    "encoder-head" and networks on the encoder use the study's `encoder`, or fit one to the pool. The former
    is fitted at once, in closed form: it has no epochs that could be stopped or gone on from, and writes no
    checkpoint. With `make` the network is one's own, which it makes.

    Raises:
        InputError: the device is not there, the encoder is of other images, or the checkpoint belongs to
            another run.
        IntegrityError: the checkpoint is damaged.
        PateFedError: a loss or a weight is no longer finite; the error names the epoch and which.
    """
    if encoder is not None:  # not only at the end, where every student is calibrated on it
        check_images(pool.images[:1], encoder.image_shape)
    device = resolve_device(device)
    known = cache(lambda: encoder or fit_encoder(pool.images))  # fitted once, where it is wanted
    if settings.name in CLOSED_FORM:
        student = fit_head_student(pool, settings, known(), seed=seed, device=device)
        student.check_weights()
        accuracy = _accuracy(student, images=pool.test_images, labels=pool.test_labels)
        student.history[0] = replace(student.history[0], test_accuracy=accuracy)
        if on_epoch is not None:
            on_epoch(student.history[0])
        return student
    settings = _with_noise_rate(settings, pool, device, known)
    on_encoder = known() if settings.built_on == "encoder" or settings.adds("head") else None
    saved = Checkpoint.at(checkpoint, pool, settings, seed, encoder=on_encoder)
    with seeded(seed, device):
        student = _train_stages(
            pool, settings, saved, on_encoder, seed=seed, device=device, on_epoch=on_epoch, make=make
        )
    _calibrate(student, pool, device=device, encoder=known)
    saved.remove()
    return student


def _with_noise_rate(
    settings: StudentSettings, pool: LabelledPool, device: str, encoder: Callable[[], Encoder]
) -> StudentSettings:
    """The same with an open β set: estimated, or 0 for "fixmatch" and for labels that tell of their doubt."""
    if settings.chosen("noise_rate") is not None or not (settings.co_teaching or settings.name == "fixmatch"):
        return settings
    if settings.name == "fixmatch" or pool.probabilities is not None:
        return replace(settings, noise_rate=0.0)
    estimate = estimate_noise_rate(
        pool.images[pool.labelled_index],
        pool.labels,
        num_classes=pool.num_classes,
        encoder=encoder(),
        device=device,
        least=pool.least_noise,
    )
    return replace(settings, noise_rate=estimate)


def _train_stages(
    pool: LabelledPool,
    settings: StudentSettings,
    saved: Checkpoint,
    encoder: Encoder | None,
    seed: int,
    device: str,
    on_epoch: OnEpoch | None,
    make: MakeNetwork | None,
) -> Student:
    """Every epoch of every stage, from where `saved` stands."""
    sets = TrainingSets.of(pool, device)
    shape = image_shape(pool.images)
    new_student = partial(
        Student, settings=settings, image_shape=shape, num_classes=pool.num_classes, device=device
    )
    new_trainer = _trainers(pool, settings, encoder, seed=seed, device=device, make=make)
    pixels = to_tensor(pool.images, device)
    release_memory()
    for stage in range(saved.stage, settings.stages + 1):
        taught = sets if saved.removed is None else sets.without(saved.removed.to(device))
        trainer = new_trainer(settings, shape, pool.num_classes, pixels)
        student = new_student(trainer.averages, trainer.generator, history=saved.history)
        epoch = saved.restore(trainer)
        while epoch < settings.stage_epochs:
            epoch += 1
            record = trainer.run_epoch(epoch, taught)
            accuracy = None
            if epoch % settings.test_every == 0 or epoch == settings.stage_epochs:
                accuracy = _accuracy(student, images=pool.test_images, labels=pool.test_labels)
            record = replace(
                record,
                epoch=len(saved.history) + 1,  # among all stages'; rates went by the stage's own
                stage=stage,
                noise_rate=settings.beta if settings.co_teaching else None,
                removal=_removal(settings, saved),
                test_accuracy=accuracy,
            )
            saved.history.append(record)
            saved.write(stage, epoch, trainer)
            if on_epoch is not None:
                on_epoch(record)
        student.check_weights()
        if stage < settings.stages:
            # PATE++: the next stage learns without the labels that look wrong.
            saved.removed = _suspected(trainer, settings, taught)
        del trainer  # and its inputs, before the next stage's are made
    student.removed = None if saved.removed is None else saved.removed.cpu().numpy()
    return student


def _contradicts(settings: StudentSettings) -> bool:
    """Whether PATE++ takes off the labels that both discriminators contradict, and not a share of them."""
    return settings.chosen("removal") is None and settings.adds("peers")


def _suspected(trainer: Trainer, settings: StudentSettings, sets: TrainingSets) -> Tensor:
    """The labels that PATE++ takes off, bool (m,)."""
    if _contradicts(settings):
        assert isinstance(trainer, GANTrainer)
        return contradicted(trainer, sets)
    assert trainer.counts is not None
    return most_suspected(trainer.counts, share=settings.tau)


def _removal(settings: StudentSettings, saved: Checkpoint) -> float | None:
    """τ as an epoch's record tells it: of the second stage what was taken off, where that was not set."""
    if settings.stages == 1:
        return None
    if not _contradicts(settings):
        return settings.tau
    return None if saved.removed is None else float(saved.removed.float().mean())


def _trainers(
    pool: LabelledPool,
    settings: StudentSettings,
    encoder: Encoder | None,
    *,
    seed: int,
    device: str,
    make: MakeNetwork | None,
) -> Callable[..., Trainer]:
    """What makes a stage's trainer of settings, shape, classes and pixels."""
    on_encoder = settings.built_on == "encoder"
    if settings.name == "fixmatch":
        return partial(FixMatch.of_images, encoder=encoder if on_encoder else None)
    features = None if encoder is None else PoolFeatures(encoder, pool.images, device)
    head = None
    told = settings.adds("head") and settings.co_teaching
    if told and _all_told(pool):
        assert pool.probabilities is not None
        shares = np.empty((len(pool.images), pool.num_classes), dtype=np.float32)
        shares[pool.labelled_index] = pool.probabilities
        head = torch.from_numpy(shares).to(device).clamp(min=LEAST_SHARE).log()
    elif features is not None and told:
        closed = StudentSettings(name="encoder-head")
        found = fit_head_student(
            pool, closed, features.encoder, seed=seed, device=device, features=features
        ).predict_proba(pool.images)
        head = torch.from_numpy(found).to(device).clamp(min=LEAST_SHARE).log()
    return partial(GANTrainer, features=features if on_encoder else None, head=head, make=make)


def _all_told(pool: LabelledPool) -> bool:
    """Whether all images came with probabilities, so that no head need say more."""
    return pool.probabilities is not None and not len(pool.unlabelled_index)


def _accuracy(
    student: Student, *, images: NDArray[np.uint8] | None, labels: NDArray[np.int64] | None
) -> float | None:
    """The share of `images` whose class the student predicts; None without images."""
    if images is None or labels is None or len(images) == 0:
        return None
    return float((student.predict(images) == labels).mean())


def _calibrate(student: Student, pool: LabelledPool, *, device: str, encoder: Callable[[], Encoder]) -> None:
    """Set the student's sharpness by what a head expects of images without a label, where it can be told."""
    rest = pool.unlabelled_index
    if pool.probabilities is not None:
        some = np.unique(np.linspace(0, len(pool.labels) - 1, MOST_ASKED).astype(np.int64))
        student.calibrate(pool.images[pool.labelled_index[some]], pool.probabilities[some])
        return
    if not len(rest) or len(pool.labels) < ENOUGH_LABELS or len(np.unique(pool.labels)) == 1:
        return
    asked = pool.images[rest[np.unique(np.linspace(0, len(rest) - 1, MOST_ASKED).astype(np.int64))]]
    expected = head_probabilities(pool, asked, encoder(), device=device)
    student.calibrate(asked, expected)

"""The student: a semi-supervised GAN with one or two discriminators, trained by one visible loop.

PATE++ (arXiv 2211.01628), Algorithm 1: "supervised" is one network on the released labels alone, "gan" is the
original PATE (one discriminator), "co-teaching" has two discriminators that choose each other's samples,
"pate+" lets them choose only where they disagree, "pate++" (Algorithm 3) does so, takes the label off the
samples that look wrong, and starts again from scratch. "vat" is one network and no generator: unlabelled
images hold it still against small steps in the pixels.
Post-processing of released labels and public inputs only, so nothing here costs privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.learning.checkpoint import Checkpoint
from pate_fed.learning.cleansing import most_suspected
from pate_fed.learning.device import resolve_device, seeded
from pate_fed.learning.features import Encoder, fit_encoder
from pate_fed.learning.fixmatch import FixMatch
from pate_fed.learning.inputs import check_images, check_labels, image_shape, to_tensor
from pate_fed.learning.light import fit_head_student
from pate_fed.learning.noise_rate import estimate_noise_rate
from pate_fed.learning.settings import LIGHT, EpochRecord, StudentSettings
from pate_fed.learning.student import Student
from pate_fed.learning.trainer import Sets, Trainer

__all__ = ["train_student"]


def train_student(
    images: NDArray[np.uint8],
    *,
    labelled_index: NDArray[np.int64],
    labels: NDArray[np.int64],
    num_classes: int,
    settings: StudentSettings,
    seed: int,
    device: str = "cpu",
    test_images: NDArray[np.uint8] | None = None,
    test_labels: NDArray[np.int64] | None = None,
    on_epoch: Callable[[EpochRecord], None] | None = None,
    true_labels: NDArray[np.int64] | None = None,
    checkpoint: Path | None = None,
    encoder: Encoder | None = None,
) -> Student:
    """Train a student on public images, some of which have released, partly wrong labels.

    The test part, and the labelled images' `true_labels` where they are known, are only reported in each
    `EpochRecord`; nothing is chosen by them. The same seed, data, device and number of threads give the same
    student. Without unlabelled images the labelled ones serve as such; a class without a label is not learnt;
    labels all of one class give a student of that class.

    With `checkpoint` the state is written there after each epoch; a later call with the same arguments goes
    on from it, to the student that an undisturbed run would have given. The file is removed at the end.

    "encoder-head" and "fixmatch" use the study's `encoder`, or fit one to `images`; neither has a checkpoint.

    Shapes: images uint8 (n, H, W, C), labelled_index int64 (m,) into them, labels int64 (m,), m ≥ 1.

    Raises:
        InputError: images, index or labels are not that, there is no label, the device is not there, or the
            checkpoint belongs to another run.
        IntegrityError: the checkpoint is damaged.
        PateFedError: a loss or a weight is no longer finite; the error names the epoch and which.
    """
    check_images(images)
    check_labels(labels, len(labelled_index), num_classes)
    _check_index(labelled_index, len(images))
    device = resolve_device(device)
    shape = image_shape(images)
    if settings.name in LIGHT:
        student = _head_student(images, labelled_index, labels, num_classes, settings, seed, device, encoder)
        accuracy = _accuracy(student, test_images, test_labels)
        student.history[0] = replace(student.history[0], test_accuracy=accuracy)
        if on_epoch is not None:
            on_epoch(student.history[0])
        return student
    tested = partial(_accuracy, images=test_images, labels=test_labels)
    if settings.name == "fixmatch":
        with seeded(seed, device):
            every = Sets.of(labelled_index, labels, true_labels, count=len(images), device=device)
            return _fixmatch_student(images, every, num_classes, settings, device, encoder, tested, on_epoch)
    if settings.noise_rate is None and settings.co_teaching:
        index = np.asarray(labelled_index)
        rate = estimate_noise_rate(images[index], labels, num_classes=num_classes, seed=seed, device=device)
        settings = replace(settings, noise_rate=rate)
    saved = Checkpoint.at(checkpoint, images, labelled_index, labels, settings, seed)
    with seeded(seed, device):
        pixels = to_tensor(images, device)
        every = Sets.of(labelled_index, labels, true_labels, count=len(images), device=device)
        student = _run_stages(saved, settings, shape, num_classes, pixels, every, tested, on_epoch)
    saved.remove()
    return student


def _run_stages(
    saved: Checkpoint,
    settings: StudentSettings,
    shape: tuple[int, int, int],
    num_classes: int,
    pixels: torch.Tensor,
    every: Sets,
    tested: Callable[[Student], float | None],
    on_epoch: Callable[[EpochRecord], None] | None,
) -> Student:
    """All stages of a student with discriminators: between them PATE++ takes off what it suspects most."""
    history = saved.history
    for stage in range(saved.stage, settings.stages + 1):
        sets = every if saved.removed is None else every.without(saved.removed.to(pixels.device))
        trainer = Trainer(settings, shape, num_classes, pixels, samples=len(sets.labelled))
        student = Student(
            trainer.averages,
            trainer.generator,
            settings=settings,
            image_shape=shape,
            num_classes=num_classes,
            device=str(pixels.device),
            history=history,
        )
        for epoch in range(1 + saved.restore(trainer), settings.stage_epochs + 1):
            record = trainer.run_epoch(epoch, sets)
            if epoch % settings.test_every == 0 or epoch == settings.stage_epochs:
                record = replace(record, test_accuracy=tested(student))
            # Epochs are counted through, losses and rates by the stage's own epoch.
            history.append(replace(record, epoch=len(history) + 1, stage=stage))
            saved.write(stage, epoch, trainer)
            if on_epoch is not None:
                on_epoch(history[-1])
        student.check_weights()
        student.counts = trainer.table.cpu().numpy() if settings.by_disagreement else None
        if stage < settings.stages:
            saved.removed = most_suspected(trainer.table, share=settings.tau)
    return student


def _head_student(
    images: NDArray[np.uint8],
    index: NDArray[np.int64],
    labels: NDArray[np.int64],
    num_classes: int,
    settings: StudentSettings,
    seed: int,
    device: str,
    encoder: Encoder | None,
) -> Student:
    encoder = fit_encoder(images) if encoder is None else encoder
    check_images(images[:1], encoder.image_shape)
    fitted = fit_head_student(
        to_tensor(images, device),
        np.asarray(index),
        labels,
        num_classes=num_classes,
        encoder=encoder,
        seed=seed,
    )
    record = EpochRecord(
        epoch=1,
        loss_supervised=fitted.loss,
        loss_unsupervised=None,
        loss_generator=None,
        kept_share=1.0,
        disagreements=None,
    )
    student = Student(
        [fitted.model],
        None,
        settings=settings,
        image_shape=encoder.image_shape,
        num_classes=num_classes,
        device=device,
        history=[record],
    )
    student.check_weights()
    return student


def _fixmatch_student(
    images: NDArray[np.uint8],
    sets: Sets,
    num_classes: int,
    settings: StudentSettings,
    device: str,
    encoder: Encoder | None,
    tested: Callable[[Student], float | None],
    on_epoch: Callable[[EpochRecord], None] | None,
) -> Student:
    """One network, on the encoder's features unless the settings name another; β is 0 unless given."""
    if settings.noise_rate is None:
        settings = replace(settings, noise_rate=0.0)
    shape = image_shape(images)
    if settings.network != "small-cnn":
        encoder = None
    elif encoder is None:
        encoder = fit_encoder(images)
    if encoder is not None:
        check_images(images[:1], encoder.image_shape)
    trained = FixMatch.of_images(settings, shape, num_classes, to_tensor(images, device), encoder)
    student = Student(
        [trained.average],
        None,
        settings=settings,
        image_shape=shape,
        num_classes=num_classes,
        device=device,
    )
    for record in trained.run(sets):
        if record.epoch % settings.test_every == 0 or record.epoch == settings.stage_epochs:
            record = replace(record, test_accuracy=tested(student))
        student.history.append(record)
        if on_epoch is not None:
            on_epoch(record)
    student.check_weights()
    return student


def _accuracy(
    student: Student, images: NDArray[np.uint8] | None, labels: NDArray[np.int64] | None
) -> float | None:
    if images is None or labels is None or len(images) == 0:
        return None
    return float((student.predict(images) == labels).mean())


def _check_index(index: NDArray[np.int64], count: int) -> None:
    if len(index) == 0:
        raise InputError(
            "a student got 0 labels: at least 1 is meant; ask more queries or lower the threshold"
        )
    if not np.issubdtype(index.dtype, np.integer) or index.ndim != 1:
        raise InputError(f"labelled_index is {index.dtype} {index.shape}: integers (m,) are meant")
    if index.min() < 0 or index.max() >= count:
        raise InputError(
            f"labelled_index runs from {index.min()} to {index.max()}: 0 to {count - 1} is meant"
        )

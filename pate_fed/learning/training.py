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
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.learning.checkpoint import Checkpoint
from pate_fed.learning.device import resolve_device, seeded
from pate_fed.learning.features import Encoder, fit_encoder
from pate_fed.learning.fixmatch import FixMatch
from pate_fed.learning.inputs import check_images, check_labels, image_shape, to_tensor
from pate_fed.learning.learner import Learner
from pate_fed.learning.light import fit_head_student
from pate_fed.learning.noise_rate import estimate_noise_rate
from pate_fed.learning.sets import Sets
from pate_fed.learning.settings import LIGHT, EpochRecord, StudentSettings
from pate_fed.learning.stages import Measure, Run, run_stages
from pate_fed.learning.stopping import held_out_part
from pate_fed.learning.student import Student
from pate_fed.learning.trainer import Trainer

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

    "encoder-head" and "fixmatch" use the study's `encoder`, or fit one to `images`. The former is fitted at
    once, in closed form: it has no epochs that could be stopped or gone on from, and writes no checkpoint.

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
    if settings.noise_rate is None and settings.co_teaching:
        index = np.asarray(labelled_index)
        rate = estimate_noise_rate(images[index], labels, num_classes=num_classes, seed=seed, device=device)
        settings = replace(settings, noise_rate=rate)
    if settings.noise_rate is None and settings.name == "fixmatch":
        settings = replace(settings, noise_rate=0.0)
    digest = None if encoder is None else encoder.digest
    saved = Checkpoint.at(checkpoint, images, labelled_index, labels, settings, seed, digest)
    sets = Sets.of(labelled_index, labels, true_labels, count=len(images), device=device)
    held = held_out_part(len(labels), settings, seed=seed)
    run = Run(
        settings=settings,
        image_shape=shape,
        num_classes=num_classes,
        learner_for=partial(_learner, images, num_classes, settings, device, encoder),
        tested=partial(_accuracy, images=test_images, labels=test_labels),
        held_out=_no_part if held is None else _part(images, labelled_index, labels, held.numpy()),
        on_epoch=on_epoch,
    )
    with seeded(seed, device):
        student = run_stages(run, saved, sets if held is None else sets.without(held.to(device)))
    saved.remove()
    return student


def _learner(
    images: NDArray[np.uint8],
    num_classes: int,
    settings: StudentSettings,
    device: str,
    encoder: Encoder | None,
    sets: Sets,
) -> Learner:
    """A stage's networks before their first epoch; that of "fixmatch" is on the encoder unless named."""
    shape, pixels = image_shape(images), to_tensor(images, device)
    if settings.name != "fixmatch":
        return Trainer(settings, shape, num_classes, pixels, samples=len(sets.labelled))
    if settings.network != "small-cnn":
        encoder = None
    elif encoder is None:
        encoder = fit_encoder(images)
    if encoder is not None:
        check_images(images[:1], encoder.image_shape)
    return FixMatch.of_images(settings, shape, num_classes, pixels, encoder)


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


def _accuracy(
    student: Student, images: NDArray[np.uint8] | None, labels: NDArray[np.int64] | None
) -> float | None:
    if images is None or labels is None or len(images) == 0:
        return None
    return float((student.predict(images) == labels).mean())


def _part(
    images: NDArray[np.uint8], index: NDArray[np.int64], labels: NDArray[np.int64], held: NDArray[np.bool_]
) -> Measure:
    """The share of the labels that are held out, bool (m,), that a student meets."""
    return partial(_accuracy, images=images[index[held]], labels=labels[held])


def _no_part(student: Student) -> None:
    return None


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

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
from pate_fed.learning.device import resolve_device, seeded
from pate_fed.learning.inputs import check_images, check_labels, image_shape, to_tensor
from pate_fed.learning.networks.encoder import Encoder, fit_encoder
from pate_fed.learning.networks.linear import fit_head_student, second_opinion
from pate_fed.learning.settings import LIGHT, EpochRecord, StudentSettings
from pate_fed.learning.students.checkpoint import Checkpoint
from pate_fed.learning.students.early_stopping import held_out_part
from pate_fed.learning.students.fixmatch import FixMatch
from pate_fed.learning.students.gan import Trainer
from pate_fed.learning.students.learner import Learner
from pate_fed.learning.students.loop import Measure, StudentTraining, run_stages
from pate_fed.learning.students.noise_rate import estimate_noise_rate
from pate_fed.learning.students.sets import Sets
from pate_fed.learning.students.student import Student

__all__ = ["train_student"]

MOST_ASKED = 2000  # images on which a student is calibrated
ENOUGH_LABELS = 50  # for a head to calibrate it


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
    least_noise: float = 0.0,
) -> Student:
    """Train a student on public images, some of which have released, partly wrong labels.

    The test part, and the labelled images' `true_labels` where they are known, are only reported in each
    `EpochRecord`; nothing is chosen by them. The same seed, data, device and number of threads give the same
    student. Without unlabelled images the labelled ones serve as such; a class without a label is not learnt;
    labels all of one class give a student of that class.

    Where β is estimated it is at least `least_noise`, which `least_noise_rate` knows from the noise.
    Probabilities are calibrated: those of "encoder-head" by left-out labels, others' on up to 2,000 images
    without a label, beside such a head (`Student.calibrate`); where there are none, fewer than 50 labels or
    labels of one class alone, they are the networks' own, and too sure.

    With `checkpoint` the state is written there after each epoch; a later call with the same arguments goes
    on from it, to the student that an undisturbed run would have given. The file is removed at the end.
    "encoder-head" and networks on the encoder use the study's `encoder`, or fit one to `images`. The former
    is fitted at once, in closed form: it has no epochs that could be stopped or gone on from, and writes no
    checkpoint.

    Shapes: images uint8 (n, H, W, C), labelled_index int64 (m,) into them, labels int64 (m,), m ≥ 1.

    Raises:
        InputError: images, index or labels are not that, there is no label, the device is not there, or the
            checkpoint belongs to another run.
        IntegrityError: the checkpoint is damaged.
        PateFedError: a loss or a weight is no longer finite; the error names the epoch and which.
    """
    _check_inputs(images, labelled_index, labels, num_classes)
    if encoder is not None:  # not only at the end, where every student is calibrated on it
        check_images(images[:1], encoder.image_shape)
    device = resolve_device(device)
    tested = partial(_accuracy, images=test_images, labels=test_labels)
    if settings.name in LIGHT:
        student = _head_student(images, labelled_index, labels, num_classes, settings, seed, device, encoder)
        return _told(student, tested, on_epoch)
    estimate = partial(
        estimate_noise_rate, num_classes=num_classes, seed=seed, device=device, least=least_noise
    )
    settings = _with_noise_rate(settings, partial(estimate, images[labelled_index], labels))
    below = _encoder_of(images, encoder) if settings.built_on == "encoder" else None
    saved = Checkpoint.at(
        checkpoint, images, labelled_index, labels, settings, seed, num_classes=num_classes, encoder=below
    )
    sets = Sets.of(labelled_index, labels, true_labels, count=len(images), device=device)
    held = held_out_part(len(labels), settings, seed=seed)
    run = StudentTraining(
        settings=settings,
        image_shape=image_shape(images),
        num_classes=num_classes,
        learner_for=partial(_learner, images, num_classes, settings, device, below),
        tested=tested,
        held_out_count=0 if held is None else int(held.sum()),
        held_out=_no_part if held is None else _part(images, labelled_index, labels, held.numpy()),
        on_epoch=on_epoch,
    )
    with seeded(seed, device):
        student = run_stages(run, saved, sets if held is None else sets.without(held.to(device)))
    _calibrate(student, images, labelled_index, labels, device=device, encoder=encoder)
    saved.remove()
    return student


def _calibrate(
    student: Student,
    images: NDArray[np.uint8],
    index: NDArray[np.int64],
    labels: NDArray[np.int64],
    *,
    device: str,
    encoder: Encoder | None,
) -> None:
    rest = np.setdiff1d(np.arange(len(images)), index)
    if not len(rest) or len(labels) < ENOUGH_LABELS or len(np.unique(labels)) == 1:
        return
    asked = images[rest[np.unique(np.linspace(0, len(rest) - 1, MOST_ASKED).astype(np.int64))]]
    opinion = second_opinion(
        to_tensor(images[index], device),
        labels,
        to_tensor(asked, device),
        num_classes=student.num_classes,
        encoder=_encoder_of(images, encoder),
    )
    student.calibrate(asked, opinion.cpu().numpy())


def _learner(
    images: NDArray[np.uint8],
    num_classes: int,
    settings: StudentSettings,
    device: str,
    encoder: Encoder | None,
    sets: Sets,
) -> Learner:
    """A stage's networks before their first epoch."""
    shape, pixels = image_shape(images), to_tensor(images, device)
    if settings.name == "fixmatch":
        return FixMatch.of_images(settings, shape, num_classes, pixels, encoder)
    return Trainer(settings, shape, num_classes, pixels, samples=len(sets.labelled), encoder=encoder)


def _encoder_of(images: NDArray[np.uint8], encoder: Encoder | None) -> Encoder:
    """The study's encoder, if it is of such images, or one fitted to them."""
    encoder = fit_encoder(images) if encoder is None else encoder
    check_images(images[:1], encoder.image_shape)
    return encoder


def _with_noise_rate(settings: StudentSettings, estimate: Callable[[], float]) -> StudentSettings:
    """The same with an open β set: estimated, or 0 for "fixmatch"."""
    if settings.noise_rate is not None:
        return settings
    if settings.co_teaching:
        return replace(settings, noise_rate=estimate())
    return replace(settings, noise_rate=0.0) if settings.name == "fixmatch" else settings


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
    encoder = _encoder_of(images, encoder)
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


def _told(student: Student, tested: Measure, on_epoch: Callable[[EpochRecord], None] | None) -> Student:
    """A student of one epoch, measured and told of."""
    student.history[0] = replace(student.history[0], test_accuracy=tested(student))
    if on_epoch is not None:
        on_epoch(student.history[0])
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


def _check_inputs(
    images: NDArray[np.uint8], index: NDArray[np.int64], labels: NDArray[np.int64], num_classes: int
) -> None:
    check_images(images)
    check_labels(labels, len(index), num_classes)
    if len(index) == 0:
        raise InputError(
            "a student got 0 labels: at least 1 is meant; ask more queries or lower the threshold"
        )
    if not np.issubdtype(index.dtype, np.integer) or index.ndim != 1:
        raise InputError(f"labelled_index is {index.dtype} {index.shape}: integers (m,) are meant")
    if index.min() < 0 or index.max() >= len(images):
        raise InputError(
            f"labelled_index runs from {index.min()} to {index.max()}: 0 to {len(images) - 1} is meant"
        )

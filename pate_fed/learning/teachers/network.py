"""One hospital's teacher: trained on its own records, asked for classes, kept on its own disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pate_fed.errors import InputError, PateFedError
from pate_fed.learning import optimisers
from pate_fed.learning.device import resolve_device, seeded
from pate_fed.learning.files import reading_network, write_model
from pate_fed.learning.inputs import check_images, check_labels, image_shape, tensor_batches, to_tensor
from pate_fed.learning.networks.classifiers import Classifier, OrientedGradients, build_classifier
from pate_fed.learning.networks.encoder import Encoder, HistogramFeatures
from pate_fed.learning.networks.heads import class_weights, empty_head_classifier
from pate_fed.learning.settings import CLOSED_FORM, TeacherSettings
from pate_fed.learning.teachers.closed_form import (
    NETWORK_BATCH,
    fit_closed_form_teacher,
    shared_features,
)
from pate_fed.learning.teachers.own import own_classifier

ENOUGH_STEPS = 600  # a large part needs few passes: training ends with the pass that reaches so many steps
WARM_UP = 0.2  # share of the steps in which the learning rate rises


class Teacher:
    """A trained classifier with its settings."""

    def __init__(
        self,
        model: Classifier,
        *,
        settings: TeacherSettings,
        image_shape: tuple[int, int, int],
        num_classes: int,
        device: str = "cpu",
    ) -> None:
        self.settings, self.image_shape, self.num_classes = settings, image_shape, num_classes
        self._device = device
        self._model = model.to(device).to(memory_format=torch.channels_last).eval()

    def predict(self, images: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The class of each image.

        Shapes: uint8 (n, H, W, C) to int64 (n,).

        Raises:
            InputError: the images do not fit the model.
            PateFedError: a weight is not a finite number; the error names it.
        """
        check_images(images, self.image_shape)
        self._check_weights()
        preprocess, found = self._model.preprocess, [np.empty(0, dtype=np.int64)]
        with torch.inference_mode():
            if isinstance(preprocess, HistogramFeatures | OrientedGradients):
                logits = map(self._model.logits, shared_features(preprocess, images, self._device))
            else:
                logits = map(self._model, tensor_batches(images, NETWORK_BATCH, self._device))
            found += [each.argmax(dim=1).cpu().numpy() for each in logits]
        return np.concatenate(found)

    def save(self, path: Path, *, durable: bool = True) -> None:
        """Write settings and weights to `path`, whole or not at all, readable by the owner only.

        Not `durable` leaves the disk to the system.

        Raises:
            InputError: the folder cannot be written to.
        """
        content = {
            "settings": asdict(self.settings),
            "image_shape": list(self.image_shape),
            "num_classes": self.num_classes,
            "weights": {name: _compact(value.cpu()) for name, value in self._model.state_dict().items()},
        }
        write_model(path, "teacher", content, durable=durable)

    @classmethod
    def load(cls, path: Path, device: str = "cpu", *, network: Any = None) -> Teacher:
        """Read what `save` wrote; no code in the file is run. `network` is a fresh one of the user's own.

        Raises:
            InputError: no such file.
            IntegrityError: the file is damaged or is no teacher.
        """
        with reading_network(path, "teacher") as (content, shape, classes):
            settings = TeacherSettings(**content["settings"])
            if network is not None:
                model = own_classifier(network, channels=shape[2])
            elif settings.name in CLOSED_FORM:
                model = empty_head_classifier(settings.name, shape, classes, content["weights"])
            else:
                model = build_classifier(settings.name, shape, classes)
            model.load_state_dict(content["weights"])
        return cls(
            model,
            settings=settings,
            image_shape=shape,
            num_classes=classes,
            device=resolve_device(device),
        )

    @property
    def own_bytes(self) -> int:
        """Bytes of its weights, but for what prepares the inputs, which teachers may share."""
        return sum(value.nbytes for value in self._model.output.state_dict().values())

    def _check_weights(self) -> None:
        for name, value in self._model.state_dict().items():
            if not bool(torch.isfinite(value).all()):
                raise PateFedError(f"teacher: weight {name} is not finite; train it again")


def _compact(weight: Tensor) -> Tensor:
    """The same numbers, in half precision where they are such, as the encoder's are: half the bytes."""
    if weight.dtype != torch.float32:
        return weight
    half = weight.half()
    return half if torch.equal(half.float(), weight) else weight


def train_teacher(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    num_classes: int,
    settings: TeacherSettings,
    seed: int,
    device: str = "cpu",
    encoder: Encoder | None = None,
    make: Callable[[], Any] | None = None,
) -> Teacher:
    """Train one teacher, on the study's public `encoder` where its kind needs one; `make` makes one's own.

    The same seed, data, device and number of threads give the same teacher.

    Shapes: images uint8 (n, H, W, C), labels int64 (n,), n ≥ 1; fewer than a batch or one class will do.

    Raises:
        InputError: images or labels are not that, an encoder is missing, or the device is not there.
        PateFedError: the loss is no longer finite.
    """
    check_images(images)
    check_labels(labels, len(images), num_classes)
    if len(images) == 0:
        raise InputError("a teacher got 0 records: at least 1 is meant")
    device = resolve_device(device)
    shape = image_shape(images)
    with seeded(seed, device):
        if settings.name in CLOSED_FORM:
            model = fit_closed_form_teacher(
                settings.name, images, labels, num_classes=num_classes, encoder=encoder, device=device
            )
        else:
            pixels = to_tensor(images, device)
            if make is None:
                model = build_classifier(settings.name, shape, num_classes)
            else:  # here, where its first weights follow from the seed
                model = own_classifier(make(), channels=shape[2])
            model = model.to(device).to(memory_format=torch.channels_last)
            model.preprocess.fit(pixels)
            classes = torch.from_numpy(np.array(labels, dtype=np.int64)).to(device)
            _fit(model, model.preprocess(pixels), classes, settings)
    return Teacher(model, settings=settings, image_shape=shape, num_classes=num_classes, device=device)


def _fit(model: Classifier, preprocessed: Tensor, labels: Tensor, settings: TeacherSettings) -> None:
    """Adam with decoupled weight decay on a one-cycle schedule; the whole part lies in memory."""
    weights = class_weights(labels).to(preprocessed.dtype)
    batch = min(settings.batch_size, len(preprocessed))
    batches = len(preprocessed) // batch  # the rest of an epoch is left out: another shuffle takes it in
    epochs = min(settings.epochs, max(1, -(-ENOUGH_STEPS // batches)))
    steps = epochs * batches
    optimiser = optimisers.AdamW(model.parameters(), weight_decay=settings.weight_decay, fused=True)
    model.train()
    step = 0
    for epoch in range(1, epochs + 1):
        order = torch.randperm(len(preprocessed), device=preprocessed.device)
        for number in range(batches):
            optimiser.param_groups[0]["lr"] = settings.learning_rate * one_cycle(step / steps)
            pick = order[number * batch : (number + 1) * batch]
            losses = F.cross_entropy(
                model.logits(preprocessed[pick]),
                labels[pick],
                label_smoothing=settings.label_smoothing,
                reduction="none",
            )
            loss = (weights[pick] * losses).mean()
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward([loss])
            optimiser.step()
            step += 1
        if not bool(torch.isfinite(loss)):
            raise PateFedError(f"teacher: the loss is not finite in epoch {epoch}; lower learning_rate")


def one_cycle(progress: float) -> float:
    """Factor of the learning rate at `progress` in [0, 1): up from 0 to 1, then down to 0, both linearly."""
    return progress / WARM_UP if progress < WARM_UP else (1.0 - progress) / (1.0 - WARM_UP)

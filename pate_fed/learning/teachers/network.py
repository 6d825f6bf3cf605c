"""One hospital's teacher: trained on its own records, asked for classes, kept on its own disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.errors import InputError, PateFedError
from pate_fed.learning import tensors
from pate_fed.learning.networks import classifiers, heads
from pate_fed.learning.networks.encoder import BATCH, Encoder, HistogramFeatures, reduction
from pate_fed.learning.settings import CLOSED_FORM, TeacherSettings

# Teachers fitted in closed form: a linear head on oriented gradients, a kernel head on the public encoder.
#
# "hog-linear" is a linear head on the histograms themselves; "encoder-head" a kernel head on the encoder's
# directions. Both take a fraction of a second.


MOST_CACHED = 2**28  # bytes
NETWORK_BATCH = 200  # images in a small network at once: measured, what a core's cache likes best
MOST_RECORDS = 20_000  # of a hospital that a teacher learns from; more are worth little to so many centres
TEACHER_CENTRES = 1000  # of a kernel head, at random among its records
COPIES, ENOUGH_SAMPLES = 5, 10_000  # each record as it is and moved four ways, while there are so few
_FEATURES: dict[bytes, list[Tensor]] = {}
_PREPROCESSING: dict[tuple[str, str], HistogramFeatures] = {}


def fit_closed_form_teacher(
    name: str,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    num_classes: int,
    encoder: Encoder | None,
    device: str,
) -> classifiers.Classifier:
    """One hospital's classifier from its own images (n, H, W, C), n ≥ 1; of a great many it takes some.

    InputError: "encoder-head" without an encoder, or one of other images.
    """
    shape = tensors.image_shape(images)
    chosen = heads.subsample(torch.arange(len(images)), MOST_RECORDS, generator=None).numpy()
    pixels = tensors.to_tensor(images[chosen], device)
    classes = torch.from_numpy(np.array(labels[chosen], dtype=np.int64)).to(device)
    samples = pixels, nn.functional.one_hot(classes, num_classes)
    weights = heads.class_weights(classes)
    if name == "hog-linear":
        return _fit_linear(*samples, weights, shape=shape)
    if encoder is None:
        raise InputError("teacher encoder-head needs the study's public encoder, and none was given")
    if encoder.image_shape != shape:
        raise InputError(f"the encoder is of images {encoder.image_shape}: {shape} is meant")
    return _fit_kernel(encoder, *samples, weights)


def _fit_linear(
    pixels: Tensor, targets: Tensor, weights: Tensor, *, shape: classifiers.Shape
) -> classifiers.Classifier:
    preprocess = HistogramFeatures(shape, None).to(pixels.device)
    preprocess.fit(pixels)
    size, num_classes = len(preprocess.mean), targets.shape[1]
    if len(pixels) <= size:  # a small part: among its records instead of among the features
        ridge = heads.fit_ridge(preprocess(pixels), targets, strengths=(heads.LINEAR_RIDGE,), weights=weights)
        found = ridge.weights, ridge.bias
    else:
        sums = heads.WeightedSums(size, num_classes, pixels.device)
        for x, own, each in _batches(pixels, targets, weights):
            sums.add(preprocess(x), own, each)
        found = sums.solve(heads.LINEAR_RIDGE)
    output = nn.Linear(size, num_classes)
    with torch.no_grad():
        output.weight.copy_(found[0].T)
        output.bias.copy_(found[1])
    return classifiers.Classifier(preprocess, [], output)


def _fit_kernel(encoder: Encoder, pixels: Tensor, targets: Tensor, weights: Tensor) -> classifiers.Classifier:
    """With moved copies of the records, as long as there are few samples: they help small parts most."""
    preprocess = _preprocessing(encoder, str(pixels.device))
    copies = max(1, min(COPIES, ENOUGH_SAMPLES // len(pixels)))
    plain = preprocess.in_parts(pixels)
    centres = heads.subsample(plain, TEACHER_CENTRES, generator=None)

    def samples() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for x, known, own, each in _batches(pixels, plain, targets, weights):
            yield known, own, each
            for moved in shifted_copies(x)[1:copies]:
                yield preprocess(moved), own, each

    head = heads.fit_kernel_head(
        samples(), centres=centres, num_classes=targets.shape[1], strength=copies * heads.TEACHER_RIDGE
    )
    return classifiers.Classifier(preprocess, [], head)


def _preprocessing(encoder: Encoder, device: str) -> HistogramFeatures:
    """The encoder's preprocessing, which nothing changes: teachers of one study and process share it."""
    key = encoder.digest, device
    if key not in _PREPROCESSING:
        _PREPROCESSING.clear()
        _PREPROCESSING[key] = encoder.preprocessing().to(device)
    return _PREPROCESSING[key]


def _batches(*arrays: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(torch.split(array, BATCH) for array in arrays), strict=True)


def shifted_copies(pixels: Tensor) -> list[Tensor]:
    """Images (n, C, H, W) as they are, then moved by one step (a pixel up to 48) each of four ways.

    The edge's pixels fill up. Measured on Fashion-MNIST at 240 records: half a point for the plurality.
    """
    rows, columns = int(pixels.shape[2]), int(pixels.shape[3])
    step = reduction((rows, columns, int(pixels.shape[1])))
    wide = nn.functional.pad(pixels, (step,) * 4, mode="replicate")
    starts = ((step, step), (0, step), (2 * step, step), (step, 0), (step, 2 * step))
    return [wide[:, :, down : down + rows, right : right + columns] for down, right in starts]


def shared_features(
    preprocess: HistogramFeatures | classifiers.OrientedGradients, images: NDArray[np.uint8], device: str
) -> Iterator[Tensor]:
    """The preprocessed images, in parts of a size that suits what learns from them.

    Cached, as all teachers are asked about the same pool: what one encoder gives, or where each teacher has a
    scale of its own what is measured before it. More than 256 MB are measured anew each time.
    """
    histograms = isinstance(preprocess, HistogramFeatures)
    alike = isinstance(preprocess, HistogramFeatures) and preprocess.basis is not None
    digest = hashlib.sha256(f"{histograms} {images.shape} {device}".encode())
    for value in preprocess.state_dict().values() if alike else ():
        digest.update(value.cpu().numpy().tobytes())
    digest.update(np.ascontiguousarray(images).tobytes())
    key, of = digest.digest(), preprocess if alike else preprocess.measure

    def parts() -> Iterator[Tensor]:
        return map(of, tensors.tensor_batches(images, BATCH if histograms else NETWORK_BATCH, device))

    if key not in _FEATURES:
        _FEATURES.clear()
        width = of(tensors.to_tensor(images[:1], device)).numel()
        if 4 * width * len(images) <= MOST_CACHED:
            _FEATURES[key] = list(parts())
    for part in _FEATURES.get(key) or parts():
        yield part if alike else preprocess.turn(part)


ENOUGH_STEPS = 600  # a large part needs few passes: training ends with the pass that reaches so many steps
WARM_UP = 0.2  # share of the steps in which the learning rate rises


@dataclass(frozen=True, slots=True)
class Schedule:
    """Records in a step, steps in an epoch, and epochs, of a teacher of `count` records.

    The rest of an epoch is left out: another shuffle takes it in.
    """

    batch: int
    batches: int
    epochs: int

    @classmethod
    def of(cls, count: int, settings: TeacherSettings) -> Schedule:
        """By the settings, n ≥ 1."""
        batch = min(settings.batch_size, count)
        batches = count // batch
        return cls(batch, batches, min(settings.epochs, max(1, -(-ENOUGH_STEPS // batches))))

    def rate(self, step: int) -> float:
        """Factor of the learning rate: up from 0 to 1, then down to 0, both linearly."""
        progress = step / (self.epochs * self.batches)
        return progress / WARM_UP if progress < WARM_UP else (1.0 - progress) / (1.0 - WARM_UP)


class Teacher:
    """A trained classifier with its settings."""

    def __init__(
        self,
        model: classifiers.Classifier,
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
        """The class of each image, int64 (n,); `scores` has the rest."""
        return np.asarray(self.scores(images).argmax(axis=1), dtype=np.int64)

    def scores(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """How much speaks for each class; these are no probabilities.

        Shapes: uint8 (n, H, W, C) to float32 (n, classes).

        Raises:
            InputError: the images do not fit the model.
            PateFedError: a weight is not a finite number; the error names it.
        """
        tensors.check_images(images, self.image_shape)
        tensors.check_weights(self._model, "teacher", "train it again")
        preprocess, found = self._model.preprocess, [np.empty((0, self.num_classes), dtype=np.float32)]
        with torch.inference_mode():
            if isinstance(preprocess, HistogramFeatures | classifiers.OrientedGradients):
                logits = map(self._model.logits, shared_features(preprocess, images, self._device))
            else:
                logits = map(self._model, tensors.tensor_batches(images, NETWORK_BATCH, self._device))
            found += [each.float().cpu().numpy() for each in logits]
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
        tensors.write_model(path, "teacher", content, durable=durable)

    @classmethod
    def load(cls, path: Path, device: str = "cpu", *, network: Any = None) -> Teacher:
        """Read what `save` wrote; no code in the file is run. `network` is a fresh one of the user's own.

        Raises:
            InputError: no such file.
            IntegrityError: the file is damaged or is no teacher.
        """
        content = tensors.read_model(path, "teacher")
        with tensors.building_network(content, "teacher", where=str(path)) as (shape, classes):
            settings = TeacherSettings(**content["settings"])
            if network is not None:
                model = classifiers.Classifier(classifiers.Standardisation(shape[2]), [], network)
            elif settings.name in CLOSED_FORM:
                model = heads.empty_head_classifier(settings.name, shape, classes, content["weights"])
            else:
                model = classifiers.build_classifier(settings.name, shape, classes)
            model.load_state_dict(content["weights"])
        return cls(
            model,
            settings=settings,
            image_shape=shape,
            num_classes=classes,
            device=tensors.resolve_device(device),
        )

    @property
    def own_bytes(self) -> int:
        """Bytes of its weights, but for what prepares the inputs, which teachers may share."""
        return sum(value.nbytes for value in self._model.output.state_dict().values())


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
    tensors.check_images(images)
    tensors.check_labels(labels, len(images), num_classes)
    if len(images) == 0:
        raise InputError("a teacher got 0 records: at least 1 is meant")
    device = tensors.resolve_device(device)
    shape = tensors.image_shape(images)
    with tensors.seeded(seed, device):
        if settings.name in CLOSED_FORM:
            model = fit_closed_form_teacher(
                settings.name, images, labels, num_classes=num_classes, encoder=encoder, device=device
            )
        else:
            pixels = tensors.to_tensor(images, device)
            if make is None:
                model = classifiers.build_classifier(settings.name, shape, num_classes)
            else:  # here, where its first weights follow from the seed
                model = classifiers.Classifier(classifiers.Standardisation(shape[2]), [], make())
            model = model.to(device).to(memory_format=torch.channels_last)
            model.preprocess.fit(pixels)
            classes = torch.from_numpy(np.array(labels, dtype=np.int64)).to(device)
            fit_network(model, model.preprocess(pixels), classes, settings)
    return Teacher(model, settings=settings, image_shape=shape, num_classes=num_classes, device=device)


def fit_network(model: nn.Module, preprocessed: Tensor, labels: Tensor, settings: TeacherSettings) -> None:
    """Adam with decoupled weight decay on a one-cycle schedule; the whole part lies in memory.

    `preprocessed` float (n, ...) are what the model's first learnt layer takes, `labels` int64 (n,).
    PateFedError: the loss is no longer finite.
    """
    logits: Any = getattr(model, "logits", model)
    weights = heads.class_weights(labels).to(preprocessed.dtype)
    schedule = Schedule.of(len(preprocessed), settings)
    on_card = preprocessed.is_cuda
    rate = torch.tensor(0.0, device=preprocessed.device)  # a tensor, so that a step can be recorded
    optimiser = tensors.AdamW(
        model.parameters(),
        lr=rate if on_card else 0.0,
        weight_decay=settings.weight_decay,
        fused=True,
        capturable=on_card,
    )
    last = torch.zeros((), device=preprocessed.device)

    def learn(pick: Tensor) -> None:
        losses = F.cross_entropy(
            logits(preprocessed[pick]),
            labels[pick],
            label_smoothing=settings.label_smoothing,
            reduction="none",
        )
        loss = (weights[pick] * losses).mean()
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward([loss])
        optimiser.step()
        last.copy_(loss.detach())

    # Code of the user's own may wait for the card.
    take = learn if settings.own else tensors.recorded(learn, preprocessed.device)
    model.train()
    step = 0
    for epoch in range(1, schedule.epochs + 1):
        order = torch.randperm(len(preprocessed), device=preprocessed.device)
        for pick in torch.split(order[: schedule.batches * schedule.batch], schedule.batch):
            factor = settings.learning_rate * schedule.rate(step)
            if on_card:
                rate.fill_(factor)
            else:
                optimiser.param_groups[0]["lr"] = factor
            take(pick)
            step += 1
        if not bool(torch.isfinite(last)):
            raise PateFedError(f"teacher: the loss is not finite in epoch {epoch}; lower learning_rate")

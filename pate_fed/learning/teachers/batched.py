"""Many small-cnn teachers trained as one program on one device: the same steps as one after another.

Their weights are stacked, (teachers, ...): the convolution becomes a batched product with patches (`unfold`,
then `baddbmm`; grouped convolutions are slow for so many groups), the dense layer another, and gradients are
written out. Adam works weight by weight and the loss is a sum over teachers, so no teacher moves another.
On a CPU every teacher draws all that it draws alone, in the same order, from a generator of its own: what
comes out differs by rounding only. Elsewhere dropout is drawn for all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.errors import InputError, PateFedError
from pate_fed.learning import optimisers
from pate_fed.learning.device import resolve_device, seeded
from pate_fed.learning.inputs import check_images, check_labels, image_shape, to_tensor
from pate_fed.learning.networks.classifiers import Classifier, Dropout, build_classifier
from pate_fed.learning.networks.heads import class_weights
from pate_fed.learning.settings import STACKED, TeacherSettings
from pate_fed.learning.teachers.network import ENOUGH_STEPS, Teacher, one_cycle

__all__ = ["train_many"]

DROPOUT = 0.3  # as `build_classifier` has it
_AT_ONCE_CPU = 8  # teachers whose step stays in a core's cache
_MOST_PATCHES = 2**27  # numbers that are kept; of more records patches are taken at each step
_DEAL = 2**63


def train_many(
    images: Sequence[NDArray[np.uint8]],
    labels: Sequence[NDArray[np.int64]],
    *,
    num_classes: int,
    settings: TeacherSettings,
    seeds: Sequence[int],
    device: str = "cpu",
    dropout: float = DROPOUT,
) -> list[Teacher]:
    """One teacher a part, in the parts' order; those with as many steps are trained at once.

    Shapes: a part uint8 (n, H, W, C) and int64 (n,), n ≥ 1; H, W and C are all parts' own.

    Raises:
        InputError: another kind of teacher, no part, wrong images or labels, no such device.
        PateFedError: a loss is no longer finite.
    """
    if settings.name != STACKED or not images or len({part.shape[1:] for part in images}) != 1:
        raise InputError(f"many teachers at once are {STACKED} on images of one size, at least one of them")
    for part, own in zip(images, labels, strict=True):
        check_images(part)
        check_labels(own, len(part), num_classes)
        if len(part) == 0:
            raise InputError("a teacher got 0 records: at least 1 is meant")
    device, shape = resolve_device(device), image_shape(images[0])
    found: dict[int, Teacher] = {}
    for places in _alike([len(part) for part in images], settings, device):
        learners = [_Learner.of(images[at], labels[at], seeds[at], num_classes, device) for at in places]
        with seeded(seeds[places[0]], device):
            _fit(learners, settings, dropout)
        for at, each in zip(places, learners, strict=True):
            found[at] = Teacher(
                each.model, settings=settings, image_shape=shape, num_classes=num_classes, device=device
            )
    return [found[at] for at in range(len(images))]


@dataclass(frozen=True, slots=True)
class _Schedule:
    """Records in a step, steps in an epoch, and epochs, as one teacher alone has them."""

    batch: int
    batches: int
    epochs: int

    @classmethod
    def of(cls, count: int, settings: TeacherSettings) -> _Schedule:
        batch = min(settings.batch_size, count)
        batches = count // batch
        return cls(batch, batches, min(settings.epochs, max(1, -(-ENOUGH_STEPS // batches))))


def _alike(counts: Sequence[int], settings: TeacherSettings, device: str) -> Iterator[list[int]]:
    """Places of parts with one schedule, in groups of a size that suits the device."""

    def schedule(place: int) -> tuple[int, int]:
        found = _Schedule.of(counts[place], settings)
        return found.batch, found.batches

    most = _AT_ONCE_CPU if device == "cpu" else len(counts)
    for _, alike in groupby(sorted(range(len(counts)), key=schedule), key=schedule):
        places = list(alike)
        yield from (places[start : start + most] for start in range(0, len(places), most))


@dataclass(frozen=True, slots=True, eq=False)
class _Learner:
    """One of many before its training: preprocessed (n, C, H, W), labels (n,), and its own randomness."""

    model: Classifier
    preprocessed: Tensor
    labels: Tensor
    generator: torch.Generator

    @classmethod
    def of(
        cls, images: NDArray[np.uint8], labels: NDArray[np.int64], seed: int, num_classes: int, device: str
    ) -> _Learner:
        generator = torch.Generator()
        with seeded(seed, "cpu"):
            model = build_classifier(STACKED, image_shape(images), num_classes)
            generator.set_state(torch.get_rng_state())  # where it would go on alone
        pixels = to_tensor(images, device)
        model.to(device).preprocess.fit(pixels)
        truth = torch.from_numpy(np.array(labels, dtype=np.int64)).to(device)
        return cls(model, model.preprocess(pixels), truth, generator)


def _fit(learners: list[_Learner], settings: TeacherSettings, dropout: float) -> None:
    """The loop of one teacher, over stacks of all that have its schedule; shorter parts are padded."""
    schedule = _Schedule.of(len(learners[0].labels), settings)
    device, models = learners[0].preprocessed.device, [each.model for each in learners]
    # (t, n, ...), padded; what the padding holds is never picked.
    look = _looking_at([each.preprocessed for each in learners])
    labels = nn.utils.rnn.pad_sequence([each.labels for each in learners], batch_first=True)
    shares = [class_weights(each.labels).to(torch.float32) for each in learners]
    share = nn.utils.rnn.pad_sequence(shares, batch_first=True)
    weights = _stack(models)
    rate = torch.tensor(0.0, device=device)  # a tensor, so that a step waits for no number of the host
    optimiser = optimisers.AdamW(
        weights,
        lr=rate if device.type == "cuda" else 0.0,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    masks, step = _Masks(learners, dropout), 0
    for epoch in range(1, schedule.epochs + 1):
        drawn = [torch.randperm(len(each.labels), generator=each.generator) for each in learners]
        order = torch.stack([each[: schedule.batch * schedule.batches] for each in drawn]).to(device)
        for pick in torch.split(order, schedule.batch, dim=1):  # (t, batch)
            factor = settings.learning_rate * one_cycle(step / (schedule.epochs * schedule.batches))
            if device.type == "cuda":
                rate.fill_(factor)
            else:
                optimiser.param_groups[0]["lr"] = factor
            logits = _set_gradients(
                weights,
                look(pick),
                masks,
                truth=labels.gather(1, pick),
                share=share.gather(1, pick),
                smoothing=settings.label_smoothing,
            )
            optimiser.step()
            step += 1
        if not bool(torch.isfinite(logits).all()):
            raise PateFedError(f"teacher: the loss is not finite in epoch {epoch}; lower learning_rate")
    _unstack(models, weights)


def _looking_at(preprocessed: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """What gives the patches (t, batch, places, C·9) of picked records (t, batch); made once if not too many.

    Shapes: `preprocessed` (n, C, H, W) of each.
    """
    own = torch.arange(len(preprocessed), device=preprocessed[0].device)[:, None]
    # Each number is in 9/4 patches on average.
    if len(preprocessed) * max(each.numel() for each in preprocessed) * 9 // 4 <= _MOST_PATCHES:
        patches = nn.utils.rnn.pad_sequence([_patches(each) for each in preprocessed], batch_first=True)
        return lambda pick: patches[own, pick]
    stack = nn.utils.rnn.pad_sequence(preprocessed, batch_first=True)
    return lambda pick: _patches(stack[own, pick].flatten(0, 1)).unflatten(0, pick.shape)  # type: ignore[no-untyped-call]


class _Masks:
    """What dropout keeps, scaled, as `Dropout` draws it: a byte a value."""

    def __init__(self, learners: list[_Learner], share: float) -> None:
        self._generators, self._device = [each.generator for each in learners], learners[0].labels.device
        self._dropped = Dropout(share).dropped
        self.scale = 256 / (256 - self._dropped)

    def kept(self, batch: int, places: int, channels: int) -> Tensor | None:
        """Booleans (t, batch, places, channels); None where nothing is dropped."""
        if not self._dropped:
            return None
        teachers, size = len(self._generators), batch * channels * places
        if self._device.type == "cpu":
            drawn = torch.empty(teachers, -(-size // 8), dtype=torch.int64)
            for row, generator in zip(drawn, self._generators, strict=True):
                row.random_(-_DEAL, None, generator=generator)
        else:
            drawn = torch.empty(teachers, -(-size // 8), dtype=torch.int64, device=self._device)
            drawn.random_(-_DEAL, None)
        kept = drawn.view(torch.uint8)[:, :size] >= self._dropped
        # Alone, channels come before places where features are flat.
        return kept.view(teachers, batch, channels, places).transpose(2, 3)


def _set_gradients(
    weights: list[Tensor], patches: Tensor, masks: _Masks, *, truth: Tensor, share: Tensor, smoothing: float
) -> Tensor:
    """Gradients of the weighted cross-entropy, in each weight's `grad`; the logits (t, batch, K).

    Shapes: patches (t, batch, places, C·9), the right class and its record's weight (t, batch).
    """
    kernel, bias, dense, offset = weights
    teachers, batch, places, width = patches.shape
    channels, num_classes = kernel.shape[2], dense.shape[2]
    flat = patches.view(teachers, batch * places, width)
    before = torch.baddbmm(bias, flat, kernel)  # (t, batch·places, 32)
    passed = before > 0
    kept = masks.kept(batch, places, channels)
    if kept is not None:
        passed = passed.view(kept.shape).logical_and_(kept).view(before.shape)
    slope = passed.to(before.dtype).mul_(masks.scale)
    hidden = before.mul_(slope).view(teachers, batch, places * channels)
    logits = torch.baddbmm(offset, hidden, dense)  # (t, batch, K)
    wanted = torch.full_like(logits, smoothing / num_classes)
    wanted.scatter_add_(2, truth[:, :, None], torch.full_like(logits[:, :, :1], 1 - smoothing))
    by_logits = F.softmax(logits, dim=2).sub_(wanted).mul_(share[:, :, None] / batch)
    offset.grad = by_logits.sum(dim=1, keepdim=True)
    dense.grad = torch.bmm(hidden.transpose(1, 2), by_logits)
    by_hidden = torch.bmm(by_logits, dense.transpose(1, 2)).view(before.shape).mul_(slope)
    bias.grad = by_hidden.sum(dim=1, keepdim=True)
    kernel.grad = torch.bmm(flat.transpose(1, 2), by_hidden)
    return logits


def _layers(model: Classifier) -> tuple[nn.Conv2d, nn.Linear]:
    convolution, dense = model.trunk[0], model.output
    assert isinstance(convolution, nn.Conv2d) and isinstance(dense, nn.Linear)
    return convolution, dense


def _stack(models: list[Classifier]) -> list[Tensor]:
    """Convolution (t, C·9, 32) and (t, 1, 32), dense layer (t, places·32, K) and (t, 1, K)."""
    layers = [_layers(model) for model in models]
    return [
        torch.stack([each.weight.detach().flatten(1).T for each, _ in layers]),
        torch.stack([each.bias.detach()[None] for each, _ in layers if each.bias is not None]),
        torch.stack([_places_first(each.weight.detach(), conv.out_channels) for conv, each in layers]),
        torch.stack([each.bias.detach()[None] for _, each in layers]),
    ]


def _places_first(dense: Tensor, channels: int) -> Tensor:
    """Weights (K, channels·places) to (places·channels, K): the order of the stacks' features."""
    return dense.T.unflatten(0, (channels, -1)).transpose(0, 1).flatten(0, 1)  # type: ignore[no-untyped-call,no-any-return]


def _unstack(models: list[Classifier], weights: list[Tensor]) -> None:
    with torch.no_grad():
        for place, model in enumerate(models):
            convolution, dense = _layers(model)
            convolution.weight.copy_(weights[0][place].T.view_as(convolution.weight))
            if convolution.bias is not None:
                convolution.bias.copy_(weights[1][place, 0])
            turned = weights[2][place].unflatten(0, (-1, convolution.out_channels))  # type: ignore[no-untyped-call]
            dense.weight.copy_(turned.transpose(0, 1).flatten(0, 1).T)
            dense.bias.copy_(weights[3][place, 0])


def _patches(preprocessed: Tensor) -> Tensor:
    """(n, C, H, W) to what the convolution (3×3, stride 2, a border of 1) sees: (n, places, C·9)."""
    found = F.unfold(preprocessed.contiguous(), 3, padding=1, stride=2)  # (n, C·9, places)
    return found.transpose(1, 2).contiguous()

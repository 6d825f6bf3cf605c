"""Many small-cnn teachers trained as one program on one device: the same steps as one after another.

Their weights are stacked, (teachers, ...): the convolution becomes a batched product with patches (`unfold`,
then `baddbmm`; grouped convolutions are slow for so many groups), the dense layer another. Adam works weight
by weight and the loss is a sum over teachers, so no teacher moves another. Every teacher draws its
first weights and the order of its records from a generator of its own; dropout is drawn for all at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.errors import InputError, PateFedError
from pate_fed.learning import optimisers
from pate_fed.learning.device import resolve_device, seeded
from pate_fed.learning.inputs import check_images, check_labels, image_shape, to_tensor
from pate_fed.learning.networks.classifiers import Classifier, build_classifier
from pate_fed.learning.networks.heads import class_weights
from pate_fed.learning.settings import TeacherSettings
from pate_fed.learning.teachers.network import ENOUGH_STEPS, Teacher, one_cycle

__all__ = ["train_many"]

NAME = "small-cnn"
DROPOUT = 0.3  # as `build_classifier` has it


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
    """One teacher a part, all at once; the parts have one size.

    Shapes: a part uint8 (n, H, W, C) and int64 (n,), n ≥ 1.

    Raises:
        InputError: parts of several sizes, another kind of teacher, wrong images or labels, no such device.
        PateFedError: a loss is no longer finite.
    """
    if settings.name != NAME or not images or len({part.shape for part in images}) != 1:
        raise InputError(f"many teachers at once are {NAME} on parts of one size, at least one of them")
    for part, own in zip(images, labels, strict=True):
        check_images(part)
        check_labels(own, len(part), num_classes)
    device, shape = resolve_device(device), image_shape(images[0])
    models, preprocessed = [], []
    for seed, part in zip(seeds, images, strict=True):
        with seeded(seed, "cpu"):
            model = build_classifier(NAME, shape, num_classes)
        models.append(model)
        pixels = to_tensor(part, device)
        model.to(device).preprocess.fit(pixels)
        preprocessed.append(model.preprocess(pixels))
    truth = torch.from_numpy(np.stack(labels)).to(device)
    with seeded(seeds[0], device):
        _fit(models, torch.stack(preprocessed), truth, settings, seeds, dropout)
    return [
        Teacher(model, settings=settings, image_shape=shape, num_classes=num_classes, device=device)
        for model in models
    ]


def _fit(
    models: list[Classifier],
    preprocessed: Tensor,
    labels: Tensor,
    settings: TeacherSettings,
    seeds: Sequence[int],
    dropout: float,
) -> None:
    """The loop of one teacher, over stacks: preprocessed (t, n, C, H, W), labels (t, n)."""
    count, device = preprocessed.shape[1], preprocessed.device
    batch = min(settings.batch_size, count)
    batches = count // batch
    epochs = min(settings.epochs, max(1, -(-ENOUGH_STEPS // batches)))
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    patches = _patches(preprocessed)  # (t, n, places, C·9), made once
    weights = [parameter.requires_grad_() for parameter in _stack(models)]
    rate = torch.tensor(0.0, device=device)  # a tensor, so that a step waits for no number of the host
    capturable = device.type == "cuda"
    optimiser = optimisers.AdamW(
        weights, lr=rate if capturable else 0.0, weight_decay=settings.weight_decay, capturable=capturable
    )
    own = torch.arange(len(models), device=device)[:, None]
    rarity = torch.stack([class_weights(each) for each in labels]).to(preprocessed.dtype)
    step, total = 0, torch.zeros((), device=device)
    for epoch in range(1, epochs + 1):
        order = torch.stack([torch.randperm(count, generator=each) for each in generators]).to(device)
        for number in range(batches):
            factor = settings.learning_rate * one_cycle(step / (epochs * batches))
            if capturable:
                rate.fill_(factor)
            else:
                optimiser.param_groups[0]["lr"] = factor
            pick = order[:, number * batch : (number + 1) * batch]  # (t, batch)
            logits = _logits(patches[own, pick], weights, dropout)
            losses = F.cross_entropy(
                logits.flatten(0, 1),
                labels.gather(1, pick).flatten(),
                label_smoothing=settings.label_smoothing,
                reduction="none",
            )
            total = (rarity.gather(1, pick) * losses.view(len(models), -1)).mean(dim=1).sum()
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward([total])
            optimiser.step()
            step += 1
        if not bool(torch.isfinite(total)):
            raise PateFedError(f"teacher: the loss is not finite in epoch {epoch}; lower learning_rate")
    _unstack(models, weights)


def _layers(model: Classifier) -> tuple[nn.Conv2d, nn.Linear]:
    convolution, dense = model.trunk[0], model.output
    assert isinstance(convolution, nn.Conv2d) and isinstance(dense, nn.Linear)
    return convolution, dense


def _stack(models: list[Classifier]) -> list[Tensor]:
    """Convolution (t, C·9, 32) and (t, 1, 32), dense layer (t, features, K) and (t, 1, K)."""
    layers = [_layers(model) for model in models]
    return [
        torch.stack([each.weight.detach().flatten(1).T for each, _ in layers]),
        torch.stack([each.bias.detach()[None] for each, _ in layers if each.bias is not None]),
        torch.stack([each.weight.detach().T for _, each in layers]),
        torch.stack([each.bias.detach()[None] for _, each in layers]),
    ]


def _unstack(models: list[Classifier], weights: list[Tensor]) -> None:
    with torch.no_grad():
        for place, model in enumerate(models):
            convolution, dense = _layers(model)
            convolution.weight.copy_(weights[0][place].T.view_as(convolution.weight))
            if convolution.bias is not None:
                convolution.bias.copy_(weights[1][place, 0])
            dense.weight.copy_(weights[2][place].T)
            dense.bias.copy_(weights[3][place, 0])


def _patches(preprocessed: Tensor) -> Tensor:
    """(t, n, C, H, W) to what the convolution (3×3, stride 2, a border of 1) sees: (t, n, places, C·9)."""
    found = F.unfold(preprocessed.flatten(0, 1).contiguous(), 3, padding=1, stride=2)  # (t·n, C·9, places)
    return found.transpose(1, 2).unflatten(0, preprocessed.shape[:2]).contiguous()  # type: ignore[no-untyped-call,no-any-return]


def _logits(patches: Tensor, weights: list[Tensor], dropout: float) -> Tensor:
    """(t, batch, places, C·9) to (t, batch, K)."""
    teachers, batch, places, _ = patches.shape
    kernel, bias, dense, offset = weights
    hidden = F.relu(torch.baddbmm(bias, patches.flatten(1, 2), kernel))  # (t, batch·places, 32)
    hidden = hidden.view(teachers, batch, places, -1).transpose(2, 3).flatten(2)  # (t, batch, 32·places)
    return torch.baddbmm(offset, F.dropout(hidden, dropout), dense)

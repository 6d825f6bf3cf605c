"""Many small-cnn teachers trained as one program on one device: the same steps as one after another.

Their weights are stacked, (teachers, ...): the convolution becomes a product with patches (grouped
convolutions are slow for so many groups), the dense layer another, and gradients are written out, into memory
that every step uses anew. Adam works weight by weight, on all of them as one tensor, and the loss is a sum
over teachers, so no teacher moves another.
On a CPU every teacher draws all that it draws alone, in the same order, from a generator of its own: what
comes out differs by rounding only. Elsewhere dropout is drawn for all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.errors import InputError, PateFedError
from pate_fed.learning import tensors
from pate_fed.learning.networks.classifiers import Classifier, Dropout, build_classifier
from pate_fed.learning.networks.heads import class_weights
from pate_fed.learning.settings import STACKED, TeacherSettings
from pate_fed.learning.teachers.network import Schedule, Teacher

DROPOUT = 0.3  # as `build_classifier` has it
_AT_ONCE_CPU = 8  # teachers whose step stays in a core's cache
_MOST_PATCHES = 2**28  # numbers that are kept, 1 GB; of more records patches are taken at each step
_ROOM = 0.8  # share of a card's free memory that a group is counted to take
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

    On a card as many as its free memory is counted to hold, and half of them where it is not.

    Raises:
        InputError: another kind of teacher, no part, wrong images or labels, no such device.
        PateFedError: a loss is no longer finite.
        NoRoom: one teacher alone has no room on the card.
    """
    if settings.name != STACKED or not images or len({part.shape[1:] for part in images}) != 1:
        raise InputError(f"many teachers at once are {STACKED} on images of one size, at least one of them")
    for part, own in zip(images, labels, strict=True):
        tensors.check_images(part)
        tensors.check_labels(own, len(part), num_classes)
        if len(part) == 0:
            raise InputError("a teacher got 0 records: at least 1 is meant")
    device, shape = tensors.resolve_device(device), tensors.image_shape(images[0])
    found: dict[int, Teacher] = {}

    def train(places: list[int]) -> None:
        learners = [_Learner.of(images[at], labels[at], seeds[at], num_classes, device) for at in places]
        with tensors.seeded(seeds[places[0]], device):
            _fit(learners, settings, dropout)
        for at, each in zip(places, learners, strict=True):
            found[at] = Teacher(
                each.model, settings=settings, image_shape=shape, num_classes=num_classes, device=device
            )

    for places in _alike([len(part) for part in images], settings, device):
        count = max(len(images[at]) for at in places)
        batch, most = Schedule.of(count, settings).batch, len(places)
        while places:
            now = places[:most]
            needed = group_bytes(len(now), count, shape, num_classes, batch=batch)
            if len(now) > 1 and device != "cpu" and needed > _ROOM * _free(device):
                most = -(-len(now) // 2)
            elif _had_room(train, now):
                places = places[most:]
            elif len(now) > 1:
                most = -(-len(now) // 2)
            else:
                raise tensors.NoRoom(
                    f"teacher: {device} has no room for one of {count} records of {shape} "
                    f"({needed / 1e9:.1f} GB): set a smaller batch_size, or --device cpu"
                )
    return [found[at] for at in range(len(images))]


def group_bytes(
    teachers: int, count: int, shape: tuple[int, int, int], num_classes: int, *, batch: int
) -> int:
    """Bytes of a card's memory that a group takes, of `teachers` with `count` records of `shape` (H, W, C).

    Its records, their patches (all that are kept, else those of a step thrice), its weights five times (the
    models, the stack, its gradients, Adam's two), and the room of a step.
    """
    rows, columns, channels = shape[0] // 2, shape[1] // 2, shape[2] + 4
    pixels, places = rows * columns * channels, ((rows + 1) // 2) * ((columns + 1) // 2)
    patches, features = places * _width(channels), 32 * places
    kept = teachers * count * patches <= _MOST_PATCHES
    records = (
        count * (pixels + patches) + batch * patches if kept else 2 * count * pixels + 3 * batch * patches
    )
    weights = 32 * _width(channels) + (features + 1) * num_classes
    step = batch * (4 * features + features // 4 + 5 * num_classes)
    return 4 * teachers * (records + 5 * weights + step)


def _free(device: str) -> int:
    """Bytes of a card's memory that are free to this process, its own allocator's room included."""
    own = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + own


def _had_room(train: Callable[[list[int]], None], places: list[int]) -> bool:
    """Whether the card had room for the training of `places`, which is done then."""
    try:
        train(places)
    except (torch.OutOfMemoryError, tensors.NoRoom):
        torch.cuda.empty_cache()
        return False
    return True


def _alike(counts: Sequence[int], settings: TeacherSettings, device: str) -> Iterator[list[int]]:
    """Places of parts with one schedule, in groups of a size that suits the device."""

    def schedule(place: int) -> tuple[int, int]:
        found = Schedule.of(counts[place], settings)
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
        with tensors.seeded(seed, "cpu"):
            model = build_classifier(STACKED, tensors.image_shape(images), num_classes)
            generator.set_state(torch.get_rng_state())  # where it would go on alone
        pixels = tensors.to_tensor(images, device)
        model.to(device).preprocess.fit(pixels)
        truth = torch.from_numpy(np.array(labels, dtype=np.int64)).to(device)
        return cls(model, model.preprocess(pixels), truth, generator)


def _fit(learners: list[_Learner], settings: TeacherSettings, dropout: float) -> None:
    """The loop of one teacher, over stacks of all that have its schedule; shorter parts are padded."""
    schedule = Schedule.of(len(learners[0].labels), settings)
    device = learners[0].preprocessed.device
    # (t, n, ...), padded; what the padding holds is never picked.
    look = _looking_at([each.preprocessed for each in learners])
    labels = nn.utils.rnn.pad_sequence([each.labels for each in learners], batch_first=True)
    shares = [class_weights(each.labels).to(torch.float32) for each in learners]
    share = nn.utils.rnn.pad_sequence(shares, batch_first=True)
    stack = _Stack([each.model for each in learners], schedule.batch, _Masks(learners, dropout))
    rate = torch.tensor(0.0, device=device)  # a tensor, so that a step waits for no number of the host
    optimiser = tensors.AdamW(
        [stack.weights],
        lr=rate if device.type == "cuda" else 0.0,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    step = 0
    for epoch in range(1, schedule.epochs + 1):
        drawn = [torch.randperm(len(each.labels), generator=each.generator) for each in learners]
        order = torch.stack([each[: schedule.batch * schedule.batches] for each in drawn]).to(device)
        for pick in torch.split(order, schedule.batch, dim=1):  # (t, batch)
            factor = settings.learning_rate * schedule.rate(step)
            if device.type == "cuda":
                rate.fill_(factor)
            else:
                optimiser.param_groups[0]["lr"] = factor
            truth, weight = labels.gather(1, pick), share.gather(1, pick)
            logits = stack.set_gradients(look(pick), truth, weight, smoothing=settings.label_smoothing)
            optimiser.step()
            step += 1
        if not bool(torch.isfinite(logits).all()):
            raise PateFedError(f"teacher: the loss is not finite in epoch {epoch}; lower learning_rate")
    stack.give_back()


def _looking_at(preprocessed: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """What gives the patches (t, batch·places, width) of picked records (t, batch).

    Made once if there are not too many; what is given is overwritten by the next.

    Shapes: `preprocessed` (n, C, H, W) of each.
    """
    most = max(len(each) for each in preprocessed)
    first = most * torch.arange(len(preprocessed), device=preprocessed[0].device)[:, None]
    size = _patches(preprocessed[0][:1]).numel()
    if len(preprocessed) * most * size <= _MOST_PATCHES:
        held = preprocessed[0].new_zeros(len(preprocessed), most, size)
        for room, each in zip(held, preprocessed, strict=True):
            room[: len(each)] = _patches(each).flatten(1)
        rows, picked = held.flatten(0, 1), held.new_empty(0)

        def look(pick: Tensor) -> Tensor:
            torch.index_select(rows, 0, (pick + first).flatten(), out=picked)
            return picked.view(len(pick), -1, _width(preprocessed[0].shape[1]))

        return look
    stack = nn.utils.rnn.pad_sequence(preprocessed, batch_first=True).flatten(0, 1)

    def take(pick: Tensor) -> Tensor:
        found = _patches(stack[(pick + first).flatten()])
        return found.view(len(pick), -1, found.shape[2])

    return take


class _Masks:
    """What dropout keeps, as `Dropout` draws it: a byte a value."""

    def __init__(self, learners: list[_Learner], share: float) -> None:
        self._generators, self._device = [each.generator for each in learners], learners[0].labels.device
        self.dropped = Dropout(share).dropped
        self.scale = 256 / (256 - self.dropped)
        self._drawn = torch.empty(0, dtype=torch.int64, device=self._device)

    def draw(self, into: Tensor) -> None:
        """Fill (t, size) with bytes: values of at least `dropped` are kept."""
        teachers, size = into.shape
        drawn = self._drawn.resize_(teachers, -(-size // 8))
        if self._device.type == "cpu":
            for row, generator in zip(drawn, self._generators, strict=True):
                row.random_(-_DEAL, None, generator=generator)
        else:
            drawn.random_(-_DEAL, None)
        into.copy_(drawn.view(torch.uint8)[:, :size])


class _Stack:
    """Many small networks as one: their weights, the gradients, and room for a step, which is used anew.

    All weights lie in one flat tensor, `weights`, and so do the gradients: of the convolution
    (t, 32, width), its bias in the column of the patches' ones; of the dense layer (t, K, 32·places) and
    (t, 1, K).
    """

    def __init__(self, models: list[Classifier], batch: int, masks: _Masks) -> None:
        self._models, self._masks = models, masks
        convolution, dense = _layers(models[0])
        teachers, channels, width = len(models), convolution.out_channels, _width(convolution.in_channels)
        num_classes, features = dense.weight.shape
        places = features // channels
        shapes = ((channels, width), (num_classes, features), (1, num_classes))
        self._sizes = [(teachers, *shape) for shape in shapes]
        self.weights = dense.weight.new_zeros(sum(map(prod, self._sizes)))
        self.weights.grad = torch.zeros_like(self.weights)
        self._kernel, self._dense, self._offset = self._split(self.weights)
        for place, model in enumerate(models):
            for held, own in zip(self._own(place), _parameters(model), strict=True):
                held.copy_(own.detach())
        room = self.weights.new_empty
        self._before = room(teachers, channels, batch * places)
        self._hidden, self._by_hidden, self._drawn = room(3, teachers, batch, features)
        self._logits = room(teachers, batch, num_classes)

    def set_gradients(self, patches: Tensor, truth: Tensor, share: Tensor, *, smoothing: float) -> Tensor:
        """Gradients of the weighted cross-entropy, in `weights.grad`; the logits (t, batch, K).

        Shapes: patches (t, batch·places, width), the right class and its record's weight (t, batch).
        """
        hidden, logits, scale = self._hidden, self._logits, self._masks.scale
        assert self.weights.grad is not None
        by_kernel, by_dense, by_offset = self._split(self.weights.grad)
        teachers, batch, _ = hidden.shape
        channels = self._before.shape[1]
        # As the dense layer sees it, channels before places: (t, batch, 32, places).
        turned = self._before.view(teachers, channels, batch, -1).transpose(1, 2)
        _multiply(self._kernel, patches.transpose(1, 2), self._before)
        torch.clamp_min(turned, 0, out=hidden.view(turned.shape))
        if self._masks.dropped:
            self._masks.draw(self._drawn.flatten(1))
            _keep_above(hidden, self._drawn, self._masks.dropped - 1, hidden)
        _multiply(hidden, self._dense.transpose(1, 2), logits)
        logits.mul_(scale).add_(self._offset)
        wanted = torch.full_like(logits, smoothing / logits.shape[2])
        wanted.scatter_add_(2, truth[:, :, None], torch.full_like(logits[:, :, :1], 1 - smoothing))
        by_logits = F.softmax(logits, dim=2).sub_(wanted).mul_(share[:, :, None] / batch)
        torch.sum(by_logits, dim=1, keepdim=True, out=by_offset)
        by_logits.mul_(scale)
        _multiply(by_logits.transpose(1, 2), hidden, by_dense)
        _multiply(by_logits, self._dense, self._by_hidden)
        _keep_above(self._by_hidden.view(turned.shape), hidden.view(turned.shape), 0, turned)
        _multiply(self._before, patches, by_kernel)
        return logits

    def give_back(self) -> None:
        """Write the weights into the models."""
        with torch.no_grad():
            for place, model in enumerate(self._models):
                for own, held in zip(_parameters(model), self._own(place), strict=True):
                    own.copy_(held)

    def _split(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, [prod(size) for size in self._sizes])
        return [part.view(size) for part, size in zip(parts, self._sizes, strict=True)]

    def _own(self, place: int) -> tuple[Tensor, ...]:
        """One network's weights, in the shapes of `_parameters`."""
        ones = 9 * (_layers(self._models[0])[0].in_channels)
        kernel = self._kernel[place]
        return kernel[:, :ones], kernel[:, ones], self._dense[place], self._offset[place, 0]


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Products of (t, n, k) and (t, k, m). On a CPU one by one: all at once takes PyTorch thrice the time."""
    if out.device.type == "cpu":
        for a, b, product in zip(left, right, out, strict=True):
            torch.mm(a, b, out=product)
    else:
        torch.bmm(left, right, out=out)


def _keep_above(values: Tensor, gate: Tensor, level: float, out: Tensor) -> None:
    """`values` where `gate` is above `level`, elsewhere 0; the fastest way there is of a mask on a CPU."""
    torch.ops.aten.threshold_backward.grad_input(values, gate, level, grad_input=out)


def _layers(model: Classifier) -> tuple[nn.Conv2d, nn.Linear]:
    convolution, dense = model.trunk[0], model.output
    assert isinstance(convolution, nn.Conv2d) and isinstance(dense, nn.Linear)
    return convolution, dense


def _parameters(model: Classifier) -> tuple[Tensor, ...]:
    """Of the convolution (32, C·9) and (32,), of the dense layer (K, 32·places) and (K,)."""
    convolution, dense = _layers(model)
    assert convolution.bias is not None
    return convolution.weight.flatten(1), convolution.bias, dense.weight, dense.bias


def _width(channels: int) -> int:
    """Of a patch with its one for the bias, as many numbers as products like: a multiple of 16."""
    return -(-(9 * channels + 1) // 16) * 16


def _patches(preprocessed: Tensor) -> Tensor:
    """(n, C, H, W) to (n, places, width): what the convolution (3×3, stride 2) sees, a one, zeros."""
    count, channels = preprocessed.shape[:2]
    # By views: `F.unfold` launches a kernel an image on a card.
    seen = F.pad(preprocessed, (1, 1, 1, 1)).unfold(2, 3, 2).unfold(3, 3, 2)  # (n, C, ~H/2, ~W/2, 3, 3)
    rows, columns = seen.shape[2:4]
    patches = preprocessed.new_zeros(count, rows, columns, _width(channels))
    room = patches[..., : 9 * channels].view(count, rows, columns, channels, 3, 3)
    room.copy_(seen.permute(0, 2, 3, 1, 4, 5))
    patches[..., 9 * channels] = 1
    return patches.flatten(1, 2)

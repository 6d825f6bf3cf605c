"""The base of students that learn in epochs: averaged weights, a state on disk to go on from."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pate_fed.errors import InputError, IntegrityError, PateFedError
from pate_fed.learning import tensors
from pate_fed.learning.networks.classifiers import Classifier
from pate_fed.learning.networks.encoder import Encoder
from pate_fed.learning.networks.generators import Generator
from pate_fed.learning.settings import EpochRecord, StudentSettings
from pate_fed.learning.tensors import check_images, check_labels, read_model, write_model

# What a student learns from: public inputs, the released labels of some, and the order of an epoch.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LabelledPool:
    """Public images, some of them with released, partly wrong labels, and what a student is measured on.

    The test part, and the labelled images' `true_labels` where they are known, are only reported: nothing is
    chosen by them. Where labels come with probabilities, students learn from these, and `labels` are the most
    probable classes. At least the share `least_noise` of the labels is wrong, as far as the noise tells
    (`least_noise_rate`). Shapes: images uint8 (n, H, W, C), labelled_index int64 (m,) into them, labels and
    true_labels int64 (m,), m ≥ 1, probabilities float32 (m, classes) whose rows sum to 1, test_images uint8
    (t, H, W, C), test_labels int64 (t,).

    Raises:
        InputError: images, index or labels are not that, or there is no label.
    """

    images: NDArray[np.uint8]
    labelled_index: NDArray[np.int64]
    labels: NDArray[np.int64]
    num_classes: int
    probabilities: NDArray[np.float32] | None = None
    true_labels: NDArray[np.int64] | None = None
    test_images: NDArray[np.uint8] | None = None
    test_labels: NDArray[np.int64] | None = None
    least_noise: float = 0.0

    def __post_init__(self) -> None:
        index = self.labelled_index
        check_images(self.images)
        check_labels(self.labels, len(index), self.num_classes)
        if len(index) == 0:
            raise InputError(
                "a student got 0 labels: at least 1 is meant; ask more queries or lower the threshold"
            )
        if not np.issubdtype(index.dtype, np.integer) or index.ndim != 1:
            raise InputError(f"labelled_index is {index.dtype} {index.shape}: integers (m,) are meant")
        if index.min() < 0 or index.max() >= len(self.images):
            raise InputError(
                f"labelled_index runs from {index.min()} to {index.max()}: "
                f"0 to {len(self.images) - 1} is meant"
            )
        shares, shape = self.probabilities, (len(index), self.num_classes)
        if shares is not None and not (
            shares.shape == shape and (shares >= 0).all() and np.allclose(shares.sum(axis=1), 1, atol=1e-3)
        ):
            raise InputError(f"probabilities are {shares.shape}: {shape} is meant, rows that sum to 1")

    @property
    def unlabelled_index(self) -> NDArray[np.int64]:
        """The images without a label, in ascending order: int64 (n - m,)."""
        return np.setdiff1d(np.arange(len(self.images)), self.labelled_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSets:
    """The labelled set M_l and the unlabelled set M_u, as positions among the public inputs."""

    labelled: Tensor  # int64 (m,)
    labels: Tensor  # int64 (m,)
    wrong: Tensor  # bool (m,), false throughout where the truth is not known
    truth_known: bool
    unlabelled: Tensor  # int64 (n - m,), or the labelled ones where nothing else is left
    shares: Tensor | None = None  # float (m, K), where labels came as probabilities

    @classmethod
    def of(cls, pool: LabelledPool, device: str) -> TrainingSets:
        """Both sets of `pool`, on `device`."""

        def tensor(values: NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)

        rest, truth = pool.unlabelled_index, pool.true_labels
        return cls(
            labelled=tensor(pool.labelled_index),
            labels=tensor(pool.labels),
            wrong=tensor(pool.labels) != tensor(pool.labels if truth is None else truth),
            truth_known=truth is not None,
            unlabelled=tensor(rest if len(rest) else pool.labelled_index),
            shares=None
            if pool.probabilities is None
            else torch.from_numpy(np.array(pool.probabilities, dtype=np.float32)).to(device),
        )

    @property
    def targets(self) -> Tensor:
        """What a loss is told of the labelled inputs: classes int64 (m,), or probabilities (m, K)."""
        return self.labels if self.shares is None else self.shares

    def without(self, removed: Tensor) -> TrainingSets:
        """M_l^san and M_u^san: the `removed` samples, bool (m,), lose their label and join the unlabelled."""
        return replace(
            self,
            labelled=self.labelled[~removed],
            labels=self.labels[~removed],
            wrong=self.wrong[~removed],
            unlabelled=torch.cat([self.unlabelled, self.labelled[removed]]),
            shares=None if self.shares is None else self.shares[~removed],
        )


def batches(count: int, size: int, batch: int, device: torch.device) -> Tensor:
    """Positions 0 .. count - 1, repeated to at least `size` and to whole batches: int64 (batches, batch).

    Every repetition is shuffled by itself, so that a sample comes back only after all others. A batch is no
    larger than `size`, whatever is asked for: memory goes with it; nor smaller than two, which a norm needs.
    """
    batch = min(batch, max(size, 2))
    total = -(-size // batch) * batch
    rounds = [torch.randperm(count, device=device) for _ in range(-(-total // count))]
    return torch.cat(rounds)[:total].view(-1, batch)


class Trainer(ABC):
    """Networks, the weights averaged for prediction, and a generator where there is one.

    `counts` is PATE++'s table of how often each labelled sample was suspected of a wrong label, float (m,).
    """

    counts: Tensor | None = None
    optimisers: list[torch.optim.Optimizer]

    def __init__(
        self, settings: StudentSettings, networks: list[Classifier], generator: Generator | None = None
    ) -> None:
        self.settings, self.networks, self.generator = settings, networks, generator
        self.averages = [copy.deepcopy(network).eval().requires_grad_(False) for network in networks]
        self.weights: list[Tensor] = [w for network in networks for w in network.parameters()]
        self._means: list[Tensor] = [w for network in self.averages for w in network.parameters()]
        self.device = self.weights[0].device
        self.step = 0

    @abstractmethod
    def run_epoch(self, epoch: int, sets: TrainingSets) -> EpochRecord:
        """One pass over both sets; epochs count from 1. PateFedError: a loss is no longer finite."""

    @property
    def answering(self) -> list[nn.Module]:
        """What a student keeps: the averaged networks, and the generator as it is."""
        return [*self.averages, *([self.generator] if self.generator else [])]

    def state(self) -> dict[str, Any]:
        """Everything that later epochs depend on, but for the random state."""
        return {
            "modules": [module.state_dict() for module in (*self.networks, *self.answering)],
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "step": self.step,
            "table": self.counts,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave."""
        for module, values in zip((*self.networks, *self.answering), state["modules"], strict=True):
            module.load_state_dict(values)
        for optimiser, values in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(values)
            for group in optimiser.param_groups:
                if "capturable" in group:  # as this device has it, not that of before
                    group["capturable"] = self.device.type == "cuda"
        self.step = state["step"]
        self.counts = None if state["table"] is None else state["table"].to(self.device)

    def update_averages(self) -> None:
        """After a step: the exponential average of the weights, short at first.

        What a norm has measured is taken over.
        """
        self.step += 1
        decay = min(self.settings.averaging, self.step / (self.step + 9))
        with torch.no_grad():
            torch._foreach_lerp_(self._means, self.weights, 1.0 - decay)
            for mean, network in zip(self.averages, self.networks, strict=True):
                for average, current in zip(mean.trunk.buffers(), network.trunk.buffers(), strict=True):
                    average.copy_(current)


def make_optimiser(
    weights: Iterable[Tensor], *, learning_rate: float, beta1: float = 0.9, sgd: bool = False
) -> torch.optim.Optimizer:
    """Adam or, with `sgd`, SGD with Nesterov's momentum 0.9 and weight decay 5e-4, as FixMatch was published.

    Both are fused: one call a step, which a card may record.
    """
    weights = list(weights)
    if sgd:
        return tensors.SGD(
            weights, lr=learning_rate, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True
        )
    return tensors.Adam(
        weights, lr=learning_rate, betas=(beta1, 0.999), fused=True, capturable=weights[0].is_cuda
    )


def check_finite(epoch: int, losses: dict[str, float]) -> None:
    """Hold an epoch's mean losses, by name, to finite numbers; PateFedError names epoch and loss."""
    for name, value in losses.items():
        if not math.isfinite(value):
            raise PateFedError(
                f"student: the {name} is {value} in epoch {epoch}; a lower learning_rate may help"
            )


# A student's training on disk after each epoch, so that it can go on where it was stopped.


@dataclass(slots=True)
class Checkpoint:
    """Where a run stands: stage, labels removed before it, records, and the trainer's state."""

    path: Path | None
    run: str
    stage: int = 1
    epoch: int = 0
    removed: Tensor | None = None  # bool (m,), set between PATE++'s stages
    history: list[EpochRecord] = field(default_factory=list)
    trainer: dict[str, Any] | None = None
    random: list[Tensor] = field(default_factory=list)

    @classmethod
    def at(
        cls,
        path: Path | None,
        pool: LabelledPool,
        settings: StudentSettings,
        seed: int,
        *,
        encoder: Encoder | None = None,
    ) -> Checkpoint:
        """What lies at `path`, or a fresh start where nothing does or `path` is None.

        Raises:
            InputError: it belongs to a run with other images, labels, classes, settings, encoder or seed.
            IntegrityError: it is damaged.
        """
        if path is None:
            return cls(None, "")
        given = [asdict(settings), seed, pool.images.shape, pool.num_classes, encoder and encoder.digest]
        digest = hashlib.sha256(json.dumps(given).encode())
        for array in (pool.images, pool.labelled_index, pool.labels, pool.probabilities):
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        run = digest.hexdigest()
        if not Path(path).exists():
            return cls(path, run)
        content = read_model(path, "checkpoint")
        if content.get("run") != run:
            raise InputError(
                f"{path}: is from a run with other images, labels, settings, encoder or another seed; "
                "remove it to begin anew"
            )
        try:
            return cls(
                path,
                run,
                history=[EpochRecord(**record) for record in content["history"]],
                trainer=content["learner"],
                **{key: content[key] for key in ("stage", "epoch", "removed", "random")},
            )
        except (KeyError, TypeError) as error:
            raise IntegrityError(f"{path}: the checkpoint lacks a part; remove it to begin anew") from error

    def restore(self, trainer: Trainer) -> int:
        """Put the saved state, if any, into it and torch's generators; the epochs done in the stage."""
        if self.trainer is None:
            return 0
        trainer.restore(self.trainer)
        self.trainer = None  # a later stage starts afresh
        torch.set_rng_state(self.random[0])
        if trainer.device.type == "cuda":
            torch.cuda.set_rng_state(self.random[1], trainer.device)
        return self.epoch

    def write(self, stage: int, epoch: int, trainer: Trainer) -> None:
        """Keep the state after an epoch; nothing without a path."""
        if self.path is None:
            return
        random = [torch.get_rng_state()]
        if trainer.device.type == "cuda":
            random.append(torch.cuda.get_rng_state(trainer.device))
        content = {
            "run": self.run,
            "stage": stage,
            "epoch": epoch,
            "removed": None if self.removed is None else self.removed.cpu(),
            "history": [asdict(record) for record in self.history],
            "learner": trainer.state(),
            "random": random,
        }
        write_model(self.path, "checkpoint", content)

    def remove(self) -> None:
        """Delete the file: the run is over."""
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)

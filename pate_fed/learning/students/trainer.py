"""The base of students that learn in epochs: averaged weights, a state to go on from, one epoch."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pate_fed.errors import PateFedError
from pate_fed.learning import optimisers
from pate_fed.learning.networks.classifiers import Classifier
from pate_fed.learning.networks.generators import Generator
from pate_fed.learning.settings import EpochRecord, StudentSettings
from pate_fed.learning.students.data import TrainingSets


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
        """One pass over both sets; epochs count from 1.

        Raises:
            PateFedError: a loss is no longer finite; the error names the epoch and which.
        """

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
        self.step = state["step"]
        self.counts = None if state["table"] is None else state["table"].to(self.device)

    def update_averages(self) -> None:
        """After a step: the exponential average of the weights, short at first.

        What a norm has measured is taken over.
        """
        self.step += 1
        decay = min(self.settings.ema_decay, self.step / (self.step + 9))
        with torch.no_grad():
            torch._foreach_lerp_(self._means, self.weights, 1.0 - decay)
            for mean, network in zip(self.averages, self.networks, strict=True):
                for average, current in zip(mean.trunk.buffers(), network.trunk.buffers(), strict=True):
                    average.copy_(current)


def make_optimiser(
    weights: Iterable[Tensor], *, learning_rate: float, beta1: float = 0.9, sgd: bool = False
) -> torch.optim.Optimizer:
    """Adam or, with `sgd`, SGD with Nesterov's momentum 0.9 and weight decay 5e-4, as FixMatch was published.

    Both are fused: one call a step.
    """
    if sgd:
        return optimisers.SGD(
            weights, lr=learning_rate, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True
        )
    return optimisers.Adam(weights, lr=learning_rate, betas=(beta1, 0.999), fused=True)


def check_finite(epoch: int, losses: dict[str, float]) -> None:
    """Hold an epoch's mean losses, by name, to finite numbers.

    Raises:
        PateFedError: one is not; the error names the epoch and which.
    """
    for name, value in losses.items():
        if not math.isfinite(value):
            raise PateFedError(
                f"student: the {name} is {value} in epoch {epoch}; a lower learning_rate may help"
            )

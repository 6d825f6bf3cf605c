"""Early stop: some noisy labels teach nothing, and say when a student no longer gets better.

Post-processing of released labels, so it costs no privacy. Wrong labels lower what the best student can reach
on the part held out, at random and thus alike for all epochs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pate_fed.learning.settings import StudentSettings
from pate_fed.learning.students.trainer import Trainer

LEAST = 10  # held-out labels below which their share that is met says too little


def held_out_part(count: int, settings: StudentSettings, *, seed: int) -> Tensor | None:
    """Which of `count` labels do not teach, bool (count,); the same for the same seed.

    None without `patience`, and where fewer than 10 would be held out or none would be left to teach.
    """
    size = round(count * settings.held_out)
    if settings.patience is None or size < LEAST or size >= count:
        return None
    chosen = torch.zeros(count, dtype=torch.bool)
    # A generator of its own, so that a run with patience draws everything else as one without.
    chosen[torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:size]] = True
    return chosen


class EarlyStop:
    """When a stage should end, and whose weights answer.

    A stage is over after `patience` epochs in which no more of the `count` held-out labels were met than ever
    before. The last epoch answers that is not worse than the best by more than a standard error: with a few
    dozen labels the best one is best by chance. Without `patience` no weights are stored and all epochs run.
    """

    def __init__(self, patience: int | None, *, count: int) -> None:
        self._patience, self._count = patience, count
        self._best, self._since = -1.0, 0
        self._weights: list[dict[str, Tensor]] = []  # of the epoch that answers, a module each

    @property
    def over(self) -> bool:
        """Whether the last `patience` epochs brought nothing."""
        return self._patience is not None and self._since >= self._patience

    def see(self, accuracy: float | None, trainer: Trainer) -> None:
        """Take note of an epoch: of the held-out labels' share that was met, None where none are held out."""
        if accuracy is None:
            return
        self._since += 1
        if accuracy > self._best:
            self._best, self._since = accuracy, 0
        if accuracy >= self._best - (self._best * (1 - self._best) / self._count) ** 0.5:
            self._weights = [_copied(module) for module in trainer.answering]

    def restore_best(self, trainer: Trainer) -> None:
        """Give `trainer` the weights of the epoch that answers."""
        for module, values in zip(trainer.answering, self._weights, strict=bool(self._weights)):
            module.load_state_dict(values)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {"best": self._best, "since": self._since, "kept": self._weights}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave."""
        self._best, self._since, self._weights = state["best"], state["since"], state["kept"]


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}

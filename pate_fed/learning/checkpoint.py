"""A student's training on disk after each epoch, so that it can go on where it was stopped."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.files import read_model, write_model
from pate_fed.learning.settings import EpochRecord, StudentSettings
from pate_fed.learning.trainer import Trainer

__all__ = ["Checkpoint"]


@dataclass(slots=True)
class Checkpoint:
    """Where a run stands: its stage, what was removed before it, its records, and a trainer's state."""

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
        images: NDArray[np.uint8],
        index: NDArray[np.int64],
        labels: NDArray[np.int64],
        settings: StudentSettings,
        seed: int,
    ) -> Checkpoint:
        """What lies at `path`, or a fresh start where nothing does or `path` is None.

        Raises:
            InputError: it belongs to a run with other images, labels, settings or another seed.
            IntegrityError: it is damaged.
        """
        if path is None:
            return cls(None, "")
        digest = hashlib.sha256(json.dumps([asdict(settings), seed, images.shape]).encode())
        for array in (images, index, labels):
            digest.update(np.ascontiguousarray(array).tobytes())
        run = digest.hexdigest()
        if not Path(path).exists():
            return cls(path, run)
        content = read_model(path, "checkpoint")
        if content.get("run") != run:
            raise InputError(f"{path}: is from a run with other images, labels, settings or another seed")
        try:
            return cls(
                path,
                run,
                stage=content["stage"],
                epoch=content["epoch"],
                removed=content["removed"],
                history=[EpochRecord(**record) for record in content["history"]],
                trainer=content["trainer"],
                random=content["random"],
            )
        except (KeyError, TypeError) as error:
            raise IntegrityError(f"{path}: the checkpoint lacks a part") from error

    def restore(self, trainer: Trainer) -> int:
        """Put the saved state, if any, into `trainer` and torch's generators; the epochs done in it."""
        if self.trainer is None:
            return 0
        trainer.restore(self.trainer)
        device, self.trainer = trainer.inputs.device, None
        torch.set_rng_state(self.random[0])
        if device.type == "cuda":
            torch.cuda.set_rng_state(self.random[1], device)
        return self.epoch

    def write(self, stage: int, epoch: int, trainer: Trainer) -> None:
        """Keep the state after an epoch; nothing without a path."""
        if self.path is None:
            return
        device = trainer.inputs.device
        random = [torch.get_rng_state()]
        random += [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
        content = {
            "run": self.run,
            "stage": stage,
            "epoch": epoch,
            "removed": None if self.removed is None else self.removed.cpu(),
            "history": [asdict(record) for record in self.history],
            "trainer": trainer.state(),
            "random": random,
        }
        write_model(self.path, "checkpoint", content)

    def remove(self) -> None:
        """Delete the file: the run is over."""
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)

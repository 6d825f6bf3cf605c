"""A student's training on disk after each epoch, so that it can go on where it was stopped."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.files import read_model, write_model
from pate_fed.learning.networks.encoder import Encoder
from pate_fed.learning.settings import EpochRecord, StudentSettings
from pate_fed.learning.students.data import LabelledPool
from pate_fed.learning.students.early_stopping import EarlyStop
from pate_fed.learning.students.trainer import Trainer


@dataclass(slots=True)
class Checkpoint:
    """Where a run stands: stage, labels removed before it, records, trainer's and early stop's state."""

    path: Path | None
    run: str
    stage: int = 1
    epoch: int = 0
    removed: Tensor | None = None  # bool (m,), set between PATE++'s stages
    history: list[EpochRecord] = field(default_factory=list)
    trainer: dict[str, Any] | None = None
    stopping: dict[str, Any] | None = None
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
                **{key: content[key] for key in ("stage", "epoch", "removed", "stopping", "random")},
            )
        except (KeyError, TypeError) as error:
            raise IntegrityError(f"{path}: the checkpoint lacks a part; remove it to begin anew") from error

    def restore(self, trainer: Trainer, stopping: EarlyStop) -> int:
        """Put the saved state, if any, into both and torch's generators; the epochs done in the stage."""
        if self.trainer is None or self.stopping is None:
            return 0
        trainer.restore(self.trainer)
        stopping.restore(self.stopping)
        self.trainer = self.stopping = None  # a later stage starts afresh
        torch.set_rng_state(self.random[0])
        if trainer.device.type == "cuda":
            torch.cuda.set_rng_state(self.random[1], trainer.device)
        return self.epoch

    def write(self, stage: int, epoch: int, trainer: Trainer, stopping: EarlyStop) -> None:
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
            "stopping": stopping.state(),
            "random": random,
        }
        write_model(self.path, "checkpoint", content)

    def remove(self) -> None:
        """Delete the file: the run is over."""
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)

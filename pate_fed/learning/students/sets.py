"""Labelled and unlabelled public inputs of a student, and the order in which an epoch shows them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Sets", "batches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sets:
    """The labelled set M_l and the unlabelled set M_u, as positions among the public inputs."""

    labelled: Tensor  # int64 (m,)
    labels: Tensor  # int64 (m,)
    wrong: Tensor  # bool (m,), false throughout where the truth is not known
    truth_known: bool
    unlabelled: Tensor  # int64 (n - m,), or the labelled ones where nothing else is left

    @classmethod
    def of(
        cls,
        index: NDArray[np.int64],
        labels: NDArray[np.int64],
        truth: NDArray[np.int64] | None,
        *,
        count: int,
        device: str,
    ) -> Sets:
        """From released labels, and the true ones where they are known, of `count` public inputs."""

        def tensor(values: NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)

        rest = np.setdiff1d(np.arange(count), index)
        return cls(
            labelled=tensor(index),
            labels=tensor(labels),
            wrong=tensor(labels) != tensor(labels if truth is None else truth),
            truth_known=truth is not None,
            unlabelled=tensor(rest if len(rest) else index),
        )

    def without(self, removed: Tensor) -> Sets:
        """M_l^san and M_u^san: the `removed` samples, bool (m,), lose their label and join the unlabelled."""
        return replace(
            self,
            labelled=self.labelled[~removed],
            labels=self.labels[~removed],
            wrong=self.wrong[~removed],
            unlabelled=torch.cat([self.unlabelled, self.labelled[removed]]),
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

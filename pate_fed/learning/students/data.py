"""What a student learns from: public inputs, the released labels of some, and the order of an epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pate_fed.errors import InputError
from pate_fed.learning.inputs import check_images, check_labels


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

"""Methods of noisy gradients, by Opacus: central DP-SGD, and DP-FedAvg for a record or for a whole hospital.

The network, the rate, the clip and the epochs are those of Opacus's own example of MNIST, wherever the data
are images; of rows it is logistic or linear regression. Federated averaging is on plain torch: the strategies
of Flower that add noise to updates do the same sum, and its engine would take a process for each hospital.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.bench.labels import Features
from pate_fed.bench.protocol import HOSPITAL, Ledger, Spent, Task, least_noise
from pate_fed.errors import InputError, naming_extras

if TYPE_CHECKING:
    from torch import Tensor, nn

_RATE, _CLIP, _EPOCHS, _SHARE, _LEAST = 0.25, 1.5, 15, 0.004, 64
_ROUNDS, _LOCAL_RATE, _LOCAL_BATCH = 10, 0.05, 32  # of whole hospitals


def run_dp_sgd(task: Task, epsilon: float, seed: int) -> tuple[NDArray[Any], Ledger]:
    """DP-SGD (Abadi et al. 2016) on all records in one place."""
    trained = _Trained(task, seed)
    row = least_noise(epsilon, task.delta, **trained.schedule(len(task.labels)))
    trained.private_steps(np.arange(len(task.labels)), row, row.count)
    return trained.predict(), Ledger(epsilon=epsilon, delta=task.delta, rows=(row,))


def opacus_example(task: Task, seed: int) -> NDArray[Any]:
    """Scores by Opacus's own example of MNIST, noise 1.3: published 94.63 ± 0.34 % at (1.19, 1e-5)."""
    trained, row = _Trained(task, seed), Spent(noise=1.3, sampling=_SHARE, count=round(_EPOCHS / _SHARE))
    trained.private_steps(np.arange(len(task.labels)), row, row.count)
    return trained.predict()


def run_fedavg_records(task: Task, epsilon: float, seed: int) -> tuple[NDArray[Any], Ledger]:
    """FedAvg of hospitals that each do DP-SGD on their own: an epoch a round, then a mean of networks."""
    import torch

    trained, hospitals = (
        _Trained(task, seed),
        [np.flatnonzero(task.owners == own) for own in range(task.parties)],
    )
    least = min(hospitals, key=len)
    plan = trained.schedule(len(least))  # the costliest: the smallest takes the greatest share of its records
    row = least_noise(epsilon, task.delta, **plan)
    for _ in range(_EPOCHS):
        start, total = trained.weights(), torch.zeros(())
        for own in hospitals:
            trained.load(start)
            trained.private_steps(own, row, row.count // _EPOCHS)
            total = total + trained.weights() / len(hospitals)
        trained.load(total)
    return trained.predict(), Ledger(epsilon=epsilon, delta=task.delta, rows=(row,))


def run_fedavg_hospitals(task: Task, epsilon: float, seed: int) -> tuple[NDArray[Any], Ledger]:
    """DP-FedAvg (McMahan et al. 2018) with every hospital in each round: its whole update is clipped."""
    import torch

    trained, row = _Trained(task, seed), least_noise(epsilon, task.delta, count=_ROUNDS)
    for _ in range(_ROUNDS):
        start = trained.weights()
        total = torch.zeros_like(start)
        for own in range(task.parties):
            trained.load(start)
            trained.plain_epoch(np.flatnonzero(task.owners == own))
            update = torch.nan_to_num(trained.weights() - start, 0, 0, 0)  # it may diverge under much noise
            total += update * min(1.0, _CLIP / (float(update.norm()) + 1e-12))
        total += torch.randn(total.shape, generator=trained.generator) * row.noise * _CLIP
        trained.load(start + total / task.parties)
    return trained.predict(), Ledger(epsilon=epsilon, delta=task.delta, unit=HOSPITAL, rows=(row,))


def network(task: Task, width: int) -> nn.Module:
    """Opacus's network of MNIST for images of 28 pixels, else one layer of rows of this width."""
    from torch import nn

    if task.inputs.ndim != 4:
        return nn.Sequential(nn.Linear(width, task.num_classes or 1))
    if task.inputs.shape[1:] != (28, 28, 1):
        raise InputError(f"images {task.inputs.shape[1:]}: (28, 28, 1) is meant by this network")
    first = nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)
    second = nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten()
    return nn.Sequential(*first, *second, nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, task.num_classes))


@dataclass(frozen=True, slots=True)
class _Scale:
    """A number's range, taught as -1 to 1."""

    low: float
    high: float

    def inside(self, values: NDArray[Any]) -> NDArray[Any]:
        return (2 * values - self.low - self.high) / (self.high - self.low)

    def outside(self, values: NDArray[Any]) -> NDArray[Any]:
        return (values * (self.high - self.low) + self.low + self.high) / 2


class _Trained:
    """A network on a task's records, which is taught by noisy or by plain steps."""

    def __init__(self, task: Task, seed: int) -> None:
        import torch

        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self._scale = None if task.target_range is None else _Scale(*task.target_range)
        if task.inputs.ndim == 4:
            middle, spread = float(task.pool.mean()), float(task.pool.std())

            def read(images: NDArray[Any]) -> Tensor:
                scaled = (np.moveaxis(images, 3, 1).astype(np.float32) - middle) / spread
                return torch.from_numpy(np.ascontiguousarray(scaled))
        else:
            features = Features(task)

            def read(images: NDArray[Any]) -> Tensor:
                return torch.from_numpy(features(images).astype(np.float32))

        self._inputs, self._test = read(task.inputs), read(task.test)
        taught = task.labels if self._scale is None else self._scale.inside(task.labels).astype(np.float32)
        self._labels = torch.from_numpy(np.asarray(taught))
        self._network = network(task, self._inputs.shape[1])
        self._private: Any = None

    def schedule(self, records: int) -> dict[str, Any]:
        """The chance of a record to be in a step, and how many steps there are."""
        share = min(1.0, max(_SHARE, _LEAST / records))
        return {"sampling": share, "count": _EPOCHS * max(1, round(1 / share))}

    def weights(self) -> Tensor:
        """All of them, one after another."""
        import torch

        return torch.nn.utils.parameters_to_vector(self._network.parameters()).detach().clone()

    def load(self, weights: Tensor) -> None:
        """Take these weights."""
        import torch

        torch.nn.utils.vector_to_parameters(weights, self._network.parameters())

    def private_steps(self, places: NDArray[np.int64], row: Spent, steps: int) -> None:
        """So many steps on Poisson samples of these records, each record's gradient clipped, with noise."""
        import torch

        model, optimiser = self._opacus(row, max(1.0, row.sampling * len(places)))
        own = torch.from_numpy(places)
        for _ in range(steps):
            chosen = own[torch.rand(len(own), generator=self.generator) < row.sampling]
            optimiser.zero_grad()
            if len(chosen):
                self._loss(model(self._inputs[chosen]), self._labels[chosen]).backward()
                optimiser.step()
            else:  # an empty sample is noise alone
                self._noise_alone(row.noise * _CLIP / max(1.0, row.sampling * len(places)))

    def plain_epoch(self, places: NDArray[np.int64]) -> None:
        """One epoch of steps without noise."""
        import torch

        optimiser = torch.optim.SGD(self._network.parameters(), lr=_LOCAL_RATE)
        order = torch.from_numpy(places)[torch.randperm(len(places), generator=self.generator)]
        for at in range(0, len(order), _LOCAL_BATCH):
            batch = order[at : at + _LOCAL_BATCH]
            optimiser.zero_grad()
            self._loss(self._network(self._inputs[batch]), self._labels[batch]).backward()
            optimiser.step()

    def predict(self) -> NDArray[Any]:
        """Scores (n, classes) of what tests, or numbers (n,)."""
        import torch

        with torch.no_grad():
            found = torch.nan_to_num(self._network.eval()(self._test)).double().numpy()
        return found if self._scale is None else self._scale.outside(np.clip(found[:, 0], -1, 1))

    def _loss(self, told: Tensor, labels: Tensor) -> Any:
        import torch

        if self._scale is not None:
            return torch.nn.functional.mse_loss(told[:, 0], labels)
        return torch.nn.functional.cross_entropy(told, labels)

    def _noise_alone(self, deviation: float) -> None:
        import torch

        weights = self.weights()
        self.load(weights - _RATE * deviation * torch.randn(weights.shape, generator=self.generator))

    def _opacus(self, row: Spent, expected: float) -> tuple[Any, Any]:
        with naming_extras("DP-SGD"):
            from opacus import GradSampleModule
            from opacus.optimizers import DPOptimizer
        import torch

        if self._private is None:
            self._private = GradSampleModule(self._network)
        plain = torch.optim.SGD(self._network.parameters(), lr=_RATE)
        private = DPOptimizer(
            plain,
            noise_multiplier=row.noise,
            max_grad_norm=_CLIP,
            expected_batch_size=math.ceil(expected),
            generator=self.generator,
        )
        return self._private, private

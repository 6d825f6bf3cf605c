"""Methods of noisy gradients, by Opacus: central DP-SGD, and DP-FedAvg for a record or for a whole hospital.

The network, the rate, the clip and the epochs are those of Opacus's own example of MNIST, wherever the data
are images; of rows it is logistic or linear regression. Federated averaging is on plain torch: the strategies
of Flower that add noise to updates do the same sum, and its engine would take a process for each hospital.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from pate_fed.bench.labels import Features
from pate_fed.bench.protocol import HOSPITAL, Given, Ledger, Spent, Task, least_noise
from pate_fed.errors import InputError, naming_extras

_RATE, _CLIP, _EPOCHS, _SHARE, _LEAST = 0.25, 1.5, 15, 0.004, 64
_ROUNDS, _LOCAL_RATE, _LOCAL_BATCH = 10, 0.05, 32  # of whole hospitals


def run_dp_sgd(task: Task, epsilon: float, seed: int) -> Given:
    """DP-SGD (Abadi et al. 2016) on all records in one place: a federation of one."""
    return run_fedavg_records(replace(task, owners=np.zeros_like(task.owners)), epsilon, seed)


def opacus_example(task: Task, truth: NDArray[np.int64], seed: int) -> float:
    """Accuracy of Opacus's own example of MNIST, noise 1.3: published 94.63 ± 0.34 % at (1.19, 1e-5)."""
    row = Spent(noise=1.3, sampling=_SHARE, count=round(_EPOCHS / _SHARE))
    return float((_averaged(task, [np.arange(len(task.labels))], row, seed).argmax(axis=1) == truth).mean())


def run_fedavg_records(task: Task, epsilon: float, seed: int) -> Given:
    """FedAvg of hospitals that each do DP-SGD on their own: an epoch a round, then a mean of networks."""
    hospitals = _hospitals(task)
    # The smallest takes the greatest share of its records, which costs most.
    share = min(1.0, max(_SHARE, _LEAST / min(map(len, hospitals))))
    row = least_noise(epsilon, task.delta, sampling=share, count=_EPOCHS * max(1, round(1 / share)))
    return _averaged(task, hospitals, row, seed), Ledger(epsilon=epsilon, delta=task.delta, rows=(row,))


def _averaged(task: Task, hospitals: list[NDArray[np.int64]], row: Spent, seed: int) -> NDArray[Any]:
    trained = _Trained(task, seed)
    for _ in range(_EPOCHS):
        start, total = trained.weights(), torch.zeros(())
        for own in hospitals:
            trained.load(start)
            trained.private_steps(own, row, row.count // _EPOCHS)
            total = total + trained.weights() / len(hospitals)
        trained.load(total)
    return trained.predict()


def run_fedavg_hospitals(task: Task, epsilon: float, seed: int) -> Given:
    """DP-FedAvg (McMahan et al. 2018) with every hospital in each round: its whole update is clipped."""
    trained, row = _Trained(task, seed), least_noise(epsilon, task.delta, count=_ROUNDS)
    for _ in range(_ROUNDS):
        start = trained.weights()
        total = torch.zeros_like(start)
        for own in _hospitals(task):
            trained.load(start)
            trained.plain_epoch(own)
            update = torch.nan_to_num(trained.weights() - start, 0, 0, 0)  # it may diverge under much noise
            total += update * min(1.0, _CLIP / (float(update.norm()) + 1e-12))
        total += torch.randn(total.shape, generator=trained.generator) * row.noise * _CLIP
        trained.load(start + total / task.parties)
    return trained.predict(), Ledger(epsilon=epsilon, delta=task.delta, unit=HOSPITAL, rows=(row,))


def _hospitals(task: Task) -> list[NDArray[np.int64]]:
    return [np.flatnonzero(task.owners == own) for own in range(task.parties)]


def network(task: Task, width: int) -> nn.Module:
    """Opacus's network of MNIST for images of 28 pixels, else one layer of rows of this width."""
    if task.inputs.ndim != 4:
        return nn.Sequential(nn.Linear(width, task.num_classes or 1))
    if task.inputs.shape[1:] != (28, 28, 1):
        raise InputError(f"images {task.inputs.shape[1:]}: (28, 28, 1) is meant by this network")
    first = nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)
    second = nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten()
    return nn.Sequential(*first, *second, nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, task.num_classes))


class _Trained:
    """A network on a task's records, which is taught by noisy or by plain steps; a number as -1 to 1."""

    def __init__(self, task: Task, seed: int) -> None:
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self._range, labels = task.target_range, task.labels
        if self._range is not None:
            low, high = self._range
            labels = ((2 * labels - low - high) / (high - low)).astype(np.float32)
        self._labels = torch.from_numpy(np.asarray(labels))
        if task.inputs.ndim == 4:
            middle, spread = float(task.pool.mean()), float(task.pool.std())
            read = [
                (np.moveaxis(each, 3, 1).astype(np.float32) - middle) / spread
                for each in (task.inputs, task.test)
            ]
        else:
            features = Features(task)
            read = [features(each).astype(np.float32) for each in (task.inputs, task.test)]
        self._inputs, self._test = (torch.from_numpy(np.ascontiguousarray(each)) for each in read)
        self._network = network(task, self._inputs.shape[1])
        self._private: Any = None  # for Opacus

    def weights(self) -> Tensor:
        """All of them, one after another."""
        return parameters_to_vector(self._network.parameters()).detach().clone()

    def load(self, weights: Tensor) -> None:
        """Take these weights."""
        vector_to_parameters(weights, self._network.parameters())

    def private_steps(self, places: NDArray[np.int64], row: Spent, steps: int) -> None:
        """So many steps on Poisson samples of these records, each record's gradient clipped, with noise."""
        with naming_extras("DP-SGD"):
            from opacus import GradSampleModule
            from opacus.optimizers import DPOptimizer

        warnings.filterwarnings("ignore", "Full backward hook")  # no input of ours wants a gradient
        self._private = self._private or GradSampleModule(self._network)
        optimiser = DPOptimizer(
            torch.optim.SGD(self._network.parameters(), lr=_RATE),
            noise_multiplier=row.noise,
            max_grad_norm=_CLIP,
            expected_batch_size=math.ceil(max(1.0, row.sampling * len(places))),
            generator=self.generator,
        )
        own = torch.from_numpy(places)
        for _ in range(steps):  # an empty sample is noise alone
            chosen = own[torch.rand(len(own), generator=self.generator) < row.sampling]
            optimiser.zero_grad()
            backward(self._loss(self._private, chosen))
            optimiser.step()

    def plain_epoch(self, places: NDArray[np.int64]) -> None:
        """One epoch of steps without noise."""
        optimiser = torch.optim.SGD(self._network.parameters(), lr=_LOCAL_RATE)
        order = torch.from_numpy(places)[torch.randperm(len(places), generator=self.generator)]
        for batch in torch.split(order, _LOCAL_BATCH):
            optimiser.zero_grad()
            backward(self._loss(self._network, batch))
            optimiser.step()

    def predict(self) -> NDArray[Any]:
        """Scores (n, classes) of what tests, or numbers (n,)."""
        with torch.no_grad():
            found: NDArray[Any] = torch.nan_to_num(self._network.eval()(self._test)).double().numpy()
        if self._range is None:
            return found
        low, high = self._range
        scaled: NDArray[Any] = (np.clip(found[:, 0], -1, 1) * (high - low) + low + high) / 2
        return scaled

    def _loss(self, model: nn.Module, chosen: Tensor) -> Tensor:
        told, labels = model(self._inputs[chosen]), self._labels[chosen]
        return cross_entropy(told, labels) if self._range is None else mse_loss(told[:, 0], labels)

"""LDP-AugDescent: two networks sort labels for each other; weak views for the losses, strong for learning.

Nishi, Ding, Rich and Höllerer, "Augmentation strategies for learning with noisy labels" (CVPR 2021),
Algorithm 4, on Li, Socher and Hoi, "DivideMix" (ICLR 2020): after a warm-up without strong views, each epoch
fits a mixture of two Gaussians to each network's losses, and the other network takes the labels of the lower
one as labels, refined by its own predictions, and sharpened common guesses for all else. Labels are released
ones, so this costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pate_fed.kinds.label_dp.learners import LearnSettings, train
from pate_fed.kinds.label_dp.public import PublicInputs
from pate_fed.kinds.label_dp.release import NO_LABEL
from pate_fed.learning.networks.classifiers import Classifier
from pate_fed.learning.students.trainer import check_finite, make_optimiser
from pate_fed.learning.tensors import seeded

Ints = NDArray[np.int64]

SHARP = 0.5  # temperature of the guesses
SURE = 0.5  # a label counts as clean above this chance
MIX = 4.0  # of the Beta law by which samples are mixed
_LATE = 5  # epochs whose losses are averaged, as DivideMix does where most labels are wrong
_LOSS_ROWS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DescentSettings:
    """`warm_up` epochs of plain learning come first; `unlabelled_weight` is λ_u, reached after a ramp.

    `most_clean` is the share of labels that can be right, where it is public: randomised response's p.
    `strong_only` learns from strong views alone, as published; else one of each input's two is weak, which
    the light network needs: features of strong views alone do not tell it what plain ones look like.
    """

    learn: LearnSettings = field(default_factory=LearnSettings)
    warm_up: int = 1
    unlabelled_weight: float = 25.0
    ramp: int = 4
    most_clean: float = 1.0
    strong_only: bool = True


def aug_descent(
    public: PublicInputs, label: Ints, settings: DescentSettings, *, seed: int
) -> list[Classifier]:
    """Two networks that predict together, from private labels int64 (n,), -1 where there is none.

    Raises:
        InputError: there is no label.
        PateFedError: a loss is no longer finite; the error names the epoch, the warm-up's counted.
    """
    learn, there = settings.learn, np.flatnonzero(label != NO_LABEL)
    warm = LearnSettings(
        epochs=settings.warm_up, batch_size=learn.batch_size, learning_rate=learn.learning_rate, sgd=learn.sgd
    )
    pair = [
        train(public, there, label[there], warm, seed=2 * seed + number, unlabelled_weight=0.0)
        for number in (0, 1)
    ]
    with seeded(seed, public.device):
        return _Descent(public, pair, there, label[there], settings).run()


class _Batch(NamedTuple):
    """Inputs of one step: `labelled` and `unlabelled` (b,), `targets` (b, K), and their `weight` (b, 1)."""

    labelled: Tensor
    targets: Tensor
    weight: Tensor
    unlabelled: Tensor


class _Descent:
    """The two networks, their optimisers and one epoch of both.

    The epoch is not `FixMatch`'s: which labels count as labels changes from epoch to epoch, and each network
    takes them, and half of its guesses, from the other one, while a `Trainer` learns from fixed sets.
    """

    def __init__(
        self,
        public: PublicInputs,
        pair: list[Classifier],
        there: Ints,
        label: Ints,
        settings: DescentSettings,
    ) -> None:
        device = torch.device(public.device)
        self.settings, self.device, self.classes = settings, device, public.num_classes
        self.public, self.views = public, public.views()
        self.pair = [network.requires_grad_(True) for network in pair]
        self.there = torch.from_numpy(there).to(device)
        self.label = torch.from_numpy(label).to(device)
        self.rest = torch.from_numpy(np.setdiff1d(np.arange(len(public)), there)).to(device)
        self.losses: list[list[NDArray[np.float64]]] = [[], []]
        rate = settings.learn.learning_rate
        self.optimisers = [
            make_optimiser(network.parameters(), learning_rate=rate, sgd=settings.learn.sgd)
            for network in self.pair
        ]

    def run(self) -> list[Classifier]:
        """All epochs after the warm-up; at least one."""
        epochs, before = max(1, self.settings.learn.epochs - self.settings.warm_up), self.settings.warm_up
        for epoch in self.public.epochs(epochs):
            chances = [self._chances(number, before + epoch - 1) for number in (0, 1)]
            for optimiser in self.optimisers:
                rate = self.settings.learn.learning_rate * math.cos(1.37 * (epoch - 1) / epochs)
                optimiser.param_groups[0]["lr"] = rate
            for number in (0, 1):  # each learns from what the other one holds for clean
                self._epoch(number, chances[1 - number], epoch)
        for network in self.pair:
            self._losses(network, before + epochs)
        return [network.eval().requires_grad_(False) for network in self.pair]

    def _chances(self, number: int, epoch: int) -> NDArray[np.float64]:
        """How likely each label is right, by its mean loss of late, and 0 beyond the share that can be."""
        self.losses[number] = [*self.losses[number], self._losses(self.pair[number], epoch)][-_LATE:]
        found = clean_chances(np.mean(self.losses[number], axis=0))
        most = math.ceil(self.settings.most_clean * len(found))
        found[np.argsort(-found, kind="stable")[most:]] = 0.0
        return found

    def _losses(self, network: Classifier, epoch: int) -> NDArray[np.float64]:
        """The loss of every label on a weak view after `epoch`, scaled to 0..1; float64 (m,)."""
        network.eval()
        with torch.no_grad():
            parts = [
                F.cross_entropy(network.logits(self.views.weak(rows)), label, reduction="none")
                for rows, label in zip(
                    torch.split(self.there, _LOSS_ROWS), torch.split(self.label, _LOSS_ROWS), strict=True
                )
            ]
        found = torch.cat(parts).double().cpu().numpy()
        check_finite(epoch, {"AugDescent loss of the labels": float(found.mean())})
        return np.asarray((found - found.min()) / max(float(np.ptp(found)), 1e-12))

    def _epoch(self, number: int, chances: NDArray[np.float64], epoch: int) -> None:
        learner, other = self.pair[number].train(), self.pair[1 - number].eval()
        clean = torch.from_numpy(chances > SURE).to(self.device)
        weight = torch.from_numpy(chances).float().to(self.device)
        labelled = torch.nonzero(clean).flatten()
        if len(labelled) == 0:
            return
        unlabelled = torch.cat([self.there[~clean], self.rest])
        unlabelled = unlabelled if len(unlabelled) else self.there
        size = self.settings.learn.batch_size
        ramp = self.settings.unlabelled_weight * min(1.0, epoch / self.settings.ramp)
        for _ in range(-(-len(labelled) // size)):
            pick = labelled[torch.randint(len(labelled), (size,), device=self.device)]
            rows = unlabelled[torch.randint(len(unlabelled), (size,), device=self.device)]
            targets = F.one_hot(self.label[pick], self.classes).float()
            batch = _Batch(self.there[pick], targets, weight[pick][:, None], rows)
            self._step(learner, other, self.optimisers[number], batch, ramp)

    def _step(
        self,
        learner: Classifier,
        other: Classifier,
        optimiser: torch.optim.Optimizer,
        batch: _Batch,
        ramp: float,
    ) -> None:
        """Refine, guess, mix, learn."""
        labelled, targets, weight, unlabelled = batch
        with torch.no_grad():
            own = torch.stack([self._shares(learner, labelled) for _ in range(2)]).mean(dim=0)
            refined = _sharpened(weight * targets + (1 - weight) * own)
            looks = [self._shares(network, unlabelled) for network in (learner, other) for _ in range(2)]
            guessed = _sharpened(torch.stack(looks).mean(dim=0))
        first_view = self.views.strong if self.settings.strong_only else self.views.weak
        seen = [view(rows) for rows in (labelled, unlabelled) for view in (first_view, self.views.strong)]
        x, y = torch.cat(seen), torch.cat([refined, refined, guessed, guessed])
        share = float(torch.distributions.Beta(MIX, MIX).sample())
        share = max(share, 1 - share)
        partner = torch.randperm(len(x), device=self.device)
        logits = learner.logits(share * x + (1 - share) * x[partner])  # (4b, K)
        mixed = share * y + (1 - share) * y[partner]
        first = 2 * len(labelled)
        supervised = -(mixed[:first] * logits[:first].log_softmax(dim=1)).sum(dim=1).mean()
        unsupervised = (logits[first:].softmax(dim=1) - mixed[first:]).square().mean()
        mean = logits.softmax(dim=1).mean(dim=0).clamp(min=1e-8)
        # Against all guesses falling into one class (DivideMix, Equation 11, with a uniform prior).
        spread = -(mean * self.classes).log().mean()
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward([supervised + ramp * unsupervised + spread])
        optimiser.step()

    def _shares(self, network: Classifier, rows: Tensor) -> Tensor:
        return network.logits(self.views.weak(rows)).softmax(dim=1)


def _sharpened(shares: Tensor) -> Tensor:
    powers = shares.clamp(min=1e-8) ** (1 / SHARP)
    return powers / powers.sum(dim=1, keepdim=True)


def clean_chances(losses: NDArray[np.float64], *, rounds: int = 30) -> NDArray[np.float64]:
    """The chance of each loss to belong to the lower of two Gaussians fitted to all; float64 (m,).

    Expectation and maximisation from the losses' quartiles; all alike gives 1 throughout.
    """
    x = losses.astype(np.float64)
    if len(x) < 2 or np.ptp(x) < 1e-9:
        return np.ones(len(x))
    mean, spread = np.quantile(x, [0.1, 0.9]), np.full(2, x.var() / 4 + 1e-6)
    share = np.full(2, 0.5)
    for _ in range(rounds):
        log = np.log(share) - 0.5 * np.log(spread) - (x[:, None] - mean) ** 2 / (2 * spread)
        belongs = np.exp(log - np.logaddexp(log[:, :1], log[:, 1:]))  # (m, 2)
        total = belongs.sum(axis=0) + 1e-9
        share, mean = total / total.sum(), (belongs * x[:, None]).sum(axis=0) / total
        spread = (belongs * (x[:, None] - mean) ** 2).sum(axis=0) / total + 5e-4
    return np.asarray(belongs[:, int(mean.argmin())])

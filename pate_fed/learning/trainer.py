"""Discriminators, generator and one epoch over them: the step of Algorithm 1 of PATE++ (arXiv 2211.01628)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pate_fed.errors import PateFedError
from pate_fed.learning.cleansing import decayed, suspects
from pate_fed.learning.coteaching import exchange, keep_rate
from pate_fed.learning.generators import build_generator
from pate_fed.learning.losses import (
    feature_matching_loss,
    masked_mean,
    supervised_losses,
    unsupervised_loss,
)
from pate_fed.learning.models import Shape, build_discriminator
from pate_fed.learning.settings import EpochRecord, StudentSettings
from pate_fed.learning.vat import virtual_adversarial_loss

__all__ = ["Sets", "Trainer", "batches"]

BETA1, BETA2 = 0.5, 0.999  # Adam, as in the improved-GAN recipe


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


class Trainer:
    """Discriminators, generator, their optimisers and the weights averaged for prediction."""

    def __init__(
        self, settings: StudentSettings, shape: Shape, num_classes: int, pixels: Tensor, *, samples: int
    ) -> None:
        self.settings, device = settings, pixels.device
        count = 2 if settings.co_teaching else 1
        self.networks = [
            build_discriminator(
                settings.network,
                shape,
                num_classes,
                dropout=settings.dropout,
                input_noise=settings.input_noise,
            ).to(device)
            for _ in range(count)
        ]
        self.front = self.networks[0].front
        self.front.fit(pixels)
        for network in self.networks:
            network.front.load_state_dict(self.front.state_dict())
        # Nothing in a front is trained, so all public inputs go through it once.
        self.inputs = self.front(pixels)
        for network in self.networks:
            network.settle(self.inputs)
        self.averages = [copy.deepcopy(network) for network in self.networks]
        generator = build_generator(settings.network, shape).to(device) if settings.generates else None
        self.generator = generator
        # Steps in the pixels go through the front again and again.
        self.pixels = pixels if settings.name == "vat" else None
        # Adam works weight by weight, so one optimiser over both discriminators is two.
        self.weights: list[Tensor] = [w for network in self.networks for w in network.parameters()]
        self.mean_weights: list[Tensor] = [w for network in self.averages for w in network.parameters()]
        self.optimiser = _adam(self.weights, settings)
        self.generator_optimiser = _adam(self.generator.parameters(), settings) if self.generator else None
        self.step = 0
        self.table = torch.zeros(samples, device=device)  # PATE++'s counts, one a labelled sample

    def state(self) -> dict[str, Any]:
        """Everything that later epochs depend on, but for the random state."""
        modules = [*self.networks, *self.averages, *([self.generator] if self.generator else [])]
        optimisers = [each for each in (self.optimiser, self.generator_optimiser) if each is not None]
        return {
            "modules": [module.state_dict() for module in modules],
            "optimisers": [optimiser.state_dict() for optimiser in optimisers],
            "step": self.step,
            "table": self.table,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave."""
        modules = [*self.networks, *self.averages, *([self.generator] if self.generator else [])]
        for module, values in zip(modules, state["modules"], strict=True):
            module.load_state_dict(values)
        optimisers = [each for each in (self.optimiser, self.generator_optimiser) if each is not None]
        for optimiser, values in zip(optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(values)
        self.step = state["step"]
        self.table = state["table"].to(self.table.device)

    def run_epoch(self, epoch: int, sets: Sets) -> EpochRecord:
        """One pass over the labelled and the unlabelled set, the smaller one duplicated (Algorithm 1)."""
        for module in (*self.networks, *([self.generator] if self.generator else [])):
            module.train()
        rate = keep_rate(epoch, noise_rate=self.settings.beta, ramp_epochs=self.settings.ramp_epochs)
        self._set_learning_rate(epoch)
        size = len(sets.labelled)
        if self._unlabelled:
            size = max(size, len(sets.unlabelled))
        labelled = batches(len(sets.labelled), size, self.settings.batch_size, self.inputs.device)
        unlabelled = batches(len(sets.unlabelled), size, self.settings.batch_size, self.inputs.device)
        counts = torch.zeros_like(self.table)
        sums = torch.zeros(6, dtype=torch.float64, device=self.inputs.device)
        for pick, pick_unlabelled in zip(labelled, unlabelled, strict=True):
            x, y = self.inputs[sets.labelled[pick]], sets.labels[pick]
            shown = self.inputs if self.pixels is None else self.pixels
            u = shown[sets.unlabelled[pick_unlabelled]]
            figures, disagree, suspected = self._learn_batch(x, y, u, rate)
            counts.index_add_(0, pick, suspected.to(counts.dtype))
            told = torch.stack([disagree.sum(), (disagree & sets.wrong[pick]).sum()]).double()
            sums += torch.cat([figures, told])
            self._average()
        self.table = decayed(self.table, counts > 0, decay=self.settings.count_decay)
        # The only time in an epoch that the host waits for the device.
        return self._record(epoch, sums.tolist(), batches=len(labelled), truth_known=sets.truth_known)

    def _learn_batch(self, x: Tensor, y: Tensor, u: Tensor, rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """One step of the discriminators, then one of the generator; `u` is pixels for VAT.

        Returns three losses and the kept share, float64 (4,); then bool (batch,) each: the labelled samples
        on which the discriminators disagree, and those suspected of a wrong label.
        """
        fake = self.front(self.generator.draw(len(u))) if self.generator is not None else None
        parts = [x] if fake is None else [x, u, fake.detach()]
        together, sizes = torch.cat(parts), [len(part) for part in parts]
        logits = [torch.split(network.logits(together), sizes) for network in self.networks]

        losses = [supervised_losses(each[0], y) for each in logits]  # (batch,) a discriminator
        first, second = (each[0].argmax(dim=1) for each in (logits[0], logits[-1]))
        disagree = first != second
        candidates = disagree if self.settings.by_disagreement else torch.ones_like(disagree)
        chosen = exchange(losses, candidates, rate=rate)
        supervised = [masked_mean(loss, keep) for loss, keep in zip(losses, chosen, strict=True)]
        unsupervised = [] if fake is None else [unsupervised_loss(each[1], each[2]) for each in logits]
        if self.pixels is not None:
            unsupervised = [virtual_adversarial_loss(network, u) for network in self.networks]
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward([torch.stack(supervised + unsupervised).sum()])
        self.optimiser.step()

        matching = torch.zeros((), device=x.device) if fake is None else self._learn_generator(u, fake)
        means = [
            torch.stack(each).detach().mean() if each else matching for each in (supervised, unsupervised)
        ]
        figures = torch.stack([*means, matching, torch.stack(chosen).float().mean()]).double()
        return figures, disagree, suspects(first, second, y)

    def _learn_generator(self, u: Tensor, fake: Tensor) -> Tensor:
        assert self.generator is not None and self.generator_optimiser is not None
        with torch.no_grad():
            real = [network.features(u) for network in self.networks]
        loss = feature_matching_loss(real, [network.features(fake) for network in self.networks])
        self.generator_optimiser.zero_grad(set_to_none=True)
        # Only the generator moves here: the discriminators' weights get no gradient.
        torch.autograd.backward([loss], inputs=list(self.generator.parameters()))
        self.generator_optimiser.step()
        return loss.detach()

    @property
    def _unlabelled(self) -> bool:
        """Whether unlabelled inputs teach, too."""
        return self.generator is not None or self.pixels is not None

    def _average(self) -> None:
        """Exponential average of the discriminators' weights, short at first."""
        self.step += 1
        decay = min(self.settings.ema_decay, self.step / (self.step + 9))
        with torch.no_grad():
            torch._foreach_lerp_(self.mean_weights, self.weights, 1.0 - decay)

    def _set_learning_rate(self, epoch: int) -> None:
        progress = (epoch - 1) / self.settings.stage_epochs
        factor = 1.0 if progress < 0.5 else 1.0 - 1.8 * (progress - 0.5)
        for optimiser in (self.optimiser, self.generator_optimiser):
            if optimiser is not None:
                optimiser.param_groups[0]["lr"] = self.settings.learning_rate * factor

    def _record(self, epoch: int, sums: list[float], *, batches: int, truth_known: bool) -> EpochRecord:
        supervised, unsupervised, matching, kept = (each / batches for each in sums[:4])
        disagreements, wrong = sums[4:]
        losses = {
            "supervised loss": supervised,
            "unsupervised loss": unsupervised,
            "generator's loss": matching,
        }
        for name, value in losses.items():
            if not math.isfinite(value):
                raise PateFedError(
                    f"student: the {name} is {value} in epoch {epoch}; a lower learning_rate may help"
                )
        pair, adversarial = len(self.networks) == 2, self.generator is not None
        return EpochRecord(
            epoch=epoch,
            loss_supervised=supervised,
            loss_unsupervised=unsupervised if self._unlabelled else None,
            loss_generator=matching if adversarial else None,
            kept_share=kept,
            disagreements=round(disagreements) if pair else None,
            disputed_wrong_share=wrong / disagreements if truth_known and disagreements else None,
            test_accuracy=None,
        )


def _adam(weights: Iterable[Tensor], settings: StudentSettings) -> torch.optim.Optimizer:
    return torch.optim.Adam(weights, lr=settings.learning_rate, betas=(BETA1, BETA2), fused=True)


def batches(count: int, size: int, batch: int, device: torch.device) -> Tensor:
    """Positions 0 .. count - 1, repeated to at least `size` and to whole batches: int64 (batches, batch).

    Every repetition is shuffled by itself, so that a sample comes back only after all others.
    """
    total = -(-size // batch) * batch
    rounds = [torch.randperm(count, device=device) for _ in range(-(-total // count))]
    return torch.cat(rounds)[:total].view(-1, batch)

"""A student that agrees with itself: weak and strong views of every public image, and a confidence threshold.

Sohn et al., "FixMatch" (NeurIPS 2020): the class of a weakly changed image, where it is sure enough, is the
label of the same image strongly changed. Here the class comes from averaged weights, and of the released
labels only those of small loss teach, by co-teaching's schedule R(e), with the network as its own peer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pate_fed.errors import PateFedError
from pate_fed.learning.coteaching import keep_rate, select_small_losses
from pate_fed.learning.losses import masked_mean, supervised_losses
from pate_fed.learning.models import Classifier, Shape, build_discriminator
from pate_fed.learning.settings import EpochRecord, StudentSettings
from pate_fed.learning.trainer import Sets, batches

__all__ = ["FixMatch", "shifted", "strong_view", "weak_view"]

CONFIDENCE = 0.9
RATIO = 3  # unlabelled images a labelled one in a batch
WEAK, STRONG = 2, 4  # pixels that a view moves at most


class FixMatch:
    """One network, its averaged weights, and one epoch over both sets."""

    def __init__(self, settings: StudentSettings, shape: Shape, num_classes: int, pixels: Tensor) -> None:
        self.settings, self.image_shape, self.pixels = settings, shape, pixels
        self.network: Classifier = build_discriminator(
            settings.network, shape, num_classes, dropout=settings.dropout, input_noise=settings.input_noise
        ).to(pixels.device)
        self.network.front.fit(pixels)
        self.average = copy.deepcopy(self.network).eval().requires_grad_(False)
        self._weights: list[Tensor] = list(self.network.parameters())
        self._optimiser = torch.optim.Adam(self._weights, lr=settings.learning_rate)
        self._step = 0

    def run(self, sets: Sets) -> Iterator[EpochRecord]:
        """All epochs, a record after each.

        Raises:
            PateFedError: a loss is no longer finite; the error names the epoch and which.
        """
        for epoch in range(1, self.settings.epochs + 1):
            progress = (epoch - 1) / self.settings.epochs
            self._optimiser.param_groups[0]["lr"] = self.settings.learning_rate * math.cos(1.37 * progress)
            yield self._epoch(epoch, sets)

    def _epoch(self, epoch: int, sets: Sets) -> EpochRecord:
        self.network.train()
        rate = keep_rate(epoch, noise_rate=self.settings.beta, ramp_epochs=self.settings.ramp_epochs)
        size, device = self.settings.batch_size, self.pixels.device
        most = max(len(sets.labelled), len(sets.unlabelled))
        labelled = batches(len(sets.labelled), most, size, device)
        unlabelled = batches(len(sets.unlabelled), RATIO * labelled.numel(), RATIO * size, device)
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        for pick, other in zip(labelled, unlabelled, strict=True):
            x, y = self.pixels[sets.labelled[pick]], sets.labels[pick]
            sums += self._learn_batch(x, y, self.pixels[sets.unlabelled[other]], rate)
        # The only time in an epoch that the host waits for the device.
        supervised, unsupervised, kept = (value / len(unlabelled) for value in sums.tolist())
        for name, value in (("supervised loss", supervised), ("unsupervised loss", unsupervised)):
            if not math.isfinite(value):
                raise PateFedError(
                    f"student: the {name} is {value} in epoch {epoch}; a lower learning_rate may help"
                )
        return EpochRecord(
            epoch=epoch,
            loss_supervised=supervised,
            loss_unsupervised=unsupervised,
            loss_generator=None,
            kept_share=kept,
            disagreements=None,
        )

    def _learn_batch(self, x: Tensor, y: Tensor, u: Tensor, rate: float) -> Tensor:
        """One step; two losses and the kept share of the labelled samples, float64 (3,)."""
        with torch.no_grad():
            sure, guess = self.average(weak_view(u)).softmax(dim=1).max(dim=1)
        front = self.network.front
        together = torch.cat([front(weak_view(x)), front(strong_view(u))])
        seen, strong = torch.split(self.network.logits(together), [len(x), len(u)])
        losses = supervised_losses(seen, y)
        keep = select_small_losses(losses.detach(), torch.ones_like(y, dtype=torch.bool), rate=rate)
        supervised = masked_mean(losses, keep)
        unsupervised = torch.where(sure >= CONFIDENCE, supervised_losses(strong, guess), 0.0).mean()
        self._optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward([supervised + unsupervised])
        self._optimiser.step()
        self._step += 1
        decay = min(self.settings.ema_decay, self._step / (self._step + 9))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), self._weights, 1.0 - decay)
        return torch.stack([supervised.detach(), unsupervised.detach(), keep.float().mean()]).double()


def shifted(x: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Images (n, C, H, W) moved by `down` and `right` pixels, int64 (n,) each; the edge's pixels fill up."""
    count, channels, height, width = x.shape
    rows = (torch.arange(height, device=x.device) - down[:, None]).clamp(0, height - 1)  # (n, H)
    columns = (torch.arange(width, device=x.device) - right[:, None]).clamp(0, width - 1)  # (n, W)
    x = x.gather(2, rows[:, None, :, None].expand(count, channels, height, width))
    return x.gather(3, columns[:, None, None, :].expand(count, channels, height, width))


def weak_view(x: Tensor, most: int = WEAK) -> Tensor:
    """Each image moved by up to `most` pixels either way; no flips, since they may change a class."""
    down, right = torch.randint(-most, most + 1, (2, len(x)), device=x.device)
    return shifted(x, down, right)


def strong_view(x: Tensor) -> Tensor:
    """Moved further, other contrast and brightness, and a square of half the side painted over."""
    x = weak_view(x, STRONG)
    draw = torch.rand(4, len(x), 1, 1, 1, device=x.device)
    x = ((x - 0.5) * (0.6 + 0.8 * draw[0]) + 0.5 + 0.3 * (draw[1] - 0.5)).clamp(0, 1)
    height, width = x.shape[2:]
    rows = torch.arange(height, device=x.device)[None, None, :, None] / height
    columns = torch.arange(width, device=x.device)[None, None, None, :] / width
    hidden = ((rows - draw[2]).abs() < 0.25) & ((columns - draw[3]).abs() < 0.25)
    return torch.where(hidden, 0.5, x)

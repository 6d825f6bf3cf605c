"""A student that agrees with itself: weak and strong views of every public image, and a confidence threshold.

Sohn et al., "FixMatch" (NeurIPS 2020): the class of a weakly changed image, where it is sure enough, is the
label of the same image strongly changed. Here the class comes from averaged weights. Where a share of wrong
labels is given, only released labels of small loss teach, by co-teaching's schedule R(e).

Measured on Fashion-MNIST, 1,704 labels 25 % wrong, held-out public inputs: a discriminator with the GAN's
noise and dropout, taught by labels of small loss, got 79.9 %, and 78.9 % after 25 epochs, as its guesses
confirm themselves; with less noise 80.9 %; a hidden layer on the encoder, taught by all labels, 81.4 %. The
head in closed form has 83.1 % there: these views add little to features that know them already.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pate_fed.learning.networks.classifiers import (
    INITIALISED_FROM,
    Classifier,
    Preprocessing,
    Shape,
    build_discriminator,
    build_encoder_network,
)
from pate_fed.learning.networks.encoder import Encoder
from pate_fed.learning.settings import EpochRecord, StudentSettings
from pate_fed.learning.students.gan import keep_rate, select_small_losses
from pate_fed.learning.students.losses import masked_mean, response_losses, supervised_losses
from pate_fed.learning.students.trainer import Trainer, TrainingSets, batches, check_finite, make_optimiser

CONFIDENCE = 0.9
RATIO = 3  # unlabelled images a labelled one in a batch
WEAK, STRONG = 2, 4  # pixels that a view moves at most


class Views(Protocol):
    """Preprocessed views of the inputs at some positions, int64 (m,)."""

    def weak(self, index: Tensor) -> Tensor:
        """Views that hardly change an input; (m, ...)."""

    def strong(self, index: Tensor) -> Tensor:
        """Views that change it as far as its class stands; (m, ...)."""


class ImageViews:
    """Views of images (n, C, H, W), drawn and preprocessed whenever they are asked for.

    With `flip` the views are mirrored half the time, which digits and letters do not stand.
    """

    def __init__(self, pixels: Tensor, preprocess: Preprocessing, *, flip: bool = False) -> None:
        self._pixels, self._preprocess, self._flip = pixels, preprocess, flip

    def weak(self, index: Tensor) -> Tensor:
        """See `weak_view`."""
        shown: Tensor = self._preprocess(weak_view(self._at(index)))
        return shown

    def strong(self, index: Tensor) -> Tensor:
        """See `strong_view`."""
        shown: Tensor = self._preprocess(strong_view(self._at(index)))
        return shown

    def _at(self, index: Tensor) -> Tensor:
        x = self._pixels[index]
        if not self._flip:
            return x
        turned = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
        return torch.where(turned, x.flip(3), x)


class FixMatch(Trainer):
    """One network, its averaged weights, and one epoch over both sets.

    `unlabelled_weight` 0 leaves plain supervised learning of weak views; `mixup` is the parameter of the Beta
    law by which labelled inputs and their labels are mixed in pairs (Zhang et al., ICLR 2018), 0 for none.
    Labels may be classes, int64 (m,), or probabilities, float (m, K). For `sgd` see `make_optimiser`.
    `keep_probability` below 1 is that of randomised response to leave a label, a class, as it is, every other
    being as likely: the network then learns the true class.
    """

    def __init__(
        self,
        settings: StudentSettings,
        network: Classifier,
        views: Views,
        *,
        unlabelled_weight: float = 1.0,
        mixup: float = 0.0,
        sgd: bool = False,
        keep_probability: float = 1.0,
    ) -> None:
        super().__init__(settings, [network])
        self.network, self.average, self.views = network, self.averages[0], views
        self.unlabelled_weight, self.mixup = unlabelled_weight, mixup
        self.keep_probability = keep_probability
        self._optimiser = make_optimiser(self.weights, learning_rate=settings.rate, sgd=sgd)
        self.optimisers = [self._optimiser]

    @classmethod
    def of_images(
        cls,
        settings: StudentSettings,
        shape: Shape,
        num_classes: int,
        pixels: Tensor,
        encoder: Encoder | None = None,
    ) -> FixMatch:
        """A hidden layer on the `encoder`, or else the settings' discriminator, on views of `pixels`."""
        if encoder is not None:
            network = build_encoder_network(encoder.preprocessing(), encoder.basis.shape[1], num_classes)
            network = network.to(pixels.device)
        else:
            noise = {"dropout": settings.dropout, "input_noise": settings.input_noise}
            network = build_discriminator(settings.built_on, shape, num_classes, **noise).to(pixels.device)
            network.preprocess.fit(pixels)
            network.initialise_from_data(network.preprocess(pixels[:INITIALISED_FROM]))
        return cls(settings, network, ImageViews(pixels, network.preprocess))

    def run_epoch(self, epoch: int, sets: TrainingSets) -> EpochRecord:
        """One pass over both sets, the smaller one duplicated."""
        progress = (epoch - 1) / self.settings.stage_epochs
        self._optimiser.param_groups[0]["lr"] = self.settings.rate * math.cos(1.37 * progress)
        self.network.train()
        rate = keep_rate(epoch, noise_rate=self.settings.beta, ramp_epochs=self.settings.ramp)
        size, device = self.settings.batch_size, self.device
        most = max(len(sets.labelled), len(sets.unlabelled))
        labelled = batches(len(sets.labelled), most, size, device)
        unlabelled = batches(len(sets.unlabelled), RATIO * labelled.numel(), RATIO * size, device)
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        for pick, other in zip(labelled, unlabelled, strict=True):
            losses = self._learn_batch(sets.labelled[pick], sets.targets[pick], sets.unlabelled[other], rate)
            sums += losses
        # The only time in an epoch that the host waits for the device.
        supervised, unsupervised, kept_share = (value / len(unlabelled) for value in sums.tolist())
        check_finite(epoch, {"supervised loss": supervised, "unsupervised loss": unsupervised})
        return EpochRecord(
            epoch=epoch, loss_supervised=supervised, loss_unsupervised=unsupervised, kept_share=kept_share
        )

    def _learn_batch(self, labelled: Tensor, y: Tensor, unlabelled: Tensor, rate: float) -> Tensor:
        """One step; two losses and the kept share of the labelled samples, float64 (3,)."""
        x = self.views.weak(labelled)
        if self.mixup:
            x, y = self._mixed(x, y)
        unsupervised = torch.zeros((), device=self.device)
        if self.unlabelled_weight:
            with torch.no_grad():
                sure, guess = self.average.logits(self.views.weak(unlabelled)).softmax(dim=1).max(dim=1)
            together = torch.cat([x, self.views.strong(unlabelled)])
            seen, strong = torch.split(self.network.logits(together), [len(x), len(unlabelled)])
            unsupervised = torch.where(sure >= CONFIDENCE, supervised_losses(strong, guess), 0.0).mean()
        else:
            seen = self.network.logits(x)
        if self.keep_probability == 1:
            losses = supervised_losses(seen, y)
        else:
            losses = response_losses(seen, y, keep_probability=self.keep_probability)
        every = torch.ones(len(x), dtype=torch.bool, device=self.device)
        keep = select_small_losses(losses.detach(), every, rate=rate)
        supervised = masked_mean(losses, keep)
        self._optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward([supervised + self.unlabelled_weight * unsupervised])
        self._optimiser.step()
        self.update_averages()
        return torch.stack([supervised.detach(), unsupervised.detach(), keep.float().mean()]).double()

    def _mixed(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Each input and its label mixed with another of the batch."""
        targets = F.one_hot(y, self._classes).to(x.dtype) if y.ndim == 1 else y
        share = float(torch.distributions.Beta(self.mixup, self.mixup).sample())
        partner = torch.randperm(len(x), device=x.device)
        return share * x + (1 - share) * x[partner], share * targets + (1 - share) * targets[partner]

    @property
    def _classes(self) -> int:
        return int(self.network.output.weight.shape[0])  # type: ignore[index]


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

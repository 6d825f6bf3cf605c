"""Discriminators, generator and one epoch over them: the step of Algorithm 1 of PATE++ (arXiv 2211.01628)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pate_fed.learning.networks.classifiers import (
    Classifier,
    Shape,
    build_discriminator,
    build_encoder_discriminator,
)
from pate_fed.learning.networks.encoder import Encoder
from pate_fed.learning.networks.generators import build_generator
from pate_fed.learning.settings import EpochRecord, StudentSettings
from pate_fed.learning.students.cleansing import decayed, suspects
from pate_fed.learning.students.coteaching import exchange, keep_rate
from pate_fed.learning.students.learner import Learner, check_finite
from pate_fed.learning.students.losses import (
    feature_matching_loss,
    masked_mean,
    supervised_losses,
    unsupervised_loss,
)
from pate_fed.learning.students.sets import Sets, batches
from pate_fed.learning.students.vat import virtual_adversarial_loss

__all__ = ["Trainer"]

BETA1, BETA2 = 0.5, 0.999  # Adam, as in the improved-GAN recipe


class Trainer(Learner):
    """One or two discriminators, on the `encoder` where there is one, and a generator."""

    table: Tensor

    def __init__(
        self,
        settings: StudentSettings,
        shape: Shape,
        num_classes: int,
        pixels: Tensor,
        *,
        samples: int,
        encoder: Encoder | None = None,
    ) -> None:
        device = pixels.device
        networks = [
            _discriminator(settings, shape, num_classes, encoder).to(device)
            for _ in range(2 if settings.co_teaching else 1)
        ]
        self.front = networks[0].front
        if encoder is None:
            self.front.fit(pixels)
        for network in networks:
            network.front.load_state_dict(self.front.state_dict())
        # Nothing in a front is trained, so all public inputs go through it once.
        self.inputs = self.front(pixels)
        for network in networks:
            network.settle(self.inputs)
        generator = build_generator(settings.built_on, shape).to(device) if settings.generates else None
        super().__init__(settings, networks, generator)
        # Steps in the pixels go through the front again and again.
        self.pixels = pixels if settings.name == "vat" else None
        # Adam works weight by weight, so one optimiser over both discriminators is two.
        self.optimiser = _adam(self.weights, settings)
        self.generator_optimiser = _adam(generator.parameters(), settings) if generator else None
        self.table = torch.zeros(samples, device=device)  # PATE++'s counts, one a labelled sample

    @property
    def optimisers(self) -> list[torch.optim.Optimizer]:
        """The discriminators' and the generator's."""
        return [each for each in (self.optimiser, self.generator_optimiser) if each is not None]

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
            self.update_averages()
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

    def _set_learning_rate(self, epoch: int) -> None:
        progress = (epoch - 1) / self.settings.stage_epochs
        factor = 1.0 if progress < 0.5 else 1.0 - 1.8 * (progress - 0.5)
        for optimiser in self.optimisers:
            optimiser.param_groups[0]["lr"] = self.settings.learning_rate * factor

    def _record(self, epoch: int, sums: list[float], *, batches: int, truth_known: bool) -> EpochRecord:
        supervised, unsupervised, matching, kept = (each / batches for each in sums[:4])
        disagreements, wrong = sums[4:]
        check_finite(
            epoch,
            {
                "supervised loss": supervised,
                "unsupervised loss": unsupervised,
                "generator's loss": matching,
            },
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


def _discriminator(
    settings: StudentSettings, shape: Shape, num_classes: int, encoder: Encoder | None
) -> Classifier:
    noise = {"dropout": settings.dropout, "input_noise": settings.input_noise}
    if encoder is None:
        return build_discriminator(settings.built_on, shape, num_classes, **noise)
    return build_encoder_discriminator(encoder.front(), encoder.basis.shape[1], num_classes, **noise)


def _adam(weights: Iterable[Tensor], settings: StudentSettings) -> torch.optim.Optimizer:
    return torch.optim.Adam(weights, lr=settings.learning_rate, betas=(BETA1, BETA2), fused=True)

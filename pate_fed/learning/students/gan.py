"""The semi-supervised GAN student: its epoch and step, co-teaching's exchange, and PATE++'s cleansing.

PATE++ (arXiv 2211.01628): Algorithm 1 is the step, section III-B the small-loss exchange between two
discriminators, section III-C and Algorithm 3 the search for wrong labels. "supervised" and "vat" are the same
loop without a generator.

Where weights are averaged, two discriminators (and one on the public encoder) see images a little deformed,
and learn of the unlabelled ones what classes the peer finds, by averaged weights and in the images as they
are (Tarvainen and Valpola, "Mean teachers", NIPS 2017, with two students in place of one). A head in closed
form has a part in that: alone, two peers convince each other, and gave up half of a class with few labels.
Labels on which the two disagree become rare then, so PATE+ also learns from some of small loss, and PATE++
takes the label off what both contradict after the first stage. Each is one of `additions`; without them all
is as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pate_fed.learning import tensors
from pate_fed.learning.networks import classifiers
from pate_fed.learning.networks.generators import DenseGenerator, FeatureGenerator, Generator
from pate_fed.learning.settings import EpochRecord, StudentSettings
from pate_fed.learning.students.closed_form import PoolFeatures, deformed_at_random, small_changes
from pate_fed.learning.students.losses import (
    feature_matching_loss,
    masked_mean,
    supervised_losses,
    unsupervised_loss,
    virtual_adversarial_loss,
)
from pate_fed.learning.students.trainer import Trainer, TrainingSets, batches, check_finite, make_optimiser

BETA1 = 0.5  # of Adam, as in the improved-GAN recipe
# With opinions: weights of the two losses of unlabelled inputs, the power to which an opinion is taken, and
# the share of a stage until it has its whole weight.
ADVERSARIAL, OPINION, SHARPER, WARM_UP = 0.3, 3.0, 2.0, 0.3
HEAD, HEAD_FROM_PIXELS = 0.5, 0.8  # a head's share in them; networks on pixels know less
UNDISPUTED = 0.5  # with opinions, of the labels that PATE+ would keep were none undisputed
DROPOUT, INPUT_NOISE = 0.1, 0.05  # of our networks on pixels that are told what to think of deformed images
OURS = ("small-cnn", "deep-cnn")
RARE = 0.25  # of the mean number of labels a class


class GANTrainer(Trainer):
    """One or two discriminators and a generator; or networks that `make` makes.

    On the encoder they are given the pool's `features` on it. `head` says of every public input what a head
    in closed form finds, as logarithms of probabilities, float (n, K).
    """

    def __init__(
        self,
        settings: StudentSettings,
        shape: classifiers.Shape,
        num_classes: int,
        pixels: Tensor,
        features: PoolFeatures | None = None,
        *,
        head: Tensor | None = None,
        make: Callable[[], Any] | None = None,
    ) -> None:
        device = pixels.device
        networks = [
            _discriminator(settings, shape, num_classes, features, make).to(device)
            for _ in range(2 if settings.co_teaching else 1)
        ]
        self.num_classes, self.preprocess = num_classes, networks[0].preprocess
        if features is None:
            self.preprocess.fit(pixels)
        for network in networks:
            network.preprocess.load_state_dict(self.preprocess.state_dict())
        # Nothing in the preprocessing is trained, so all public inputs go through it once.
        self.inputs = self.preprocess(pixels) if features is None else features.plain
        for network in networks:
            network.initialise_from_data(self.inputs)
        self.copies: Tensor | None = None  # of the inputs, (copies, n, d), they themselves first
        self.head, self.head_share = head, HEAD_FROM_PIXELS if features is None else HEAD
        if settings.adds("deformed") and features is not None:
            self.copies = torch.cat([self.inputs[None].half(), features.copies])
        generator: Generator | None = None
        if settings.generates and features is None:
            generator = DenseGenerator(shape).to(device)
        elif settings.generates and features is not None:
            drawn = FeatureGenerator(shape, self.inputs.shape[1]).to(device)
            drawn.fit(self.inputs, pixels)
            generator = drawn
        super().__init__(settings, networks, generator)
        # VAT's steps in the pixels are preprocessed again and again, and so are deformed images.
        vat, deformed = settings.name == "vat", settings.adds("deformed") and features is None
        self.pixels = pixels if vat or deformed else None
        self.changes = small_changes(pixels) if deformed else None
        # Adam works weight by weight, so one optimiser over both discriminators is two.
        adam = partial(make_optimiser, learning_rate=settings.rate, beta1=BETA1)
        self.optimiser = adam(self.weights)
        self.generator_optimiser = adam(generator.parameters()) if generator else None
        self.optimisers = [self.optimiser, *([self.generator_optimiser] if self.generator_optimiser else [])]

    def run_epoch(self, epoch: int, sets: TrainingSets) -> EpochRecord:
        """One pass over the labelled and the unlabelled set, the smaller one duplicated (Algorithm 1)."""
        for module in (*self.networks, *([self.generator] if self.generator else [])):
            module.train()
        rate = keep_rate(epoch, noise_rate=self.settings.beta, ramp_epochs=self.settings.ramp)
        trust = min((epoch - 1) / (WARM_UP * self.settings.stage_epochs), 1.0)
        for optimiser in self.optimisers:
            optimiser.param_groups[0]["lr"] = self.settings.rate_in(epoch)
        size = len(sets.labelled)
        if self._unlabelled:
            size = max(size, len(sets.unlabelled))
        labelled = batches(len(sets.labelled), size, self.settings.batch_size, self.inputs.device)
        if self.settings.adds("balanced"):
            labelled = balanced(sets.labels, labelled)
        unlabelled = batches(len(sets.unlabelled), size, self.settings.batch_size, self.inputs.device)
        unlearnt = torch.ones(self.num_classes, dtype=torch.bool, device=self.inputs.device)
        unlearnt = unlearnt.index_fill(0, sets.labels, False)
        suspicions = torch.zeros(len(sets.labelled), device=self.inputs.device)
        sums = torch.zeros(6, dtype=torch.float64, device=self.inputs.device)

        def learn(pick: Tensor, others: Tensor) -> None:
            x, y = self._shown(sets.labelled[pick]), sets.targets[pick]
            vat = self.pixels if self.settings.name == "vat" else None
            u = self._shown(others) if vat is None else vat[others]
            opinions = self._opinions(others, unlearnt, trust) if self.settings.adds("peers") else None
            figures, disagree, suspected = self._learn_batch(x, y, u, rate, opinions)
            suspicions.index_add_(0, pick, suspected.to(suspicions.dtype))
            told = torch.stack([disagree.sum(), (disagree & sets.wrong[pick]).sum()]).double()
            sums.add_(torch.cat([figures, told]))

        # Code of the user's own may wait for the card.
        step = learn if self.settings.code is not None else tensors.recorded(learn, self.device)
        for pick, pick_unlabelled in zip(labelled, unlabelled, strict=True):
            step(pick, sets.unlabelled[pick_unlabelled])
            self.update_averages()
        counts = torch.zeros_like(suspicions) if self.counts is None else self.counts
        self.counts = decayed(counts, suspicions > 0, decay=self.settings.count_decay)
        # The only time in an epoch that the host waits for the device.
        return self._record(epoch, sums.tolist(), batches=len(labelled), truth_known=sets.truth_known)

    def _shown(self, index: Tensor) -> Tensor:
        """The inputs at `index`, int64 (n,), or with opinions a deformed copy of each at random."""
        if self.pixels is not None and self.changes is not None:
            shown = deformed_at_random(self.pixels[index], self.changes)
            return self.preprocess(shown)  # type: ignore[no-any-return]
        if self.copies is None:
            return self.inputs[index]
        which = torch.randint(len(self.copies), (len(index),), device=index.device)
        return self.copies[which, index].float()

    def _opinions(self, index: Tensor, unlearnt: Tensor, trust: float) -> list[Tensor]:
        """For each discriminator the classes of inputs (n,) by its peer's averaged weights, each (n, K).

        With a head its and the peer's probabilities are averaged by their logarithms. Powers of them, times
        the loss's weight; none for `unlearnt` classes, bool (K,). One alone has no peer but its own average.
        """
        with torch.no_grad():
            told = [average.logits(self.inputs[index]) for average in reversed(self.averages)]
        if self.head is not None:
            told = [torch.lerp(each.log_softmax(dim=1), self.head[index], self.head_share) for each in told]
        sharp = [SHARPER * each.masked_fill(unlearnt, -torch.inf) for each in told]
        return [OPINION * trust * each.softmax(dim=1) for each in sharp]

    def _learn_batch(
        self, x: Tensor, y: Tensor, u: Tensor, rate: float, opinions: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step of the discriminators, then one of the generator; `u` is pixels for VAT.

        `y` are classes (batch,) or probabilities (batch, K); `opinions` are on `u`, (batch, K) each. Returns
        three losses and the kept share, float64 (4,); then bool (batch,) each: the labelled samples on which
        the discriminators disagree, and those suspected of a wrong label.
        """
        fake = self.generator.draw_inputs(len(u), self.preprocess) if self.generator is not None else None
        parts = [x] if fake is None else [x, u, fake.detach()]
        together, sizes = torch.cat(parts), [len(part) for part in parts]
        logits = [torch.split(network.logits(together), sizes) for network in self.networks]

        losses = [supervised_losses(each[0], y) for each in logits]  # (batch,) a discriminator
        first, second = (each[0].argmax(dim=1) for each in (logits[0], logits[-1]))
        disagree = first != second
        candidates = disagree if self.settings.by_disagreement else torch.ones_like(disagree)
        chosen = exchange(losses, candidates, rate=rate)
        if self.settings.adds("undisputed") and self.settings.by_disagreement:
            undisputed = exchange(losses, torch.ones_like(disagree), rate=UNDISPUTED * rate)
            chosen = [disputed | easy for disputed, easy in zip(chosen, undisputed, strict=True)]
        supervised = [masked_mean(loss, keep) for loss, keep in zip(losses, chosen, strict=True)]
        unsupervised = [] if fake is None else [unsupervised_loss(each[1], each[2]) for each in logits]
        if opinions is not None:
            unsupervised = [
                ADVERSARIAL * loss + F.cross_entropy(each[1], opinion)
                for loss, each, opinion in zip(unsupervised, logits, opinions, strict=True)
            ]
        if self.settings.name == "vat":
            unsupervised = [virtual_adversarial_loss(network, u) for network in self.networks]
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward([torch.stack(supervised + unsupervised).sum()])
        self.optimiser.step()

        matching = torch.zeros((), device=x.device) if fake is None else self._learn_generator(u, fake)
        means = [
            torch.stack(each).detach().mean() if each else matching for each in (supervised, unsupervised)
        ]
        figures = torch.stack([*means, matching, torch.stack(chosen).float().mean()]).double()
        return figures, disagree, suspects(first, second, y if y.ndim == 1 else y.argmax(dim=1))

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
        return self.generator is not None or self.settings.name == "vat"

    def _record(self, epoch: int, sums: list[float], *, batches: int, truth_known: bool) -> EpochRecord:
        supervised, unsupervised, matching, kept_share = (each / batches for each in sums[:4])
        disagreements, wrong = sums[4:]
        losses = {"supervised loss": supervised, "unsupervised loss": unsupervised}
        check_finite(epoch, {**losses, "generator's loss": matching})
        pair, adversarial = len(self.networks) == 2, self.generator is not None
        return EpochRecord(
            epoch=epoch,
            loss_supervised=supervised,
            loss_unsupervised=unsupervised if self._unlabelled else None,
            loss_generator=matching if adversarial else None,
            kept_share=kept_share,
            disagreements=round(disagreements) if pair else None,
            disputed_wrong_share=wrong / disagreements if truth_known and disagreements else None,
        )


def _discriminator(
    settings: StudentSettings,
    shape: classifiers.Shape,
    num_classes: int,
    features: PoolFeatures | None,
    make: Callable[[], Any] | None,
) -> classifiers.Classifier:
    if make is not None:
        return classifiers.own_network(make(), channels=shape[2])
    noise = {name: settings.chosen(name) for name in ("dropout", "input_noise")}
    if settings.adds("deformed") and settings.built_on in OURS:
        light = {"dropout": DROPOUT, "input_noise": INPUT_NOISE}
        noise = {name: light[name] if share is None else share for name, share in noise.items()}
    if features is None:
        return classifiers.build_discriminator(settings.built_on, shape, num_classes, **noise)
    preprocess, width = features.encoder.preprocessing(), features.plain.shape[1]
    return classifiers.build_encoder_discriminator(preprocess, width, num_classes, **noise)


def balanced(labels: Tensor, like: Tensor) -> Tensor:
    """Batches of the shape of `like` in which classes come alike often: int64 positions, with repetition.

    A threshold lets some classes through more often than others. Classes of less than a quarter of the mean
    count do not come back so often: a handful of labels may all be wrong. Shape of labels: int64 (m,).
    """
    often = (labels[:, None] == labels).sum(dim=1).double()  # how many labels say the same
    classes = (1 / often).sum()
    weights = 1 / often.maximum(RARE * len(labels) / classes)
    return torch.multinomial(weights, like.numel(), replacement=True).view_as(like)


def keep_rate(epoch: int, *, noise_rate: float, ramp_epochs: int = 15) -> float:
    """R(e) = 1 - β·min(e / ramp, 1): the share of small-loss samples used in epoch e, counted from 1.

    Han et al., "Co-teaching" (2018), with the ramp of PATE++, section IV-A.
    """
    return 1.0 - noise_rate * min(epoch / ramp_epochs, 1.0)


def select_small_losses(losses: Tensor, candidates: Tensor, *, rate: float) -> Tensor:
    """The ⌈rate · candidates⌉ candidates with the smallest losses (Algorithm 1, line 9); ties by position.

    A mask of a fixed size, so that nothing on a GPU waits for a count.
    Shapes: losses (n,), candidates bool (n,), result bool (n,), empty where there are no candidates.
    """
    order = torch.where(candidates, losses, torch.inf).argsort(stable=True)  # positions, smallest loss first
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    # In double precision and a hair less, so that 0.8 · 100 is 80 and not 81.
    wanted = torch.ceil(candidates.sum().double() * rate - 1e-9)
    return candidates & (rank < wanted)


def exchange(losses: list[Tensor], candidates: Tensor, *, rate: float) -> list[Tensor]:
    """The samples each discriminator learns from: those of small loss to the *other* one (lines 11 and 12).

    One discriminator alone has no peer and learns from all candidates. Shapes: (n,) each to bool (n,) each.
    """
    if len(losses) == 1:
        return [candidates]
    first, second = (select_small_losses(each.detach(), candidates, rate=rate) for each in losses)
    return [second, first]


def suspects(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """Samples suspected of a wrong label: the predictions differ, and neither is the label (criteria 1, 2).

    Shapes: int64 (n,) each, to bool (n,).
    """
    return (first != second) & (first != labels) & (second != labels)


def decayed(counts: Tensor, suspected: Tensor, *, decay: float) -> Tensor:
    """The count table after one more epoch: T ← α·T + c, with c 1 for one suspected in the epoch, else 0.

    This is the text's rule, which damps the early epochs. Line 16 of the pseudocode multiplies the new count
    instead, so that its table never forgets. Shapes: float (m,) and (m,) to (m,).
    """
    return decay * counts + suspected.to(counts.dtype)


def contradicted(trainer: GANTrainer, sets: TrainingSets) -> Tensor:
    """The labels that both discriminators contradict, by averaged weights, bool (m,); none if it were all.

    They know how many that are, where a share τ = β̂ would err with the estimate of β.
    """
    parts = torch.split(sets.labelled, classifiers.AT_ONCE)
    with torch.no_grad():
        found = [
            torch.cat([average.logits(trainer.inputs[part]).argmax(dim=1) for part in parts])
            for average in trainer.averages
        ]
    wrong = torch.stack([each != sets.labels for each in found]).all(dim=0)
    return wrong & ~wrong.all()


def most_suspected(counts: Tensor, *, share: float) -> Tensor:
    """The ⌊share · m⌋ samples with the largest counts, ties by position: bool (m,).

    Fewer where fewer have any count: a sample never suspected keeps its label, which the paper leaves open.
    """
    wanted = int(share * len(counts) + 1e-9)
    order = counts.argsort(descending=True, stable=True)
    chosen = torch.zeros(len(counts), dtype=torch.bool, device=counts.device)
    chosen[order[:wanted]] = True
    return chosen & (counts > 0)

"""Learning from private labels: normal, semi-supervised, and semi-supervised on what clusters confirm.

LDP, Algorithms 6 and 7. All of it is post-processing of released labels and public features and costs no
privacy (Propositions 2 to 4). There is one loop for all, that of `pate_fed.learning.students.fixmatch`.
PATE-FM's teachers learn by it too, from all features and one share of the labels each; they are asked and
then forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.kinds.label_dp.pate_fm import shares_of_labels
from pate_fed.kinds.label_dp.public import PublicInputs
from pate_fed.kinds.label_dp.release import NO_LABEL, PrivateLabels
from pate_fed.learning.networks.classifiers import Classifier
from pate_fed.learning.settings import StudentSettings
from pate_fed.learning.students.closed_form import Graph
from pate_fed.learning.students.fixmatch import FixMatch
from pate_fed.learning.students.trainer import TrainingSets
from pate_fed.learning.tensors import seeded

# DenoiseSSL's first half: pseudo labels from clusters, and which private labels they confirm.
#
# LDP, Algorithm 7 and Equation 8. The pseudo label of a record is the majority of the private labels in its
# cluster; all of it is post-processing. Where there are many small clusters, majorities borrow from
# clusters nearby: counts spread over the graph of the clusters' mean features, as far as the released
# labels themselves say it helps (pseudo labels from one half of them, agreement with the other half).

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ALPHAS = (0.0, 0.5, 0.8, 0.95)  # how far counts spread
_STEPS = 40


def equation8(accuracy: float, epsilon: float) -> float:
    """Share of right labels among those that randomised response and pseudo labels agree on.

    e^ε/(e^ε + (1 - Acc0)/Acc0) with Acc0 the pseudo labels' `accuracy` (LDP, Equation 8); 0 at Acc0 = 0.
    """
    if accuracy <= 0:
        return 0.0
    return 1 / (1 + (1 - accuracy) / accuracy * math.exp(-epsilon))


def estimated_accuracy(agreement: float, *, keep_probability: float, other: float) -> float:
    """Acc0 from the share of private labels that pseudo labels agree with, without a look at a true label.

    A right pseudo label agrees with `keep_probability`, a wrong one with `other`.
    """
    return float(np.clip((agreement - other) / (keep_probability - other), 0.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Denoised:
    """What is kept: `pseudo` int64 (n,), `agreed` bool (n,), the spread `alpha` and the left-out agreement.

    `agreement` is the share of labels that pseudo labels from the other half agree with.
    """

    pseudo: Ints
    agreed: NDArray[np.bool_]
    alpha: float
    agreement: float


def denoise(
    label: Ints,
    clusters: Ints,
    *,
    num_clusters: int,
    num_classes: int,
    centres: NDArray[np.float32] | None = None,
    seed: int = 0,
) -> Denoised:
    """Pseudo labels of all records, and the private labels that they confirm.

    Shapes: `label` int64 (n,), -1 where there is none; `clusters` int64 (n,); `centres` float32
    (clusters, d), without which nothing spreads.
    """
    graph = None if centres is None or num_clusters < 2 * num_classes else Graph(centres)
    shape = num_clusters, num_classes
    half = np.random.default_rng(seed).random(len(label)) < 0.5
    parts = [_counts(label, clusters, shape, rows) for rows in (half, ~half)]
    best = (-1.0, 0.0)
    for alpha in ALPHAS if graph is not None else ALPHAS[:1]:
        first, second = (_spread(graph, counts, alpha).argmax(axis=1) for counts in parts)
        other = np.where(half, second[clusters], first[clusters])  # named by the half a record is not in
        asked = label != NO_LABEL
        agreement = float((other == label)[asked].mean()) if asked.any() else 0.0
        best = max(best, (agreement, -alpha))
    agreement, alpha = best[0], -best[1]
    pseudo = _spread(graph, parts[0] + parts[1], alpha).argmax(axis=1)[clusters]
    return Denoised(pseudo=pseudo, agreed=(pseudo == label), alpha=alpha, agreement=agreement)


def _counts(label: Ints, clusters: Ints, shape: tuple[int, int], rows: NDArray[np.bool_]) -> Floats:
    rows = rows & (label != NO_LABEL)
    flat = np.bincount(clusters[rows] * shape[1] + label[rows], minlength=shape[0] * shape[1])
    return flat.reshape(shape).astype(np.float64)


def _spread(graph: Graph | None, counts: Floats, alpha: float) -> Floats:
    if graph is None or alpha == 0:
        return counts
    return graph.smooth(counts, alpha=alpha, steps=_STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnSettings:
    """How long and how fast; the same for every method, so that methods can be compared.

    An epoch shows as many labelled inputs as there are records, and three times as many unlabelled ones.

    Raises:
        InputError: a value is out of range.
    """

    epochs: int = 5
    batch_size: int = 128
    learning_rate: float = 3e-3
    sgd: bool = False
    ema_decay: float = 0.998

    def __post_init__(self) -> None:
        self.student()

    def student(self) -> StudentSettings:
        """The same for `FixMatch`: every label teaches, none is taken off for its loss."""
        return StudentSettings(
            name="fixmatch",
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            ema_decay=self.ema_decay,
            noise_rate=0.0,
        )


def train(
    public: PublicInputs,
    index: Ints,
    targets: NDArray[np.generic],
    settings: LearnSettings,
    *,
    seed: int,
    unlabelled: Ints | None = None,
    unlabelled_weight: float = 1.0,
    mixup: float = 0.0,
    keep_probability: float = 1.0,
) -> Classifier:
    """One network, with averaged weights, from labels of some public inputs, by `FixMatch`.

    `unlabelled_weight` is the weight of inputs without a label, `keep_probability` that with which randomised
    response left a label as it was. Shapes: `index` int64 (m,) into the inputs, `targets` int64 (m,), or
    probabilities float (m, K); `unlabelled` int64 (u,), all inputs where it is None.

    Raises:
        InputError: there is no label.
        PateFedError: a loss is no longer finite.
    """
    if len(index) == 0:
        raise InputError("no private label is left to learn from: a larger ε or fewer clusters are meant")
    device = public.device
    with seeded(seed, device):
        views = public.views()
        labels = torch.from_numpy(np.array(targets)).to(device)
        trained = FixMatch(
            settings.student(),
            public.network(),
            views,
            unlabelled_weight=unlabelled_weight,
            mixup=mixup,
            sgd=settings.sgd,
            keep_probability=keep_probability,
        )
        every = np.arange(len(public)) if unlabelled is None else unlabelled
        sets = TrainingSets(
            labelled=torch.from_numpy(np.array(index, dtype=np.int64)).to(device),
            labels=labels if labels.dtype == torch.int64 else labels.float(),
            wrong=torch.zeros(len(index), dtype=torch.bool, device=device),
            truth_known=False,
            unlabelled=torch.from_numpy(np.array(every, dtype=np.int64)).to(device),
        )
        for epoch in public.epochs(settings.epochs):
            trained.run_epoch(epoch, sets)
    return trained.average


def ldp_normal(
    public: PublicInputs, labels: PrivateLabels, settings: LearnSettings, *, seed: int, mixup: float = 0.0
) -> Classifier:
    """LDP-Normal: supervised learning as if the labels were true; with `mixup` 1 after RandRes it is LP-1ST.

    A posterior, where the mechanism gives one, is learnt in place of classes.
    """
    index = np.flatnonzero(labels.label != NO_LABEL)
    targets = labels.label[index] if labels.posterior is None else labels.posterior[index]
    return train(public, index, targets, settings, seed=seed, unlabelled_weight=0.0, mixup=mixup)


def ldp_ssl(
    public: PublicInputs, label: Ints, settings: LearnSettings, *, seed: int, keep_probability: float = 1.0
) -> Classifier:
    """LDP-SSL: FixMatch on all inputs with the labels there are (-1: none).

    `keep_probability` is that with which randomised response left a label as it was, which is public. The
    paper learns the responses as they are, and a network that does is never sure of any class.
    """
    index = np.flatnonzero(label != NO_LABEL)
    return train(public, index, label[index], settings, seed=seed, keep_probability=keep_probability)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeachSettings:
    """How many teachers there are, how long one learns, and how many inputs it sees without a label.

    `unlabelled` 0 shows all of them; else each teacher is shown its own random choice, so that an epoch has
    `unlabelled`/batch size steps.
    """

    num_teachers: int = 250
    learn: LearnSettings = field(default_factory=lambda: LearnSettings(epochs=1, batch_size=32))
    unlabelled: int = 9600


def queries_of(records: int, count: int, *, seed: int) -> Ints:
    """Which records are asked about: a public choice, int64 (count,)."""
    order = np.random.default_rng([0xF1, seed]).permutation(records)
    return np.asarray(order[:count], dtype=np.int64)


def teach(
    public: PublicInputs,
    labels: Ints,
    queries: Ints,
    settings: TeachSettings,
    *,
    seed: int,
    log: Callable[[str], None] | None = None,
) -> Ints:
    """The exact totals of all teachers on the queries, int64 (queries, classes): private, never released.

    Raises:
        InputError: more teachers than records.
    """
    shares = shares_of_labels(len(public), settings.num_teachers, seed=seed)
    totals, wanted = np.zeros((len(queries), public.num_classes), dtype=np.int64), settings.unlabelled
    for number, share in enumerate(shares):
        if log is not None and number % 50 == 0:
            log(f"teacher {number + 1} of {len(shares)}")
        shown = None
        if 0 < wanted < len(public):
            shown = np.random.default_rng([seed, number]).choice(len(public), wanted, replace=False)
        network = train(
            public, share, labels[share], settings.learn, seed=1000 * seed + number, unlabelled=shown
        )
        totals[np.arange(len(queries)), public.classes_at(network, queries)] += 1
    return totals

"""PATE-FM's teachers: FixMatch on all features and one share of the labels each, asked and then forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pate_fed.kinds.label_dp.learners import LearnSettings, train
from pate_fed.kinds.label_dp.pate_fm import shares_of_labels
from pate_fed.kinds.label_dp.public import PublicInputs

Ints = NDArray[np.int64]


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

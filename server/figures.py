"""Figures of a run after the fact: accuracies, ε along the run, and the two data-dependent ones.

Of the last two one is for the analyst alone, one may be published. None decides anything: the budget stop
runs on the ledger, which is independent of the votes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.privacy import (
    ConfidentGNMax,
    DistributedGNMax,
    InteractiveGNMax,
    Ledger,
    NoiseSource,
    Odometer,
    PrivacyEvent,
    SanitisedEpsilon,
    mechanism_epsilon_do_not_publish,
    sanitised_epsilon,
)
from pate_fed.protocol.cost import Mechanism
from pate_fed.report import Accuracy, Evaluation, Spending, count_confusion, count_top_votes
from server.state import VotedBatch

__all__ = ["analysts_epsilon", "measure", "publishable_epsilon", "spending_curve"]

Ints = NDArray[np.int64]

_POINTS = 40


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Asked:
    """Released queries whose totals are known, in order.

    Shapes: `totals` int64 (n, classes), `checked` int64 (n,), `answered` bool (n,).
    `complete` tells that these are all released queries.
    """

    totals: Ints
    checked: Ints
    answered: NDArray[np.bool_]
    complete: bool

    @classmethod
    def of(cls, ledger: Ledger, voted: Mapping[str, VotedBatch]) -> _Asked:
        """From totals by their batches' digests; of a batch fewer queries than were voted on may be asked."""
        _, answered, _ = ledger.released()
        classes, start = ledger.terms.mechanisms[0].num_classes, 0
        totals, checked = [np.empty((0, classes), dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        bits, complete = [np.empty(0, dtype=np.bool_)], True
        for entry in ledger.entries():
            asked, batch = entry.event.asked, voted.get(entry.batch_digest)
            if batch is None:
                complete = False
            else:
                totals.append(batch.totals[:asked])
                checked.append(batch.checked[:asked])
                bits.append(answered[start : start + asked])
            start += asked
        return cls(np.concatenate(totals), np.concatenate(checked), np.concatenate(bits), complete)


def measure(
    ledger: Ledger,
    voted: Mapping[str, VotedBatch],
    evaluated: VotedBatch | None,
    *,
    truth: Ints,
    num_teachers: int,
    exact: bool,
) -> tuple[Accuracy, Evaluation] | None:
    """Accuracy of teachers, ensemble and labels, and counts; None where nothing was asked or truth unknown.

    `truth` int64 (pool_size,) are the public inputs' labels, -1 where unknown; `exact` says that totals are
    without noise. `evaluated` was voted on only to be measured.
    """
    index, answered, label = ledger.released()
    if not len(index) or (truth < 0).any():
        return None
    right = label[answered] == truth[index[answered]]
    accuracy = Accuracy(labels=float(np.mean(right)) if answered.any() else None)
    batches = [*voted.values(), *([] if evaluated is None else [evaluated])]
    top: dict[str, tuple[int, ...]] = {}
    if batches:
        known = _Asked.of(ledger, voted)
        top = count_top_votes(known.totals, known.answered, num_teachers=num_teachers)
    if batches and exact:  # noisy totals tell neither
        totals = np.concatenate([batch.totals for batch in batches])
        true = truth[np.concatenate([batch.index for batch in batches])]
        accuracy = replace(
            accuracy,
            teacher_mean=float(totals[np.arange(len(true)), true].sum() / totals.sum()),
            ensemble=float(np.mean(totals.argmax(axis=1) == true)),
        )
    confusion = count_confusion(truth[index], label, num_classes=ledger.terms.mechanisms[0].num_classes)
    return accuracy, Evaluation(confusion=confusion, **top)


def analysts_epsilon(mechanism: Mechanism, ledger: Ledger, voted: Mapping[str, VotedBatch]) -> float | None:
    """The data-dependent ε; it reveals something about the votes, so it is not for publication.

    None where nothing was asked, or where not all exact totals are known: the hospitals added the noise, a
    batch under masks is void, or an earlier process's totals are gone.
    """
    asked = _Asked.of(ledger, voted)
    if not ledger.entries() or not asked.complete or isinstance(mechanism, DistributedGNMax):
        return None
    return mechanism_epsilon_do_not_publish(
        mechanism,
        asked.totals,
        asked.answered,
        delta=ledger.terms.delta,
        checked=asked.checked if isinstance(mechanism, InteractiveGNMax) else None,
        protection=ledger.terms.protection,
    ).epsilon


def publishable_epsilon(
    mechanism: Mechanism, ledger: Ledger, voted: Mapping[str, VotedBatch], noise: NoiseSource
) -> SanitisedEpsilon | None:
    """The sanitised ε, drawn once, at a study's end: a noisy reading of labels and itself, no bound.

    None where the terms know none, or nothing was asked.

    Raises:
        InputError: totals of an earlier process are gone.
    """
    settings = ledger.terms.sanitise
    if settings is None or not ledger.entries():
        return None
    asked = _Asked.of(ledger, voted)
    if not asked.complete:
        raise InputError(
            "--sanitise: the exact totals of what was asked before the coordinator was started again are not "
            "all there (folder private of the run directory), so no sanitised ε can be drawn; the "
            "data-independent ε holds"
        )
    confident = isinstance(mechanism, ConfidentGNMax)
    parameters = mechanism.parameters()
    return sanitised_epsilon(
        asked.totals,
        asked.answered,
        settings=settings,
        threshold=parameters["threshold"] if confident else None,
        sigma1=parameters["sigma1"] if confident else None,
        sigma2=parameters["sigma2" if confident else "sigma"],
        num_teachers=mechanism.num_teachers,
        delta=ledger.terms.delta,
        noise=noise,
        protection=ledger.terms.protection,
    )


def spending_curve(ledger: Ledger) -> Spending:
    """ε along the run, from the ledger's public counts: within a batch queries are released in order."""
    _, answered, _ = ledger.released()
    pieces: list[PrivacyEvent] = []
    step, start = max(1, len(answered) // _POINTS), 0
    for event in ledger.events():
        for first in range(start, start + event.asked, step):
            part = answered[first : min(first + step, start + event.asked)]
            pieces.append(replace(event, asked=len(part), answered=int(part.sum())))
        start += event.asked
    epsilons = Odometer(ledger.terms.delta, ledger.terms.reserved).readings(pieces)
    return Spending(
        asked=tuple(accumulate(piece.asked for piece in pieces)),
        answered=tuple(accumulate(piece.answered for piece in pieces)),
        epsilon=tuple(epsilons),
    )

"""Figures of a run after the fact: accuracies, ε along the run, and the two data-dependent ones.

Of the last two one is for the analyst alone, one may be published. None decides anything: the budget stop
runs on the ledger, which is independent of the votes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate_fed import privacy
from pate_fed.errors import InputError
from pate_fed.kinds.votes import Mechanism
from pate_fed.privacy.mechanisms.own import OwnMechanism
from pate_fed.report.accuracy import Accuracy
from pate_fed.report.result import Evaluation, Spending, count_confusion, count_top_votes
from server.state import SanitisedDraw, Totals

if TYPE_CHECKING:
    from server.kinds.rounds import QueryRounds

Ints = NDArray[np.int64]

_POINTS = 40


def _known(
    ledger: privacy.Ledger, totals: Mapping[str, Totals]
) -> tuple[list[Totals], NDArray[np.bool_], bool]:
    """Charged batches whose totals are known, cut to what was asked, and whether that is all of them.

    In between: which of their queries were answered, bool (asked,), in order.
    """
    _, answered, _ = ledger.released()
    known, bits, start = list[Totals](), [np.empty(0, dtype=np.bool_)], 0
    for entry in ledger.entries():
        batch, asked = totals.get(entry.batch_digest), entry.event.asked
        if batch is not None:
            known.append(batch.rows(slice(asked)))
            bits.append(answered[start : start + asked])
        start += asked
    return known, np.concatenate(bits), len(known) == len(ledger.entries())


def measure(
    ledger: privacy.Ledger,
    totals: Mapping[str, Totals],
    evaluated: Totals | None,
    *,
    truth: Ints,
    num_teachers: int,
    exact: bool,
) -> tuple[Accuracy, Evaluation] | None:
    """Accuracy of teachers, ensemble and labels, and counts; None where nothing was asked or truth unknown.

    `truth` int64 (pool_size,) are the public inputs' labels, -1 where unknown: those do not count. `exact`
    says that totals are without noise. `evaluated` was voted on only to be measured.
    """
    index, answered, label = ledger.released()
    if not len(index) or (truth < 0).all():
        return None
    counted = answered & (truth[index] >= 0)
    accuracy = _of_labels(label[counted], truth[index[counted]])
    known, bits, _ = _known(ledger, totals)
    top: dict[str, tuple[int, ...]] = {}
    if known:
        votes = np.concatenate([batch.value for batch in known])
        top = count_top_votes(votes, bits, num_teachers=num_teachers)
    batches = [*totals.values(), *([] if evaluated is None else [evaluated])]
    if batches and exact:  # noisy totals tell neither
        votes = np.concatenate([batch.value for batch in batches])
        true = truth[np.concatenate([batch.index for batch in batches])]
        accuracy = _with_votes(accuracy, votes[true >= 0], true[true >= 0])
    confusion = count_confusion(
        truth[index[counted]], label[counted], num_classes=ledger.terms.mechanisms[0].num_classes
    )
    return accuracy, Evaluation(confusion=confusion, **top)


def _of_labels(label: Ints, truth: Ints) -> Accuracy:
    """That of released labels, both int64 (n,); unknown where there is none."""
    if not len(label):
        return Accuracy()
    return Accuracy(
        labels=float(np.mean(label == truth)), labels_n=len(label), labels_majority=_majority(truth)
    )


def _with_votes(accuracy: Accuracy, votes: Ints, truth: Ints) -> Accuracy:
    """The same with teachers' and ensemble's, of exact totals int64 (n, classes); private."""
    if not len(truth):
        return accuracy
    return replace(
        accuracy,
        teacher_mean=float(votes[np.arange(len(truth)), truth].sum() / votes.sum()),
        ensemble=float(np.mean(votes.argmax(axis=1) == truth)),
        votes_n=len(truth),
        votes_majority=_majority(truth),
    )


def _majority(truth: Ints) -> float:
    return float(np.bincount(truth).max() / len(truth))


def analysts_epsilon(
    mechanism: Mechanism, ledger: privacy.Ledger, totals: Mapping[str, Totals], rounds: QueryRounds
) -> float | None:
    """The data-dependent ε; it reveals something about the votes, so it is not for publication.

    None where nothing was asked, the mechanism is none of ours, or not all exact totals are known: the
    hospitals added the noise, a batch under masks is void, or an earlier process's totals are gone.
    """
    known, answered, complete = _known(ledger, totals)
    if not known or not complete or isinstance(mechanism, privacy.DistributedGNMax | OwnMechanism):
        return None
    checked = None
    if isinstance(mechanism, privacy.InteractiveGNMax):
        pairs = zip(ledger.entries(), known, strict=True)
        checked = np.concatenate([rounds.checked(entry, batch) for entry, batch in pairs])
    found = privacy.data_dependent_epsilon_do_not_publish(
        mechanism,
        np.concatenate([batch.value for batch in known]),
        answered,
        delta=ledger.terms.delta,
        checked=checked,
        protection=ledger.terms.protection,
    ).epsilon
    return min(found, ledger.epsilon())  # what the caps guarantee may be less


def publishable_epsilon(
    mechanism: Mechanism, ledger: privacy.Ledger, totals: Mapping[str, Totals], noise: privacy.NoiseSource
) -> SanitisedDraw | None:
    """The sanitised ε at a study's end: a noisy reading of labels and itself, no bound.

    Every call draws and spends again, so a study calls it once and keeps what came (`CoordinatorState`).
    None where the terms know none, or nothing was asked.

    Raises:
        InputError: totals of an earlier process are gone.
    """
    settings = ledger.terms.sanitise
    if settings is None or not ledger.entries():
        return None
    known, answered, complete = _known(ledger, totals)
    if not complete:
        raise InputError(
            "--sanitise: the exact totals of what was asked before the coordinator was started again are not "
            "all there (folder private of the run directory), so no sanitised ε can be drawn; the "
            "data-independent ε holds"
        )
    if not isinstance(mechanism, (privacy.ConfidentGNMax, privacy.GNMax)):
        raise InputError(f"{mechanism.name}: no data-dependent ε can be sanitised")
    drawn = privacy.sanitised_epsilon(
        mechanism,
        np.concatenate([batch.value for batch in known]),
        answered,
        settings=settings,
        delta=ledger.terms.delta,
        noise=noise,
        protection=ledger.terms.protection,
    )
    return SanitisedDraw(epsilon=drawn.epsilon, deviation_do_not_publish=drawn.deviation_do_not_publish)


def spending_curve(ledger: privacy.Ledger) -> Spending:
    """ε along the run, from the ledger's public counts: within a batch queries are released in order."""
    _, answered, _ = ledger.released()
    pieces: list[privacy.PrivacyEvent] = []
    step, start = max(1, len(answered) // _POINTS), 0
    for event in ledger.events():
        for first in range(start, start + event.asked, step):
            part = answered[first : min(first + step, start + event.asked)]
            pieces.append(replace(event, asked=len(part), answered=int(part.sum())))
        start += event.asked
    most = ledger.epsilon()
    epsilons = [
        min(epsilon, most)
        for epsilon in privacy.odometer(pieces, ledger.terms.delta, reserved=ledger.terms.reserved)
    ]
    return Spending(
        asked=tuple(accumulate(piece.asked for piece in pieces)),
        answered=tuple(accumulate(piece.answered for piece in pieces)),
        epsilon=tuple(epsilons),
    )

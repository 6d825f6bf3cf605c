"""Totals in, labels out: the budget is asked before, the ledger is on disk before a label is used.

This is the one place where votes become public. Nothing data-dependent decides whether it goes on: the filter
runs on what was asked and answered, both of which are released anyway.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError, PateFedError
from pate_fed.privacy import Ledger, LedgerTerms, NoiseSource, PrivacyEvent, Release
from pate_fed.privacy.ledger.rows import Entry, Provenance
from pate_fed.privacy.mechanisms.events import Mechanism
from pate_fed.protocol.cost import Mechanism as VoteMechanism
from pate_fed.protocol.cost import coordinator_view, make_interactive
from pate_fed.protocol.terms import Terms
from pate_fed.report.log import LOG_NAME, read_result
from pate_fed.report.result import ReleasedBatch
from server.state import Totals

Ints = NDArray[np.int64]

LEDGER_NAME = "ledger.sqlite"
_FEW = 50  # queries that are worth a batch of their own under hospitals' noise


def releases_told(run_dir: Path) -> tuple[ReleasedBatch, ...]:
    """Releases that a run's log tells of; it tells of none before it is on the ledger."""
    try:
        return read_result(run_dir).releases
    except PateFedError:  # no log, or one that cannot be read: the ledger is what counts
        return ()


def open_ledger(run_dir: Path, terms: LedgerTerms, *, key: Ed25519PrivateKey | None = None) -> Ledger:
    """The ledger of a run that goes on, else a new one.

    Raises:
        IntegrityError: it is gone, or older than the log: what was spent would be forgotten.
    """
    path, told = run_dir / LEDGER_NAME, sum(batch.asked for batch in releases_told(run_dir))
    if not path.exists():
        if told:
            raise IntegrityError(f"{path}: is gone, and {LOG_NAME} tells of {told} queries; put it back")
        return Ledger.create(path, terms, key=key)
    ledger = Ledger.open(path, terms=terms, key=key)
    asked = ledger.asked
    if asked < told:
        ledger.close()
        raise IntegrityError(
            f"{path}: holds {asked}, and {LOG_NAME} tells of {told} queries: an older copy was put back"
        )
    return ledger


def charge(ledger: Ledger, mechanism: Mechanism, *, batch_digest: str, index: Ints, label: Ints) -> Entry:
    """Charge one release of a mechanism, about `index` int64 (asked,); `label` alike, -1 where not answered.

    Raises:
        IntegrityError: the ledger cannot be written.
    """
    terms, answered = ledger.terms, label >= 0
    event = PrivacyEvent(
        mechanism=mechanism,
        asked=len(index),
        answered=int(answered.sum()),
        protection=terms.protection,
        noise=terms.noise,
        private=terms.private,
        coordinator=terms.coordinator,
    )
    return ledger.charge(event, batch_digest=batch_digest, index=index, answered=answered, label=label)


class LabelReleaser:
    """Releases batch after batch until labels, queries or budget are used up."""

    def __init__(self, terms: Terms, mechanism: VoteMechanism, *, noise: NoiseSource, ledger: Ledger) -> None:
        self._terms, self._mechanism, self._noise, self._ledger = terms, mechanism, noise, ledger
        self._against = make_interactive(terms)

    @property
    def ledger(self) -> Ledger:
        """Where every release is charged before it is used."""
        return self._ledger

    @property
    def asked(self) -> int:
        """Queries looked at so far."""
        return self._ledger.asked

    @property
    def answered(self) -> int:
        """Labels released so far."""
        return self._ledger.answered

    @property
    def labels_left(self) -> int:
        """Labels that may still be released."""
        return self._terms.labels - self.answered

    def room(self, queries: int) -> int:
        """How many of the next `queries` may be asked; 0 ends the study's questions."""
        if self.labels_left <= 0:
            return 0
        queries = min(queries, self._terms.max_queries - self.asked)
        if self._terms.adds_noise:
            # What is asked is paid in full, so little more than the labels left is asked at once.
            few = 0 if self._terms.aggregation.aggregator == "gnmax" else _FEW
            queries = min(queries, max(self.labels_left, few))
        terms = self._ledger.terms
        budget = terms.budget
        if budget is None or queries <= 0 or terms.caps_keep_budget:
            return max(0, queries)
        return budget.affordable(
            self._mechanism, charged=self._ledger.charged, queries=queries, max_answers=self.labels_left
        )

    def release(
        self,
        batch_digest: str,
        totals: Totals,
        *,
        provenance: Provenance | None = None,
        predictions: NDArray[np.float32] | None = None,
    ) -> Release:
        """Label one batch; the ledger's row and the labels are on disk when this returns.

        At most `room` queries are meant. `provenance` names the student that had a part in the batch;
        `predictions`, float32 (queries, classes), are its probabilities where it is the reference.

        Raises:
            BudgetError: the batch would pass the budget; nothing is released.
            IntegrityError: the ledger cannot be written, this batch was released before, or a mechanism that
                is none of ours fails; the batch is charged then, as that it failed may tell of votes.
        """
        draw = self._mechanism.release
        if predictions is not None and self._against is not None:
            draw = partial(self._against.release, predictions=predictions)
        try:
            release = draw(
                totals.value,
                self._noise,
                max_answers=self.labels_left,
                protection=self._ledger.terms.protection,
                coordinator=coordinator_view(self._terms, totals.voters),
            )
        except IntegrityError:
            self.void(batch_digest, totals.index)
            raise
        # The labels exist in this process alone until the row is on the disk; if that fails, nowhere.
        self._ledger.charge(
            release.event,
            batch_digest=batch_digest,
            index=totals.index[: release.asked],
            answered=release.answered,
            label=release.label,
            provenance=provenance,
        )
        return release

    def void(self, batch_digest: str, index: NDArray[np.int64]) -> None:
        """Charge a batch that was asked and gave nothing; it is never asked again.

        It counts as asked and not answered, with the fewest parties that a batch may have: votes may be on
        their way, and what becomes of them is not in this program's hands any more.

        Raises:
            IntegrityError: the ledger cannot be written.
        """
        nothing = np.full(len(index), -1, dtype=np.int64)
        charge(self._ledger, self._mechanism, batch_digest=batch_digest, index=index, label=nothing)

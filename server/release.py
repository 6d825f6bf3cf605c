"""A release on its ledger: the row is on the disk before anyone uses or sees what was released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError, PateFedError
from pate_fed.format import epsilon_text
from pate_fed.privacy import Ledger, LedgerTerms, PrivacyEvent
from pate_fed.privacy.ledger.rows import Entry, Provenance
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.privacy.mechanisms.events import Mechanism
from pate_fed.report.log import LOG_NAME, RunLog, read_result
from pate_fed.report.result import ReleasedBatch
from pate_fed.report.terminal import Progress

Ints = NDArray[np.int64]

LEDGER_NAME = "ledger.sqlite"


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


class ReleaseFailedError(IntegrityError):
    """A mechanism that is none of ours failed on totals. It is charged, as failing may tell of answers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """One release as it is charged, in this process alone until then.

    Shapes: `index` int64 (asked,) places in the public pool, `label` int64 (asked,), -1 where none is
    released. `provenance` names the student that had a part in the question.
    """

    event: PrivacyEvent
    index: Ints
    label: Ints
    provenance: Provenance | None = None

    @classmethod
    def of(cls, terms: LedgerTerms, mechanism: Mechanism, index: Ints, label: Ints) -> Release:
        """A release of a mechanism with the fewest hospitals that the ledger's terms allow."""
        event = PrivacyEvent(
            mechanism=mechanism,
            asked=len(index),
            answered=int((label >= 0).sum()),
            protection=terms.protection,
            noise=terms.noise,
            private=terms.private,
            coordinator=terms.coordinator,
        )
        return cls(event=event, index=index, label=label)


def charge(ledger: Ledger, release: Release, *, batch_digest: str) -> Entry:
    """Charge a release: on return its row and its labels are on the disk.

    Raises:
        BudgetError: it would pass the budget; nothing is released.
        IntegrityError: the ledger cannot be written, or the batch was released before.
    """
    return ledger.charge(
        release.event,
        batch_digest=batch_digest,
        index=release.index,
        answered=release.label >= 0,
        label=release.label,
        provenance=release.provenance,
    )


class Charges:
    """Charges a run's releases, and tells each in its log once; also those of a process that died before."""

    def __init__(self, ledger: Ledger, log: RunLog, progress: Progress, run_dir: Path) -> None:
        self._ledger, self._log, self._progress = ledger, log, progress
        told = len(releases_told(run_dir))
        for number, entry in enumerate(ledger.entries()[told:], told):
            self._tell(entry, number)

    def charge(
        self,
        release: Release,
        *,
        batch: int,
        batch_digest: str,
        charged: Callable[[], None] = lambda: None,
    ) -> None:
        """Charge a release, as `charge` does, do what follows once it is `charged`, and only then tell it."""
        entry = charge(self._ledger, release, batch_digest=batch_digest)
        charged()
        self._tell(entry, batch)
        self.show_epsilon()

    def _tell(self, entry: Entry, batch: int) -> None:
        event = entry.event
        self._log.write(
            ReleasedBatch(batch=batch, asked=event.asked, answered=event.answered, epsilon=entry.epsilon)
        )

    def show_epsilon(self) -> None:
        """Show what is spent so far beside what never is passed."""
        most = guaranteed_epsilon(self._ledger.terms)
        self._progress.status(f"ε {epsilon_text(self._ledger.epsilon())} of {epsilon_text(most)}")

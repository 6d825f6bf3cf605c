"""A release on its ledger: the row is on the disk before anyone uses or sees what was released."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError
from pate_fed.privacy import Ledger, LedgerTerms, PrivacyEvent
from pate_fed.privacy.ledger.rows import Entry, Provenance
from pate_fed.privacy.mechanisms.events import Mechanism
from pate_fed.runtime.run_dir import LEDGER_NAME, LOG_NAME

Ints = NDArray[np.int64]


def releases_told(run_dir: Path) -> tuple[int, ...]:
    """How many queries each release looked at that a run's log tells of, none before it is on the ledger.

    A line that was cut or damaged tells of nothing; the others count.

    Raises:
        IntegrityError: the log is there and cannot be read.
    """
    log, told = run_dir / LOG_NAME, list[int]()
    try:
        lines = log.read_bytes().splitlines() if log.exists() else []
    except OSError as error:
        raise IntegrityError(
            f"{log}: cannot be read ({error.strerror}); it tells what was released"
        ) from error
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if (
            isinstance(event, dict)
            and event.get("event") == "release"
            and isinstance(event.get("asked"), int)
        ):
            told.append(event["asked"])
    return tuple(told)


def open_ledger(run_dir: Path, terms: LedgerTerms, *, key: Ed25519PrivateKey | None = None) -> Ledger:
    """The ledger of a run that goes on, else a new one.

    Raises:
        IntegrityError: it is gone, or older than the log: what was spent would be forgotten.
    """
    path, told = run_dir / LEDGER_NAME, sum(releases_told(run_dir))
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

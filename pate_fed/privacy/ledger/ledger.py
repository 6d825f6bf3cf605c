"""The privacy ledger: what was released and what it cost, on the disk before anyone uses it.

Only public things enter: parameters, counts, released labels. Nothing that depends on the votes otherwise.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import VERSION
from pate_fed.privacy.bounds.cost import Cost
from pate_fed.privacy.ledger.chain import Chain, Outputs, read_chain
from pate_fed.privacy.ledger.report import LedgerReport, Named, verify
from pate_fed.privacy.ledger.rows import (
    Entry,
    Provenance,
    Row,
    WriterLock,
    charge_row,
    connect,
    create_file,
    disconnect,
    entry_from_row,
    insert_row,
    outputs_digest,
    row_hash,
    signed_bytes,
    terms_row,
)
from pate_fed.privacy.ledger.terms import (
    LedgerTerms,
    guaranteed_coordinator_epsilon,
    guaranteed_epsilon,
    is_digest,
)
from pate_fed.privacy.mechanisms.events import PrivacyEvent
from pate_fed.privacy.mechanisms.noisy_max import frozen

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class Ledger:
    """An append-only record of privacy spent, in SQLite; one process writes it, anyone may read it.

    When `charge` returns, the row and its labels are on the disk: neither a killed process nor a power cut
    loses them. A ledger that fails a check raises IntegrityError and charges nothing.
    """

    def __init__(self, path: Path, *, key: Ed25519PrivateKey | None = None) -> None:
        """Take the lock, check the whole chain, and go on where it ends; use `create` or `open`."""
        self._path = Path(path)
        self._key = key
        self._guard = threading.RLock()
        self._pid = os.getpid()
        self._failed = self._closed = False
        with ExitStack() as failing:
            self._lock = WriterLock(self._path)
            failing.callback(self._lock.release)
            self._connection = connect(self._path)
            failing.callback(disconnect, self._connection)
            self._resume(read_chain(self._connection, self._path))
            failing.pop_all()

    @classmethod
    def create(cls, path: Path, terms: LedgerTerms, *, key: Ed25519PrivateKey | None = None) -> Ledger:
        """A new ledger whose first row is the terms; with a key every row is signed.

        Raises:
            InputError: `path` exists or cannot be written.
        """
        public = None if key is None else key.public_key().public_bytes_raw().hex()
        row = terms_row(terms, time=_now(), version=VERSION, public_key=public)
        create_file(Path(path), _sealed(row, key))
        return cls(path, key=key)

    @classmethod
    def open(
        cls, path: Path, *, terms: LedgerTerms | None = None, key: Ed25519PrivateKey | None = None
    ) -> Ledger:
        """The ledger at `path`, to go on after a stop or a crash; nothing that was charged is forgotten.

        Raises:
            InputError: there is none, or its key is missing.
            IntegrityError: it is not as it was written, has other terms than `terms`, or another process
                writes it.
        """
        ledger = cls(path, key=key)
        if terms is not None and ledger.terms != terms:
            ledger.close()
            raise IntegrityError(f"{path}: this ledger was begun under other terms")
        return ledger

    @staticmethod
    def read(
        path: Path | str,
        *,
        public_key: str | None = None,
        head: str | None = None,
        aggregators: Named = (),
    ) -> LedgerReport:
        """What the ledger at `path`, or in that run directory, holds, after every check; it takes no lock.

        `public_key` must have signed every row, `head` must be the hash of one, `aggregators` are mechanisms
        of your own whose code may be loaded; see `verify`.

        Raises:
            InputError: there is none.
            IntegrityError: it is not as it was written.
        """
        given = Path(path)
        found = given / "ledger.sqlite" if given.is_dir() else given
        return verify(found, public_key=public_key, head=head, aggregators=aggregators)

    def _resume(self, chain: Chain) -> None:
        if chain.public_key is not None:
            if self._key is None:
                raise InputError(f"{self._path}: this ledger is signed; give the coordinator's key")
            if self._key.public_key().public_bytes_raw().hex() != chain.public_key:
                raise InputError(f"{self._path}: this ledger is signed with another key")
        elif self._key is not None:
            raise InputError(
                f"{self._path}: this ledger was begun without a key and cannot be signed halfway"
            )
        self._chain = chain

    def charge(
        self,
        event: PrivacyEvent,
        *,
        batch_digest: str,
        index: ArrayLike,
        answered: ArrayLike,
        label: ArrayLike,
        provenance: Provenance | None = None,
    ) -> Entry:
        """Write what a release cost together with its labels, in one transaction, before they are used.

        `provenance` names the student that had a part in the batch, where one had.

        Shapes: `index` int (asked,), the queries' places in the public pool; `answered` bool (asked,);
        `label` int (asked,), -1 where not answered.

        Raises:
            InputError: arrays that do not go with the event.
            BudgetError: the budget would be passed.
            IntegrityError: a batch that was charged before, an event that the terms do not allow, a student
                of anything but this ledger's rows, or a ledger that cannot be written. In every case nothing
                was charged and nothing may be released.
        """
        outputs = _check_outputs(event, index, answered, label)
        if not is_digest(batch_digest):
            raise InputError(f"batch_digest={batch_digest!r}: must be a SHA-256 digest in lower-case hex")
        # Held from the first check to the commit: two threads must not both find room for the last release.
        with self._guard:
            self._require_writable()
            cost, epsilon = self._chain.price(
                event, batch_digest=batch_digest, index=outputs.index, provenance=provenance
            )
            draft = Entry(
                seq=len(self._chain.entries) + 1,
                time=_now(),
                event=event,
                batch_digest=batch_digest,
                outputs_digest=outputs_digest(outputs.index, outputs.answered, outputs.label),
                version=VERSION,
                epsilon=epsilon,
                previous=self._chain.head,
                provenance=provenance,
            )
            sealed = _sealed(charge_row(draft), self._key)
            # The row, the labels and the new head are on the disk before anything in memory moves on.
            self._write(sealed, outputs)
            entry = entry_from_row(sealed)
            self._chain.append(entry, outputs, cost=cost, epsilon=epsilon)
            return entry

    def _write(self, row: Row, outputs: Outputs) -> None:
        columns = (outputs.index, outputs.answered.astype(np.int64), outputs.label)
        table = zip(*(column.tolist() for column in columns), strict=True)
        seq = row["seq"]
        # Until the transaction is known to be whole, nothing else may be charged on this object.
        self._failed = True
        try:
            # the lock first: nobody else writes between row and head
            self._connection.execute("BEGIN IMMEDIATE")
            insert_row(self._connection, row)
            self._connection.executemany(
                "INSERT INTO released VALUES (?, ?, ?, ?, ?)",
                ((seq, position, *values) for position, values in enumerate(table)),
            )
            self._connection.execute("UPDATE head SET seq = ?, hash = ? WHERE id = 1", (seq, row["hash"]))
            self._connection.execute("COMMIT")
            # The log is durable already; this keeps the main file whole for whoever copies it alone.
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise IntegrityError(f"{self._path}: the ledger could not be written ({error})") from error
        self._failed = False

    def _require_writable(self) -> None:
        if os.getpid() != self._pid:
            raise IntegrityError(f"{self._path}: a forked process may not write its parent's ledger")
        if self._closed:
            raise InputError(f"{self._path}: the ledger was closed")
        if self._failed:
            raise IntegrityError(f"{self._path}: a write failed before; open the ledger again")

    def entries(self) -> tuple[Entry, ...]:
        """All charges, oldest first."""
        with self._guard:
            return tuple(self._chain.entries)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """All charged events, oldest first."""
        return tuple(entry.event for entry in self.entries())

    def released(self) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """Everything that was released, in order: index, answered and label, each of shape (asked,)."""
        with self._guard:
            return self._chain.released()

    @property
    def asked(self) -> int:
        """Queries put to the teachers so far."""
        return self._chain.asked

    @property
    def answered(self) -> int:
        """Queries that were answered so far."""
        return self._chain.answered

    @property
    def charged(self) -> Cost:
        """What all releases add up to, with what the terms reserve: exact, kept from row to row.

        What `BudgetFilter.affordable` wants in place of all events.
        """
        return self._chain.cost

    def epsilon(self) -> float:
        """ε spent so far against the student and the public at the terms' δ, rounded up.

        A reading, as what was answered depends on the votes; `guaranteed` is the bound fixed beforehand.
        """
        with self._guard:
            return self._chain.epsilon

    def guaranteed(self) -> float | None:
        """ε against the student and the public that the terms fixed; 0 while nothing was released."""
        with self._guard:
            return guaranteed_epsilon(self.terms) if self._chain.entries else 0.0

    def guaranteed_coordinator(self) -> float | None:
        """ε against the coordinator that the terms fixed; None where no bound holds.

        Not 0 before the first row: a coordinator that is killed between the totals and their row has seen
        them. Hospitals answer no more queries than the terms say, whatever the ledger holds.
        """
        return guaranteed_coordinator_epsilon(self.terms)

    @property
    def terms(self) -> LedgerTerms:
        """What was fixed before the first vote."""
        return self._chain.terms

    @property
    def head(self) -> str:
        """Hash of the last row: kept elsewhere, it shows an auditor a ledger that was cut or put back."""
        return self._chain.head

    def close(self) -> None:
        """Write the log into the main file and give the lock back; may be called twice."""
        with self._guard:
            # A forked child shares both with its parent, who goes on with them.
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            disconnect(self._connection)
            self._lock.release()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _sealed(row: Row, key: Ed25519PrivateKey | None) -> Row:
    digest = row_hash(row)
    signature = None if key is None else key.sign(signed_bytes(digest)).hex()
    return {**row, "hash": digest, "signature": signature}


def _check_outputs(event: PrivacyEvent, index: ArrayLike, answered: ArrayLike, label: ArrayLike) -> Outputs:
    if event.asked < 1:
        raise InputError("a release of no query is not charged")
    outputs = Outputs(
        index=frozen(_column("index", index, event.asked, "iu").astype(np.int64)),
        answered=frozen(_column("answered", answered, event.asked, "b").astype(np.bool_)),
        label=frozen(_column("label", label, event.asked, "iu").astype(np.int64)),
    )
    if int(outputs.answered.sum()) != event.answered:
        raise InputError(
            f"answered marks {int(outputs.answered.sum())} queries; the event has {event.answered}"
        )
    if (outputs.index < 0).any():
        raise InputError("index holds a negative place in the public pool")
    known = (outputs.label >= 0) & (outputs.label < event.mechanism.num_classes)
    if not np.where(outputs.answered, known, outputs.label == -1).all():
        raise InputError("label must be a class where a query was answered, and -1 elsewhere")
    return outputs


def _column(name: str, values: ArrayLike, length: int, kinds: str) -> NDArray[Any]:
    column = np.asarray(values)
    if column.shape != (length,) or column.dtype.kind not in kinds:
        wanted = "truth values" if kinds == "b" else "whole numbers"
        raise InputError(f"{name} is {column.dtype} {column.shape}: {wanted} of shape ({length},) are meant")
    return column

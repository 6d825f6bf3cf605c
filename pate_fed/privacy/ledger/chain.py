"""Chain of a ledger's rows: what they add up to, and the rules that every further row keeps to.

The writer and the auditor apply the same rules: one before a row is written, the other to each row again,
from the rows alone. What is noticed: a row that was changed, removed, put in, moved or repeated, also at the
end (the head's record names the last one), released labels that differ from the row's digest and counts, a
charge that the terms do not allow, and a budget that was passed. What is not: somebody who may write the file
and knows this program can compute a whole new chain, unless the rows are signed and the reader knows the
public key (`public_key`); and an older copy of the file put back in its place, signed or not, is a true
ledger of an earlier hour, unless the reader knows the last hash from elsewhere, such as the run's report
(`head`).
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import BudgetError, InputError, IntegrityError
from pate_fed.format import epsilon_text
from pate_fed.privacy.bounds.cost import Cost, epsilon_of
from pate_fed.privacy.ledger.rows import (
    COLUMNS,
    FIRST_PREVIOUS,
    SCHEMA,
    Entry,
    Provenance,
    Row,
    entry_from_row,
    outputs_digest,
    require_kinds,
    row_hash,
    signed_bytes,
    unreadable,
)
from pate_fed.privacy.ledger.terms import LedgerTerms, guaranteed_epsilon
from pate_fed.privacy.mechanisms.events import PrivacyEvent

Ints = NDArray[np.int64]

# A recorded ε may differ from ours by the last digits of another platform's logarithm.
SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Released outputs of one batch, in order.

    Shapes: `index` int64 (asked,), the queries' places in the public pool; `answered` bool (asked,); `label`
    int64 (asked,), -1 where not answered.
    """

    index: Ints
    answered: NDArray[np.bool_]
    label: Ints


@dataclass(slots=True, kw_only=True)
class Chain:
    """Rows that passed every check, and their totals.

    `cost` and `epsilon` are what the student and the public learn, at the terms' δ; `head` is the last row's
    hash, `created` and `version` are the first row's.
    """

    terms: LedgerTerms
    public_key: str | None
    created: str
    version: str
    head: str
    entries: list[Entry] = field(default_factory=list)
    outputs: list[Outputs] = field(default_factory=list)
    asked: int = 0
    answered: int = 0
    cost: Cost = field(init=False)
    epsilon: float = field(init=False)
    _batches: set[str] = field(default_factory=set)
    _hashes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.cost = self.terms.reserved
        self.epsilon = epsilon_of(self.cost, self.terms.delta)

    def price(
        self, event: PrivacyEvent, *, batch_digest: str, index: Ints, provenance: Provenance | None
    ) -> tuple[Cost, float]:
        """Total cost and ε with one more release; nothing changes here.

        Raises:
            BudgetError: the budget would be passed.
            IntegrityError: an event or a total that the terms do not allow, a batch or a record's label that
                was charged before, or a student of anything but earlier rows.
        """
        self.terms.refuse(event)
        if provenance is not None:
            provenance.require_past(self._hashes)
        if batch_digest in self._batches:
            raise IntegrityError(
                f"the batch {batch_digest[:12]}… was charged before; it is never released again"
            )
        self.terms.refuse_out_of_turn((entry.event for entry in self.entries), event)
        self.terms.refuse_beyond_caps(asked=self.asked + event.asked, answered=self.answered + event.answered)
        self.terms.refuse_again([*(part.index for part in self.outputs), index])
        cost, budget = self.terms.plus(self.cost, event), self.terms.budget
        if budget is not None and not self.terms.caps_keep_budget:
            budget.require(cost)
        orders = () if budget is None else (budget.order,)
        # What holds for every course of the study holds for this one.
        guaranteed = guaranteed_epsilon(self.terms) or math.inf
        found = min(epsilon_of(cost, self.terms.delta, orders=orders), guaranteed)
        # Each search may end a hair beside the best order, which must not look like a refund.
        return cost, max(self.epsilon, found)

    def released(self) -> tuple[Ints, NDArray[np.bool_], Ints]:
        """Everything that was released, in order: index, answered and label, each of shape (asked,)."""
        empty = np.zeros(0, dtype=np.int64)
        return (
            np.concatenate([empty, *(part.index for part in self.outputs)]),
            np.concatenate([empty.astype(np.bool_), *(part.answered for part in self.outputs)]),
            np.concatenate([empty, *(part.label for part in self.outputs)]),
        )

    def append(self, entry: Entry, outputs: Outputs, *, cost: Cost, epsilon: float) -> None:
        """Take a row in, at what `price` found."""
        self.entries.append(entry)
        self.outputs.append(outputs)
        self._batches.add(entry.batch_digest)
        self._hashes.add(entry.hash)
        self.asked += entry.event.asked
        self.answered += entry.event.answered
        self.cost, self.epsilon, self.head = cost, epsilon, entry.hash


def coordinator_epsilon(terms: LedgerTerms, events: Iterable[PrivacyEvent]) -> float | None:
    """ε against the coordinator at the terms' δ, rounded up; None where it sees votes or exact totals."""
    if terms.coordinator.sees_release:
        return epsilon_of(reduce(terms.plus, events, terms.reserved), terms.delta)
    if terms.coordinator.variance is None:
        return None
    costs = [event.coordinator_cost() for event in events]
    known = [cost for cost in costs if cost is not None]
    return epsilon_of(sum(known, Cost()), terms.delta) if len(known) == len(costs) else None


def read_chain(
    connection: sqlite3.Connection, path: Path, *, public_key: str | None = None, head: str | None = None
) -> Chain:
    """Check a ledger, row by row.

    `public_key` (Ed25519, 64 hex digits) is the key that must have signed every row, `head` the hash of a row
    that must be in the chain; both come from elsewhere.

    Raises:
        IntegrityError: the ledger is not as it was written; the message names the first row that is not.
    """
    try:
        connection.execute("BEGIN")
        try:
            rows, last = _load(connection)
            return _check(connection, rows, last, public_key=public_key, head=head)
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")
    except (sqlite3.Error, UnicodeError) as error:
        # UnicodeError: SQLite's own message may quote the damaged bytes.
        raise unreadable(path, error) from error
    except IntegrityError as error:
        raise IntegrityError(f"{path}: {error}") from error


def _load(connection: sqlite3.Connection) -> tuple[list[Row], tuple[Any, ...]]:
    state = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if state != "ok":
        raise IntegrityError(f"the ledger is damaged ({state})")
    made = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    if {sql for (sql,) in made} != set(SCHEMA):
        raise IntegrityError("the tables or the triggers that make them append-only were changed")
    found = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM entries ORDER BY seq")
    rows = [dict(zip(COLUMNS, values, strict=True)) for values in found]
    heads = connection.execute("SELECT id, seq, hash FROM head").fetchall()
    if len(heads) != 1:
        raise IntegrityError("the head's record is missing")
    return rows, heads[0][1:]


def _check(
    connection: sqlite3.Connection,
    rows: list[Row],
    last: tuple[Any, ...],
    *,
    public_key: str | None,
    head: str | None,
) -> Chain:
    _check_links(rows, last)
    if head is not None and head not in {row["hash"] for row in rows}:
        raise IntegrityError(f"no row has the hash {head}: rows were removed, or this is another ledger")
    terms, signer = _first(rows[0])
    if public_key is not None and signer != public_key:
        raise IntegrityError(f"row 0 was not signed by the key {public_key}")
    _check_signatures(rows, signer)
    foreign = "SELECT 1 FROM released WHERE typeof(seq) != 'integer' OR seq NOT BETWEEN 1 AND ? LIMIT 1"
    if connection.execute(foreign, (len(rows) - 1,)).fetchone() is not None:
        raise IntegrityError("labels were released that belong to no row")
    first = rows[0]
    chain = Chain(
        terms=terms, public_key=signer, created=first["time"], version=first["version"], head=first["hash"]
    )
    # One row's labels at a time: a ledger of millions takes no more memory than what it releases.
    of_row = "SELECT position, query, answered, label FROM released WHERE seq = ? ORDER BY position"
    for row in rows[1:]:
        _replay(chain, row, connection.execute(of_row, (row["seq"],)).fetchall())
    return chain


def _check_links(rows: list[Row], last: tuple[Any, ...]) -> None:
    """Every row in its place, as it was written, after the one before it, and none missing at the end."""
    previous = FIRST_PREVIOUS
    for place, row in enumerate(rows):
        if row["seq"] != place:
            raise IntegrityError(f"row {place} was removed")
        if row_hash(row) != row["hash"]:
            raise IntegrityError(f"row {place} {_what_happened(rows, place)}")
        if row["previous"] != previous:
            raise IntegrityError(f"row {max(place - 1, 0)} was changed: row {place} continues another one")
        previous = row["hash"]
    if not rows or last[0] != len(rows) - 1:
        raise IntegrityError(
            f"row {len(rows)} was removed: the head's record names row {last[0]} as the last"
        )
    if last[1] != previous:
        raise IntegrityError(f"row {last[0]} was changed: the head's record has another hash")


def _what_happened(rows: list[Row], place: int) -> str:
    """As text: whether the content at `place` was written as another row, or is new."""
    row = rows[place]
    for other in range(len(rows) + 1):
        if other != place and row_hash({**row, "seq": other}) == row["hash"]:
            if other < place:
                return f"repeats row {other}, or was reordered"
            return f"was written as row {other}: rows were reordered, or one before it was removed"
    return "was changed"


def _first(row: Row) -> tuple[LedgerTerms, str | None]:
    try:
        body = json.loads(row["body"])
        if row["kind"] != "terms":
            raise ValueError("not the terms")
        require_kinds(row, texts=("time", "version", "body"))
        return LedgerTerms.from_dict(body["terms"]), body["public_key"]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise IntegrityError("row 0 does not hold a study's terms") from error


def _check_signatures(rows: Sequence[Row], public_key: str | None) -> None:
    """Every row signed by the key that row 0 names, and none where it names no key."""
    if public_key is None:
        for row in rows:
            if row["signature"] is not None:
                raise IntegrityError(f"row {row['seq']} has a signature, and row 0 names no key")
        return
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
    except (TypeError, ValueError) as error:
        raise IntegrityError("row 0 names a public key that is none") from error
    for row in rows:
        try:
            signature = bytes.fromhex(row["signature"])
            key.verify(signature, signed_bytes(row["hash"]))
            if signature.hex() != row["signature"]:  # no hash covers it, and spaces are read over
                raise ValueError("spelled otherwise than it was written")
        except (InvalidSignature, TypeError, ValueError) as error:
            raise IntegrityError(f"row {row['seq']} is not signed by the ledger's key") from error


def _replay(chain: Chain, row: Row, values: list[tuple[Any, ...]]) -> None:
    """Charge one row again, from the rows alone."""
    place = row["seq"]
    try:
        entry = entry_from_row(row)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, InputError) as error:
        raise IntegrityError(f"row {place} holds no charge") from error
    outputs = _outputs(entry, values)
    try:
        cost, epsilon = chain.price(
            entry.event,
            batch_digest=entry.batch_digest,
            index=outputs.index,
            provenance=entry.provenance,
        )
    except BudgetError as error:
        raise IntegrityError(
            f"row {place} passes the budget ε={epsilon_text(chain.terms.epsilon)}"
        ) from error
    except (InputError, IntegrityError) as error:
        raise IntegrityError(f"row {place}: {error}") from error
    if not entry.epsilon >= epsilon * (1 - SLACK):
        raise IntegrityError(f"row {place} states ε={entry.epsilon!r}; its entries give {epsilon!r}")
    chain.append(entry, outputs, cost=cost, epsilon=epsilon)


def _outputs(entry: Entry, values: list[tuple[Any, ...]]) -> Outputs:
    """The released outputs of one row, checked against its digest and counts."""
    place, event = entry.seq, entry.event
    # The tables are not STRICT, so a column of whole numbers can hold 0.9, which NumPy would cut to 0.
    if any(type(value) is not int for output in values for value in output):
        raise IntegrityError(f"labels of row {place} are no whole numbers")
    places = [position for position, *_ in values]
    if len(places) != event.asked or places != list(range(event.asked)):
        raise IntegrityError(f"row {place} released {event.asked} queries; {len(values)} are there")
    index, answered, label = np.array([rest for _, *rest in values], dtype=np.int64).reshape(-1, 3).T
    if outputs_digest(index, answered, label) != entry.outputs_digest:
        raise IntegrityError(f"row {place}: the released labels were changed")
    if not np.isin(answered, (0, 1)).all() or int(answered.sum()) != event.answered:
        raise IntegrityError(f"row {place} charges {event.answered} answers; {int(answered.sum())} are there")
    low, high = np.where(answered, 0, -1), np.where(answered, event.mechanism.num_classes - 1, -1)
    if ((label < low) | (label > high)).any():
        raise IntegrityError(f"row {place} released a label that is no class")
    return Outputs(index=index.copy(), answered=answered.astype(np.bool_), label=label.copy())

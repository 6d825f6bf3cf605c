"""Rows of a ledger: what they hold, their one canonical form, and the hash chain over it.

A row's hash covers every column but the hash and the signature, the previous row's hash among them, so that
no row can be changed, removed, put in or moved without a break in the chain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError
from pate_fed.privacy.checks import check_count
from pate_fed.privacy.ledger.terms import LedgerTerms, is_digest
from pate_fed.privacy.mechanisms.events import CoordinatorView, PrivacyEvent
from pate_fed.privacy.mechanisms.registry import mechanism_from_parameters
from pate_fed.privacy.protection import Protection

Row = dict[str, Any]

COLUMNS = (
    "seq",
    "time",
    "kind",
    "mechanism",
    "parameters",
    "protection",
    "coordinator",
    "asked",
    "answered",
    "batch_digest",
    "outputs_digest",
    "noise",
    "private",
    "version",
    "epsilon",
    "body",
    "previous",
    "hash",
    "signature",
)
FIRST_PREVIOUS = "0" * 64

# Columns that an entry holds as they are.
_PLAIN = (
    "seq",
    "time",
    "batch_digest",
    "outputs_digest",
    "version",
    "epsilon",
    "previous",
    "hash",
    "signature",
)

# Columns of a charge that hold text; the body may hold none.
_TEXTS = (
    "time",
    "mechanism",
    "parameters",
    "protection",
    "coordinator",
    "batch_digest",
    "outputs_digest",
    "noise",
    "version",
)


def _canonical(value: object) -> str:
    """JSON with sorted keys and no spaces, ASCII only: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Provenance of a batch of queries: the round, the strategy, and the student that chose them.

    The student learnt from earlier rows of the same ledger, so from past outputs alone, and its probabilities
    are public: whoever has the file that their digest names can repeat the choice.
    `learnt_to` is the hash of the last row whose labels the student had learnt from, `predictions` the
    SHA-256 of what it said of the public pool.

    Raises:
        InputError: a round below 2, or digests that are none.
    """

    round: int
    strategy: str
    learnt_to: str
    predictions: str

    def __post_init__(self) -> None:
        check_count("round", self.round, least=2)
        for name in ("learnt_to", "predictions"):
            if not is_digest(value := getattr(self, name)):
                raise InputError(f"{name}={value!r}: must be a SHA-256 digest in lower-case hex")
        if not isinstance(self.strategy, str) or not self.strategy:
            raise InputError(f"strategy={self.strategy!r}: must be a name")

    def require_past(self, hashes: Collection[str]) -> None:
        """Refuse a student of anything but earlier charges, whose hashes these are.

        Raises:
            IntegrityError: it learnt from something else.
        """
        if self.learnt_to not in hashes:
            raise IntegrityError("a batch was chosen by a student that learnt from no earlier row")


def digest_of(*arrays: NDArray[np.float32]) -> str:
    """SHA-256 hex over arrays of predictions, shapes included."""
    state = hashlib.sha256(b"pate_fed/v1 predictions")
    for array in arrays:
        state.update(repr(array.shape).encode())
        state.update(np.ascontiguousarray(array, dtype="<f4").tobytes())
    return state.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One charge as it stands in the ledger; `epsilon` is the student's ε at the terms' δ after it.

    `provenance` is None where nothing that was learnt had a part in the batch.
    """

    seq: int
    time: str
    event: PrivacyEvent
    batch_digest: str
    outputs_digest: str
    version: str
    epsilon: float
    previous: str
    hash: str = ""
    signature: str | None = None
    provenance: Provenance | None = None


def outputs_digest(index: NDArray[Any], answered: NDArray[Any], label: NDArray[Any]) -> str:
    """SHA-256 hex over the released outputs of one batch, in order; all of shape (asked,)."""
    state = hashlib.sha256(b"pate_fed/v1 outputs")
    for part in (index, answered, label):
        state.update(len(part).to_bytes(8, "big"))  # lengths, so that no two splits give the same bytes
        state.update(np.asarray(part).astype("<i8").tobytes())
    return state.hexdigest()


def row_hash(row: Row) -> str:
    """SHA-256 hex over the row's canonical form, all columns but the hash and the signature."""
    covered = {name: row[name] for name in COLUMNS if name not in ("hash", "signature")}
    # A damaged row may hold bytes where text was: spelled as no text is, their hash fits nothing.
    covered = {n: {"bytes": v.hex()} if isinstance(v, bytes) else v for n, v in covered.items()}
    return hashlib.sha256(b"pate_fed/v1 ledger row" + _canonical(covered).encode()).hexdigest()


def signed_bytes(digest: str) -> bytes:
    """Message that a row's signature is on."""
    return b"pate_fed/v1 ledger signature" + bytes.fromhex(digest)


def terms_row(terms: LedgerTerms, *, time: str, version: str, public_key: str | None) -> Row:
    """The first row, without hash and signature."""
    body = _canonical({"terms": terms.to_dict(), "public_key": public_key})
    filled = {"seq": 0, "time": time, "kind": "terms", "version": version, "body": body}
    return {**dict.fromkeys(COLUMNS), **filled, "previous": FIRST_PREVIOUS}


def charge_row(entry: Entry) -> Row:
    """The row of one charge; its hash and signature are what the entry says, none so far in a new one."""
    event, provenance = entry.event, entry.provenance
    return {
        **dict.fromkeys(COLUMNS),
        **{name: getattr(entry, name) for name in _PLAIN},
        "kind": "charge",
        "mechanism": event.mechanism.name,
        "parameters": _canonical(event.mechanism.parameters()),
        "protection": _canonical(asdict(event.protection)),
        "coordinator": _canonical(asdict(event.coordinator)),
        "asked": event.asked,
        "answered": event.answered,
        "noise": event.noise,
        "private": int(event.private),
        "body": None if provenance is None else _canonical({"basis": asdict(provenance)}),
    }


def require_kinds(row: Row, *, texts: Collection[str], whole: Collection[str] = ()) -> None:
    """Refuse a row that holds bytes or nothing for texts, or anything else for whole numbers.

    SQLite keeps any value in any column, and JSON is read from bytes as from text.

    Raises:
        TypeError: it does.
    """
    for kind, names in ((str, texts), (int, whole)):
        for name in names:
            if type(row[name]) is not kind:
                raise TypeError(f"{name} is no {kind.__name__}")


def entry_from_row(row: Row) -> Entry:
    """The charge in a row.

    Raises:
        KeyError, TypeError, ValueError: the row holds no charge that the program could have written.
    """
    if row["kind"] != "charge" or not is_digest(row["batch_digest"]) or row["private"] not in (0, 1):
        raise ValueError("not a charge")
    texts = _TEXTS if row["body"] is None else (*_TEXTS, "body")
    require_kinds(row, texts=texts, whole=("seq", "asked", "answered", "private"))
    if not isinstance(row["epsilon"], float):
        raise TypeError("an ε is a number")
    event = PrivacyEvent(
        mechanism=mechanism_from_parameters(row["mechanism"], json.loads(row["parameters"])),
        asked=row["asked"],
        answered=row["answered"],
        protection=Protection(**json.loads(row["protection"])),
        noise=row["noise"],
        private=bool(row["private"]),
        coordinator=CoordinatorView(**json.loads(row["coordinator"])),
    )
    provenance = None if row["body"] is None else Provenance(**json.loads(row["body"])["basis"])
    return Entry(event=event, provenance=provenance, **{name: row[name] for name in _PLAIN})

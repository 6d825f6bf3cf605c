"""Rows of a ledger, their one canonical form, the hash chain over it, and the SQLite file that holds them.

A row's hash covers every column but the hash and the signature, the previous row's hash among them, so that
no row can be changed, removed, put in or moved without a break in the chain.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import sync_folder, take_lock
from pate_fed.errors import InputError, IntegrityError, PateFedError, naming_refusal
from pate_fed.privacy.checks import check_count
from pate_fed.privacy.ledger.terms import LedgerTerms, is_digest, mechanism_from_parameters
from pate_fed.privacy.mechanisms.events import CoordinatorView, PrivacyEvent
from pate_fed.privacy.protection import Protection

Row = dict[str, Any]

COLUMNS = tuple(
    "seq time kind mechanism parameters protection coordinator asked answered batch_digest outputs_digest "
    "noise private version epsilon body previous hash signature".split()
)
FIRST_PREVIOUS = "0" * 64

# Columns that an entry holds as they are, and those of a charge that hold text; the body may hold none.
_PLAIN = "seq time batch_digest outputs_digest version epsilon previous hash signature".split()
_TEXTS = "time mechanism parameters protection coordinator batch_digest outputs_digest noise version".split()


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
        """Hold that the student learnt from earlier charges, whose hashes these are, or IntegrityError."""
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
        "protection": _canonical(event.protection.to_dict()),
        "coordinator": _canonical(asdict(event.coordinator)),
        "asked": event.asked,
        "answered": event.answered,
        "noise": event.noise,
        "private": int(event.private),
        "body": None if provenance is None else _canonical({"basis": asdict(provenance)}),
    }


def require_kinds(row: Row, *, texts: Collection[str], whole: Collection[str] = ()) -> None:
    """Refuse a row that holds bytes or nothing for texts, or anything else for whole numbers: TypeError.

    SQLite keeps any value in any column, and JSON is read from bytes as from text.
    """
    for kind, names in ((str, texts), (int, whole)):
        for name in names:
            if type(row[name]) is not kind:
                raise TypeError(f"{name} is no {kind.__name__}")


def entry_from_row(row: Row) -> Entry:
    """The charge in a row; KeyError, TypeError or ValueError where it is none that the program wrote."""
    if row["kind"] != "charge" or not is_digest(row["batch_digest"]) or row["private"] not in (0, 1):
        raise ValueError("not a charge")
    texts = _TEXTS if row["body"] is None else [*_TEXTS, "body"]
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


# The ledger's file: SQLite in WAL, an fsync at every commit, append-only tables, one writer at a time.


_APPLICATION_ID = 0x50415445
_FORMAT = 1

_ENTRIES = """CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, mechanism TEXT, parameters TEXT,
    protection TEXT, coordinator TEXT, asked INTEGER, answered INTEGER, batch_digest TEXT UNIQUE,
    outputs_digest TEXT, noise TEXT, private INTEGER, version TEXT NOT NULL, epsilon REAL, body TEXT,
    previous TEXT NOT NULL UNIQUE, hash TEXT NOT NULL UNIQUE, signature TEXT)"""
_RELEASED = """CREATE TABLE released (
    seq INTEGER NOT NULL REFERENCES entries (seq), position INTEGER NOT NULL, query INTEGER NOT NULL,
    answered INTEGER NOT NULL, label INTEGER NOT NULL, PRIMARY KEY (seq, position)) WITHOUT ROWID"""
_HEAD = """CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL)"""


def _refusal(table: str, verb: str, when: str = "") -> str:
    return (
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} {when}"
        f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    )


SCHEMA = (
    _ENTRIES,
    _RELEASED,
    _HEAD,
    *(_refusal(table, verb) for table in ("entries", "released") for verb in ("UPDATE", "DELETE")),
    _refusal("head", "DELETE"),
    _refusal("head", "UPDATE", "WHEN NEW.id IS NOT 1 OR NEW.seq IS NOT OLD.seq + 1 "),
)
"""Statements that make the tables; the head's row moves forward by one entry at a time."""


def create_file(path: Path, row: dict[str, object]) -> None:
    """Write a new ledger with its first row; either the whole of it is at `path` afterwards, or nothing.

    Raises:
        InputError: `path` exists, or cannot be written.
        IntegrityError: another process is at it.
    """
    lock, draft = WriterLock(path), path.with_name(f".{path.name}.new")
    try:
        # Whatever a killed process left of its draft; nobody else works on it while we hold the lock.
        for left in draft.parent.glob(f"{glob.escape(draft.name)}*"):
            left.unlink()
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        try:
            _fill(draft, row)
            os.link(draft, path)
        finally:
            draft.unlink()
        sync_folder(path.parent)
    except FileExistsError as error:
        raise InputError(f"{path}: already holds a ledger; a study never starts over on one") from error
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"{path}: the ledger cannot be written ({error})") from error
    finally:
        lock.release()


def _fill(path: Path, row: dict[str, object]) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
        for statement in SCHEMA:
            connection.execute(statement)
        insert_row(connection, row)
        connection.execute("INSERT INTO head VALUES (1, ?, ?)", (row["seq"], row["hash"]))
        connection.execute("COMMIT")


def insert_row(connection: sqlite3.Connection, row: dict[str, object]) -> None:
    """Append one row to the entries."""
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO entries ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def connect(path: Path) -> sqlite3.Connection:
    """The writer's connection: WAL, every commit on the disk before it returns.

    Raises:
        InputError: no such file, or a file system without WAL.
        IntegrityError: not a ledger.
    """
    if not path.is_file():
        raise InputError(f"{path}: there is no ledger")
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
    )
    with _closed_on_failure(connection, path):
        _check_format(connection, path)
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise InputError(
                f"{path}: this file system has no write-ahead log; keep the ledger on a local disk"
            )
        for setting in ("synchronous = FULL", "fullfsync = ON", "foreign_keys = ON", "busy_timeout = 10000"):
            connection.execute(f"PRAGMA {setting}")
    return connection


def disconnect(connection: sqlite3.Connection) -> None:
    """Close the writer's connection and leave one plain file, which a reader opens without making others."""
    # A reader in this very moment keeps the log where it is; the next writer takes it over.
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    connection.close()


def read_only(path: Path) -> sqlite3.Connection:
    """A reader's connection, also beside a writer and on a read-only disk.

    Raises:
        InputError: no such file, or it cannot be read.
        IntegrityError: not a ledger.
    """
    if not path.is_file():
        raise InputError(f"{path}: there is no ledger")
    # After a crash SQLite must first bring the file to its last whole state, which takes a writable one.
    # Where nothing can be written and no log lies beside the file, it does not change under us.
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        mode = "mode=rw"
    else:
        logged = path.with_name(path.name + "-wal").exists()
        mode = "mode=ro" if logged else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, isolation_level=None)
    with _closed_on_failure(connection, path):
        connection.execute("PRAGMA busy_timeout = 10000")
        connection.execute("PRAGMA query_only = ON")
        _check_format(connection, path)
    return connection


_REFUSED_BY_DISK = (
    "SQLITE_FULL",
    *(f"SQLITE_IOERR_{what}" for what in ("WRITE", "FSYNC", "SHMSIZE", "SHMOPEN")),
)


def unreadable(path: Path, error: sqlite3.Error | UnicodeError) -> PateFedError:
    """What a failure to read the ledger is: the disk's, on which SQLite had to write first, or damage."""
    if getattr(error, "sqlite_errorname", "") in _REFUSED_BY_DISK:
        return InputError(f"{path}: the ledger cannot be written ({error})")
    return IntegrityError(f"{path}: the ledger is damaged ({error})")


@contextlib.contextmanager
def _closed_on_failure(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        connection.close()
        if isinstance(error, (sqlite3.Error, UnicodeError)):
            raise unreadable(path, error) from error
        raise


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    # A damaged text must reach the checks that name its row.
    connection.text_factory = _text
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != _APPLICATION_ID:
        raise IntegrityError(f"{path}: this is no pate_fed ledger")
    if version != _FORMAT:
        raise IntegrityError(f"{path}: a ledger of format {version}; this version reads format {_FORMAT}")


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw  # any text for it could also be there as such, and have the row's hash


class WriterLock:
    """At most one writer: an advisory lock on a file beside the ledger, gone with the process holding it."""

    def __init__(self, path: Path) -> None:
        """Take the lock; IntegrityError: another writer holds it; InputError: it cannot be made or locked."""
        path = path.resolve()  # a link to the ledger is no second ledger
        self._path = path.with_name(path.name + ".lock")
        with naming_refusal(f"{path}: the ledger cannot be written"):
            self._handle, free = take_lock(self._path, of=path)
        if not free:
            os.close(self._handle)
            raise IntegrityError(f"{path}: another process writes this ledger; only one may")

    def release(self) -> None:
        """Give the lock back and remove its file."""
        self._path.unlink(missing_ok=True)
        os.close(self._handle)

"""The hospital's own log, every line of which holds the digest of the one before and is signed; and receipts.

A line is a JSON object. Its last fields are `before`, the SHA-256 hex of the line before without its line
feed, and where the hospital has an identity `signature`, over the line as it is without that field. A line
that a crash cut short stays; the next is a line "cut", which holds the digest of what stayed, and goes on
from the last whole line. Beside it lies the log's head: how long it is, and its last line's digest, signed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from clients.state_dir import locked
from pate_fed.disk import read_file, sync_folder, write_private
from pate_fed.errors import InputError, IntegrityError, naming_refusal
from pate_fed.format import counted
from pate_fed.identity import HospitalIdentity
from pate_fed.identity.bundle import BUNDLE_FILE, Bundle
from pate_fed.identity.keys import Receipt, load_key, sign
from pate_fed.protocol.messages import MOST_STUDENT
from pate_fed.structure.faults import Fault

# What came at a study's end, in a hospital's state directory: the coordinator's receipts, of the messages
# that it confirms to have received, and the student.

_PATTERN = "receipt-*.json"
_MOST_KEPT = 100


def keep_receipt(state_dir: Path, text: str, identity: Path) -> None:
    """Keep a receipt that came at the study's end; none is ever overwritten.

    `identity` is the folder of the hospital's identity, whose admission names the coordinator's key.

    Raises:
        IntegrityError: it is not the coordinator's, or another hospital's or study's; nothing is kept.
        InputError: there is no identity.
    """
    admission = HospitalIdentity.open(identity).admission
    key = admission.receipt_key
    if key is None:
        raise IntegrityError("a receipt came, and this hospital's admission names no key that signs one")
    found = Receipt.read(text, key)
    if (found.hospital, found.terms_digest) != (admission.hospital, admission.terms_digest):
        raise IntegrityError("the receipt is another hospital's or another study's")
    name = f"receipt-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if len(list(state_dir.glob(_PATTERN))) < _MOST_KEPT:
        write_private(state_dir / name, text.encode())


def read_receipts(state_dir: Path, key: Ed25519PublicKey) -> list[Receipt]:
    """All receipts that were kept; IntegrityError where one was changed, or is not the coordinator's."""
    found = []
    for path in sorted(state_dir.glob(_PATTERN)):
        try:
            found.append(Receipt.read(path.read_text(encoding="utf-8", errors="replace"), key))
        except IntegrityError as error:
            raise IntegrityError(f"{path.name}: {error}") from error
    return found


def keep_student(state_dir: Path, content: bytes, identity: Path) -> Bundle:
    """Keep the student that came at the study's end, in place of one that came before.

    Raises:
        IntegrityError: it is not this study's coordinator's, or damaged; nothing is kept.
        InputError: there is no identity.
    """
    found = _checked_student(content, identity, where="the student that came")
    write_private(state_dir / BUNDLE_FILE, content)
    return found


def read_student(state_dir: Path, identity: Path) -> Bundle:
    """The student in a state directory, checked again with the key in the hospital's admission.

    Raises:
        InputError: it cannot be read, or there is no identity.
        IntegrityError: as `keep_student`.
    """
    path = state_dir / BUNDLE_FILE
    with naming_refusal(f"{path}: cannot be read"):
        content = read_file(path, most=MOST_STUDENT)
    return _checked_student(content, identity, where=str(path))


def _checked_student(content: bytes, identity: Path, *, where: str) -> Bundle:
    admission = HospitalIdentity.open(identity).admission
    key = admission.receipt_key
    if key is None:
        raise IntegrityError(f"{where}: this hospital's admission names no key that signs one")
    return Bundle.read(content, where=where, public=key, terms_digest=admission.terms_digest)


LOG_FILE = "log.jsonl"
HEAD_FILE = "log.head"
NO_LINE = "0" * 64
LINE_PURPOSE = b"pate_fed/v1 line of a hospital's log\n"
HEAD_PURPOSE = b"pate_fed/v1 head of a hospital's log\n"
_TAIL = 4096  # bytes that are read back at first: most lines are far shorter


def digest_of_line(line: bytes) -> str:
    """SHA-256 hex of a line without its line feed, by which the next line names it."""
    return hashlib.sha256(line).hexdigest()


def read_events(state_dir: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Every line of a hospital's own log, as it stands and as an event; None where a crash cut the line."""
    path = state_dir / LOG_FILE
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        yield line, event if isinstance(event, dict) else None


def over_since(state_dir: Path, terms_digest: str | None) -> float | None:
    """When the study with these terms ended with success there, by the log; None where it did not."""
    ends = [event for _, event in read_events(state_dir) if event and event["event"] == "ended"]
    over = [
        float(end["time"])
        for end in ends
        if terms_digest and (end["status"], end.get("terms")) == ("success", terms_digest)
    ]
    return over[-1] if over else None


@dataclass
class Answered:
    """What a hospital's answers were about, by its log: none is counted that was given again.

    `rows` counts, by kind, what was asked: public inputs that it voted on, features that it summed, inputs or
    clusters of which it told labels.
    """

    rows: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._known: set[object] = set()

    def take(self, event: dict[str, Any]) -> None:
        """Count an event in; of a question whose answer a full disk held back, the first of two."""
        if event.get("event") != "answered":
            return
        about = event.get("question")
        if about is None or about not in self._known:
            self._known.add(about)
            self.rows[str(event["asks"])] += int(event["rows"])

    @property
    def total(self) -> int:
        """All rows of all kinds."""
        return self.rows.total()

    @property
    def text(self) -> str:
        """It in words."""
        each = (f"{counted(rows, 'row')} answered ({kind})" for kind, rows in sorted(self.rows.items()))
        return ", ".join(each) or "0 rows answered"


class HospitalLog:
    """The log in one state directory, readable by the hospital alone; several processes may append to it.

    `key` is the file of the hospital's identity key; without one lines are chained and not signed. `durable`:
    a line is on the disk when its method returns.
    """

    def __init__(self, state_dir: Path, *, key: Path | None = None, durable: bool = False) -> None:
        self._dir, self._key, self._durable = state_dir, key, durable
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)

    def note(self, event: str, **figures: float | int | str) -> None:
        """Append one line; a full disk costs the line, not the work it tells of."""
        try:
            self.record(event, **figures)
        except OSError as error:
            print(f"the hospital's log cannot be written: {error.strerror}", file=sys.stderr)

    def fault(self, error: BaseException, event: str = "fault") -> None:
        """Keep an error: a sentence with the line of the user's code, and its traceback."""
        told = Fault.of(error)
        self.note(event, sentence=told.sentence, kind=told.kind, place=told.place, error=told.traceback)

    def record(self, event: str, **figures: float | int | str) -> None:
        """Append one line about something that must not happen without it.

        Raises:
            OSError: it cannot be written; nothing of it is in the log then.
        """
        now = time.time()
        with locked(self._dir / LOG_FILE, os.O_CREAT | os.O_APPEND | os.O_RDWR) as handle:
            size = os.fstat(handle).st_size
            before, torn = _last_line(handle, size)
            added = b""
            if torn:
                told: dict[str, float | int | str] = {"bytes": len(torn), "torn": digest_of_line(torn)}
                line = self._line({"time": now, "event": "cut", **told}, before)
                added, before = b"\n" + line + b"\n", digest_of_line(line)
            line = self._line({"time": now, "event": event, **figures}, before)
            added += line + b"\n"
            self._append(handle, added, size)
            if self._key is not None:
                self._write_head(size + len(added), digest_of_line(line))

    def _line(self, values: dict[str, float | int | str], before: str) -> bytes:
        body = json.dumps({**values, "before": before}).encode()
        key = self._signing_key()
        if key is None:
            return body
        return body[:-1] + b', "signature": "' + sign(key, LINE_PURPOSE + body).encode() + b'"}'

    def _append(self, handle: int, added: bytes, size: int) -> None:
        written = os.write(handle, added)
        if written != len(added):  # the disk is full: rather no line than a part of one
            os.ftruncate(handle, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._durable:
            os.fsync(handle)
            if not size:  # or a power cut takes the log with all that is in it
                sync_folder(self._dir)

    def _write_head(self, size: int, digest: str) -> None:
        key = self._signing_key()
        if key is not None:
            text = json.dumps({"bytes": size, "digest": digest})
            signature = sign(key, HEAD_PURPOSE + text.encode())
            head = json.dumps({"head": text, "signature": signature}).encode()
            write_private(self._dir / HEAD_FILE, head, durable=False)

    def _signing_key(self) -> ec.EllipticCurvePrivateKey | None:
        if self._key is None:
            return None
        try:
            return _load(self._key, self._key.stat().st_mtime_ns)
        except InputError as error:
            raise OSError(errno.EIO, f"the key that signs it cannot be used: {error}") from error


@lru_cache(maxsize=1)
def _load(path: Path, changed: int) -> ec.EllipticCurvePrivateKey:
    return load_key(path)


def _last_line(handle: int, size: int) -> tuple[str, bytes]:
    """What the next line says of the one before, and what stands after that: a cut line, or nothing."""
    length = min(size, _TAIL)
    while True:
        tail = os.pread(handle, length, size - length)
        whole, feed, torn = tail.rpartition(b"\n")
        line = whole.rpartition(b"\n")[2]
        if length == size or (feed and len(line) < len(whole)):
            break
        length = min(size, 8 * length)
    return digest_of_line(line) if feed else NO_LINE, torn

"""The check of a hospital's log: its chain, its signatures, and the coordinator's receipts beside it."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clients import log
from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import counted
from pate_fed.identity import HospitalIdentity
from pate_fed.identity.admission import Admission
from pate_fed.identity.certificates import read_certificate
from pate_fed.identity.keys import is_signed
from pate_fed.protocol.messages import Refusal, RefusalReply, record_digest

_SIGNED = re.compile(rb', "signature": "([0-9a-f]+)"\}$')
_END = "ended"  # what a hospital answers to the notice that brings the receipt


@dataclass(slots=True, kw_only=True)
class LogCheck:
    """What was found: sentences of what holds (`holds`) and of what does not (`broken`).

    `lines` are whole ones, `cut` those that a crash or a full disk cut short, `signed` those with a
    signature. `left` are the digests of all messages that left.
    """

    hospital: str | None = None
    lines: int = 0
    cut: int = 0
    signed: int = 0
    left: list[str] = field(default_factory=list)
    confirmed: int | None = None
    holds: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """One line: what the log proves."""
        if self.broken:
            return "NOT verified: something was changed, removed or reordered"
        if self.hospital is None:
            return "chain whole, but not verified: no signature was checked"
        receipt = "without a receipt" if self.confirmed is None else "with the coordinator's receipt"
        return f"verified: whole, in order, signed by {self.hospital}, {receipt}"


def check_log(state_dir: Path, identity: Path | None) -> LogCheck:
    """Check the log of a state directory; `identity` is the folder of the hospital's identity, if it has one.

    Raises:
        InputError: there is no log, or no identity.
    """
    path = state_dir / log.LOG_FILE
    if not path.is_file():
        raise InputError(f"{state_dir}: holds no {log.LOG_FILE}; give the --state-dir of a hospital")
    content = path.read_bytes()
    admission = None if identity is None else HospitalIdentity.open(identity).admission
    found = LogCheck(hospital=None if admission is None else admission.hospital)
    public = None
    if admission is not None:
        public = read_certificate(admission.certificate.encode(), f"{identity}: the admission").public_key()
    _read(found, public, content)
    if not found.broken:
        _say_signatures(found, public)
    _check_head(found, state_dir / log.HEAD_FILE, content, public)
    _check_receipts(found, state_dir, admission, content)
    return found


def _read(found: LogCheck, public: object, content: bytes) -> None:
    """Read a log from its first line to its last; stop at the first that does not follow."""
    *lines, torn = content.split(b"\n")
    before = log.NO_LINE
    for number, (line, following) in enumerate(zip(lines, [*lines[1:], b""], strict=False), start=1):
        if _is_torn(line, following):
            found.cut += 1
            continue
        values = _fields(line)
        problem = _link_problem(values, before) or _signature_problem(found, public, line)
        if problem is not None:
            found.broken.append(f"line {number} {problem}")
            return
        found.lines += 1
        before = log.digest_of_line(line)
        found.left += _left(values)
    if torn:
        found.cut += 1
    if found.lines:
        found.holds.append(f"chain: {counted(found.lines, 'line')}, whole and in order")
    if found.cut:
        end = "; the last one is the log's end" if torn else ""
        found.holds.append(f"{counted(found.cut, 'line')} cut short by a crash or a full disk{end}")


def _is_torn(line: bytes, following: bytes) -> bool:
    """Whether the next line says that this one was cut short, and follows the last whole line."""
    cut = _fields(following)
    return cut is not None and cut.get("event") == "cut" and cut.get("torn") == log.digest_of_line(line)


def _link_problem(values: dict[str, Any] | None, before: str) -> str | None:
    """Why a line does not follow the one before it, or None."""
    if values is None or "before" not in values:
        return "is none that this log's hospital wrote with this release: it was changed, or is older"
    if values["before"] != before:
        return "does not follow the line before it: something was changed, removed or reordered there"
    return None


def _signature_problem(found: LogCheck, public: object, line: bytes) -> str | None:
    signature = _SIGNED.search(line)
    if signature is None:
        return "is not signed, and lines before it are: it was changed" if found.signed else None
    found.signed += 1
    message = log.LINE_PURPOSE + line[: signature.start()] + b"}"
    if public is None or is_signed(public, signature[1].decode(), message):
        return None
    return f"is not signed by {found.hospital}: it was changed"


def _fields(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _left(values: dict[str, Any] | None) -> list[str]:
    """The digest of the message that a line says left; of most lines none."""
    told = values is not None and "sha256" in values and values.get("kind") not in (None, _END)
    return [str(values["sha256"])] if told and values is not None else []


def _say_signatures(found: LogCheck, public: object) -> None:
    if public is None:
        without = "give --dir with the hospital's identity" if found.signed else "written without an identity"
        found.holds.append(f"signatures: none was checked ({without})")
    elif not found.signed:
        found.broken.append(f"no line is signed by {found.hospital}")
    else:
        before = found.lines - found.signed
        more = f"; the {before} before them are held by the first of these" if before else ""
        found.holds.append(f"signatures: {counted(found.signed, 'line')} signed by {found.hospital}{more}")


def _check_head(found: LogCheck, path: Path, content: bytes, public: object) -> None:
    """Hold the log against its head: lines at its end can be removed without breaking the chain."""
    if public is None or found.broken:
        return
    if not path.is_file():
        if found.signed:
            found.broken.append(f"{log.HEAD_FILE} is not there: lines may have been removed at the end")
        return
    try:
        values = json.loads(path.read_bytes())
        text, signature = str(values["head"]), str(values["signature"])
        head = json.loads(text)
        size, digest = int(head["bytes"]), str(head["digest"])
    except (ValueError, KeyError, TypeError, RecursionError):
        found.broken.append(f"{log.HEAD_FILE} is not readable: it was changed")
        return
    if not is_signed(public, signature, log.HEAD_PURPOSE + text.encode()):
        found.broken.append(f"{log.HEAD_FILE} is not signed by {found.hospital}: it was changed")
        return
    known = content[:size]
    last = known.removesuffix(b"\n").rpartition(b"\n")[2]
    if len(known) < size or not known.endswith(b"\n") or log.digest_of_line(last) != digest:
        found.broken.append("lines are missing at the end: the log's signed head tells of more")
        return
    found.holds.append("end: no line is missing")


def _check_receipts(found: LogCheck, state_dir: Path, admission: Admission | None, content: bytes) -> None:
    if admission is None:
        return
    try:
        key = admission.receipt_key
        if key is None:
            found.holds.append("receipt: none; this hospital's admission names no key that signs one")
            return
        receipts = log.read_receipts(state_dir, key)
    except IntegrityError as error:
        found.broken.append(str(error))
        return
    if not receipts:
        found.holds.append("receipt: none; the coordinator countersigned nothing")
        return
    own = (admission.hospital, admission.terms_digest)
    if any((receipt.hospital, receipt.terms_digest) != own for receipt in receipts):
        found.broken.append("a receipt is another hospital's or another study's")
        return
    received, left = Counter[str](), Counter(found.left)
    for receipt in receipts:  # a later one tells of what an earlier one told, too
        received |= Counter(receipt.received)
    there = set(left)
    if found.broken:  # lines behind the first that does not follow are not trusted, but they are there
        there.update(digest for line in content.split(b"\n") for digest in _left(_fields(line)))
    # A refusal carries nothing: it may leave though the disk is too full for its line.
    unknown = received.keys() - there - _refusals(admission.hospital)
    if unknown:
        missed = counted(len(unknown), "message")
        found.broken.append(
            f"the coordinator received {missed} that the log has no line of: lines were removed"
        )
    if unknown or there - left.keys():  # the log was read up to a line that does not follow
        return
    found.confirmed = (left & received).total()
    missing = (left - received).total()
    more = f"; {missing} it does not confirm: they may never have arrived" if missing else ""
    found.holds.append(
        f"receipt: the coordinator confirms {found.confirmed} of {left.total()} messages{more}"
    )


def _refusals(hospital: str) -> set[str]:
    parties = (hospital, "unknown")
    replies = [RefusalReply(party=party, code=code.name) for party in parties for code in Refusal]
    return {record_digest(reply.to_record()) for reply in replies}

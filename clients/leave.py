"""How a hospital leaves a study, and what it erases after one that has ended.

Who leaves answers nothing any more, and a signed statement says what was given. What answers are made of is
erased. The mark comes first, on the disk before anything is erased. It is looked
at before and after every answer is made, so whatever is under way is thrown away; claims stay, so that
nothing could be answered anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.journal import Journal
from clients.log import Answered, HospitalLog, read_events
from clients.state_dir import OLD_LABELS, locked
from pate_fed.disk import write_private
from pate_fed.identity.bundle import BUNDLE_FILE
from pate_fed.identity.keys import KEY_FILE, load_key, sign
from pate_fed.protocol.messages import AnswerReply, SumReply

STATEMENT_FILE = "left-the-study.json"
STATEMENT_PURPOSE = b"pate_fed/v1 statement of a hospital that left\n"
_MARK = "left"
_TURN, _OPEN = "answering.lock", os.O_CREAT | os.O_RDWR
_WAIT_S = 60.0
_POLL_S = 0.1
# What a hospital answers with. Its claims, its terms and its log stay.
_ANSWERS_WITH = (
    "teacher-*",
    "parts.sha256*",
    "features.bin*",
    "clusters.bin*",
    "tmp/*",
    "answer.npz*",
    "response.npy*",
)
_ERASED = (
    *(*_ANSWERS_WITH, "pool.npy*", "teachers.key*", "held-out.sha256*", "secure_sum"),
    *(f"{OLD_LABELS}/response.npy", f"{OLD_LABELS}/secure_sum"),
)
# Of a study that has ended. `hospital compare` still asks which records taught, and with the student for the
# pool; the roster says who was confirmed.
_TIDIED = (*_ANSWERS_WITH, "secure_sum/*.state*")
_WITH_STUDENT = (BUNDLE_FILE, "pool.npy*")
_ANSWERED = {"answered", "answered again"}  # events of the log that tell of an answer


def has_left(state_dir: Path) -> bool:
    """Whether a hospital with this state directory has left its study."""
    return (state_dir / _MARK).exists()


@contextmanager
def turn_to_answer(state_dir: Path) -> Iterator[None]:
    """Hold the turn in which an answer is made and noted."""
    with locked(state_dir / _TURN, _OPEN, how=fcntl.LOCK_SH):
        yield


def mark_left(state_dir: Path) -> bool:
    """Mark, for good, that this hospital has left; False where an answer is still under way after a minute.

    Such an answer is thrown away when it is made.

    Raises:
        OSError: the mark cannot be written.
    """
    if not has_left(state_dir):
        write_private(state_dir / _MARK, str(time.time()).encode())
    end = time.monotonic() + _WAIT_S
    while True:
        with suppress(BlockingIOError), locked(state_dir / _TURN, _OPEN, how=fcntl.LOCK_EX | fcntl.LOCK_NB):
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)


def erase(state_dir: Path) -> list[str]:
    """Erase teachers, copies of inputs, kept answers and keys of masks; the names of what was there.

    Raises:
        OSError: something cannot be erased.
    """
    found = [path for pattern in _ERASED for path in sorted(state_dir.glob(pattern))]
    for path in found:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return [str(path.relative_to(state_dir)) for path in found]


def tidy(state_dir: Path, identity: Path | None, *, student: bool) -> Iterator[str]:
    """Erase what a study that has ended needs no more, with `student` that and the pool; each one's name.

    Each has a line in the hospital's log, with its SHA-256, before it goes. Journal, account, log, terms,
    receipts and who was confirmed stay.

    Raises:
        OSError: a line cannot be written, or something cannot be erased; what comes after it stays.
    """
    log = HospitalLog(state_dir, key=None if identity is None else identity / KEY_FILE, durable=True)
    patterns = (*_TIDIED, *_WITH_STUDENT) if student else _TIDIED
    for path in (each for pattern in patterns for each in sorted(state_dir.glob(pattern))):
        is_folder = path.is_dir() and not path.is_symlink()
        for file in sorted(path.rglob("*")) if is_folder else (path,):
            if not file.is_dir():
                name = str(file.relative_to(state_dir))
                log.record("erased", name=name, sha256=_digest_of(file))
                file.unlink()
                yield name
        if is_folder:
            shutil.rmtree(path)


def _digest_of(path: Path) -> str:
    if not path.is_file() or path.is_symlink():
        return "no regular file"
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What left a hospital by its log and its claims: `queries` that it voted on, and each message that left.

    `answered` says whether an answer may have left, `masked` whether a step of a sum under masks did.
    """

    queries: int
    messages: tuple[dict[str, Any], ...]
    answered: bool
    masked: bool


def given_by(state_dir: Path) -> Given:
    """What left, by the log and claims of a state directory; OSError where one cannot be read."""
    logged, messages = Answered(), []
    events, kinds = set[str](), set[str]()
    for _, event in read_events(state_dir):
        if event is None:
            continue
        events.add(str(event.get("event")))
        kinds.add(str(event.get("kind")))
        logged.take(event)
        if "sha256" in event and "kind" in event:
            messages.append({name: event[name] for name in ("time", "kind", "sha256")})
    claimed = Journal(state_dir).answered() if (state_dir / "answered").is_dir() else 0
    return Given(
        queries=max(logged.rows["votes"], claimed),
        messages=tuple(messages),
        answered=claimed > 0 or not events.isdisjoint(_ANSWERED) or AnswerReply.kind in kinds,
        masked=SumReply.kind in kinds,
    )


def state_leaving(state_dir: Path, statement: dict[str, Any], identity: Path | None) -> Path:
    """Write the statement, signed where the hospital has an identity, and note it in the log; its file.

    Raises:
        InputError: the identity's key cannot be used.
        OSError: the file cannot be written.
    """
    text = json.dumps(statement, ensure_ascii=False, indent=1)
    key = None if identity is None else identity / KEY_FILE
    signature = None if key is None else sign(load_key(key), STATEMENT_PURPOSE + text.encode())
    path = state_dir / STATEMENT_FILE
    signed = {"statement": statement, "signature": signature}
    write_private(path, json.dumps(signed, ensure_ascii=False, indent=1).encode())
    HospitalLog(state_dir, key=key, durable=True).note("left", messages=len(statement["messages"]))
    return path

"""How a hospital leaves a study: it answers nothing any more, and a signed statement says what was given.

What answers are made of is erased. The mark comes first, on the disk before anything is erased. It is looked
at before and after every answer is made, so whatever is under way is thrown away; claims stay, so that
nothing could be answered anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.journal import Journal
from clients.log import Answered, HospitalLog, read_events
from clients.state_dir import OLD_LABELS
from pate_fed.disk import write_private
from pate_fed.identity.keys import KEY_FILE, load_key, sign
from pate_fed.protocol.messages import AnswerReply, SumReply

STATEMENT_FILE = "left-the-study.json"
STATEMENT_PURPOSE = b"pate_fed/v1 statement of a hospital that left\n"
_MARK = "left"
_TURN = "answering.lock"
_WAIT_S = 60.0
_POLL_S = 0.1
# What a hospital answers with. Its claims, its terms and its log stay.
_ERASED = (
    *(
        "teacher-*",
        "teachers.key*",
        "held-out.sha256*",
        "parts.sha256*",
        "features.bin*",
        "clusters.bin*",
        "pool.npy*",
        "tmp/*",
    ),
    *("answer.npz*", "response.npy*", "secure_sum"),
    *(f"{OLD_LABELS}/response.npy", f"{OLD_LABELS}/secure_sum"),
)
_ANSWERED = {"answered", "answered again"}  # events of the log that tell of an answer


def has_left(state_dir: Path) -> bool:
    """Whether a hospital with this state directory has left its study."""
    return (state_dir / _MARK).exists()


@contextmanager
def turn_to_answer(state_dir: Path) -> Iterator[None]:
    """Hold the turn in which an answer is made and noted."""
    with _locked(state_dir) as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
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
    with _locked(state_dir) as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    return False
                time.sleep(_POLL_S)
            else:
                return True


@contextmanager
def _locked(state_dir: Path) -> Iterator[int]:
    handle = os.open(state_dir / _TURN, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


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

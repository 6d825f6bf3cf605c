"""A hospital's trail: a chain over its own answers, and what it was shown of others, to find old copies.

Each answer's digest goes into a hash chain under a secret of the trail's own, on the disk before the answer
leaves. The coordinator keeps each hospital's newest signed head, shows it with the next step, and to all
hospitals the heads of all and of its ledger. A hospital whose trail lacks what it has signed was put back;
so was a coordinator that shows less than it showed before.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from clients.site import Objection
from clients.state_dir import locked
from pate_fed.disk import as_written, sync_folder, write_private
from pate_fed.errors import IntegrityError
from pate_fed.format import counted
from pate_fed.identity.keys import load_sum_key
from pate_fed.protocol.heads import HEAD_BYTES, LEDGER, Head, Statement, heads_text, read_heads
from pate_fed.protocol.messages import Question, Refusal

TRAIL_FILE = "trail"
_UNKNOWN = bytes(HEAD_BYTES)  # in place of a head of which the count alone is known


class Trail:
    """The trail of one hospital in its state directory: a secret, then one head an answer, 32 bytes each.

    `key` is the file of its key in secure sums, with which it signs; None: it has no identity. What it was
    shown is kept apart for each study and run of a coordinator.
    """

    def __init__(self, state_dir: Path, *, party: str, key: Path | None) -> None:
        self._dir, self._party = state_dir, party
        self._identity = None if key is None else load_sum_key(key)

    def add(self, answer: bytes, *, terms_digest: str) -> bytes:
        """Note an answer by its digest, on the disk when this returns; the packed statement for it.

        The answer that was noted last is noted once, also where it is sent again.

        Raises:
            OSError: it cannot be written; nothing of it may leave then.
        """
        with locked(self._dir / TRAIL_FILE, os.O_CREAT | os.O_RDWR) as handle:
            count = os.fstat(handle).st_size // HEAD_BYTES - 1  # less what a crash cut short
            if count < 0:
                os.pwrite(handle, secrets.token_bytes(HEAD_BYTES), 0)
                count = 0
            secret, last = _link(handle, 0), _link(handle, count)
            if not count or last != hmac.digest(secret, _link(handle, count - 1) + answer, "sha256"):
                last, count = hmac.digest(secret, last + answer, "sha256"), count + 1
                if os.pwrite(handle, last, count * HEAD_BYTES) != HEAD_BYTES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle)
        sync_folder(self._dir)
        stated = Statement(head=Head(count, last))
        if self._identity is not None:
            stated = stated.signed(self._identity, party=self._party, terms_digest=terms_digest)
        return stated.to_bytes()

    def objection(self, question: Question, *, run: bytes, asks: bool = True) -> Objection | None:
        """Why a question is not answered, by the heads that come with it; they are remembered.

        `run` is the key of the coordinator's run. A step that `asks` for no answer brings a statement alone.

        Raises:
            IntegrityError: they are not readable, or shown as this hospital's own, which did not sign it.
        """
        heads, seen = read_heads(question.heads if asks else ""), self._seen(question.terms_digest, run)
        own = [head for head in (heads.get(self._party), seen.heads.get(self._party)) if head is not None]
        if question.statement and not self._holds(stated := self._own(question).head):
            seen.heads[self._party] = stated  # from here on, also where nobody shows it any more
            seen.write()
            return self._older(stated, signed=self._identity is not None)
        if lacking := [head for head in own if not self._holds(head)]:
            return self._older(max(lacking), signed=False)
        if not asks or seen.question == question.digest:
            return None
        for name, before in seen.heads.items():
            now = heads.get(name, Head(0, _UNKNOWN))
            if _is_behind(now, before):
                return _behind(name, now=now, before=before)
        seen.question, seen.heads = question.digest, {**seen.heads, **heads}
        seen.write()
        return None

    def ledger_objection(self, terms_digest: str, heads: str, *, run: bytes) -> Objection | None:
        """Why nothing is agreed to again with a coordinator whose ledger is behind; as in `objection`."""
        now, before = read_heads(heads).get(LEDGER), self._seen(terms_digest, run).heads.get(LEDGER)
        if now is None or before is None or not _is_behind(now, before):
            return None
        return _behind(LEDGER, now=now, before=before)

    def note_survivors(self, digest: str, names: Iterable[str], *, terms_digest: str, run: bytes) -> None:
        """Remember whose masked vectors are in the sum of a question, by its digest.

        Each of them has answered twice at least since: its shares, its vector.
        """
        seen = self._seen(terms_digest, run)
        if seen.question == digest:
            for name in names:
                shown = seen.heads.get(name, Head(0, _UNKNOWN))
                seen.heads[name] = Head(shown.count + 2, _UNKNOWN)
            seen.question = ""
            seen.write()

    def _own(self, question: Question) -> Statement:
        stated = Statement.read(question.statement)
        identity, terms_digest = self._identity, question.terms_digest
        if identity is not None and not stated.signed_by(
            identity.public, party=self._party, terms_digest=terms_digest
        ):
            raise IntegrityError("what is shown as this hospital's own statement is not signed by it")
        return stated

    def _holds(self, head: Head) -> bool:
        """Whether the trail has this head at its place."""
        if not head.count:
            return True
        try:
            with open(self._dir / TRAIL_FILE, "rb") as file:
                file.seek(head.count * HEAD_BYTES)
                found = file.read(HEAD_BYTES)
        except FileNotFoundError:
            return False
        return len(found) == HEAD_BYTES and head.value in (found, _UNKNOWN)

    def _older(self, head: Head, *, signed: bool) -> Objection:
        try:
            here = max(0, (self._dir / TRAIL_FILE).stat().st_size // HEAD_BYTES - 1)
        except FileNotFoundError:
            here = 0
        word = "has signed" if signed else "is said to have given"
        sentence = (
            f"{self._dir}: this hospital {word} {counted(head.count, 'reply')} in this study, "
            f"and here is another course, of {here:,}: a backup was put back, or it is another directory. It "
            "would answer anew what it has answered. Put the newest state directory back or leave the study: "
            "`pate-fed hospital leave`"
        )
        return Refusal.OLDER, sentence

    def _seen(self, terms_digest: str, run: bytes) -> _Seen:
        name = hashlib.sha256(f"{terms_digest}/{run.hex()}".encode()).hexdigest()[:12]
        return _Seen.read(self._dir / f"seen-{name}")


@dataclass(slots=True)
class _Seen:
    """What a hospital was shown last: the question by its digest, and the heads that came with it."""

    path: Path
    question: str
    heads: dict[str, Head]

    @classmethod
    def read(cls, path: Path) -> _Seen:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        question, _, heads = text.partition("\n")
        with as_written(path):
            return cls(path, question, read_heads(heads))

    def write(self) -> None:
        write_private(self.path, f"{self.question}\n{heads_text(self.heads)}".encode())


def _link(handle: int, place: int) -> bytes:
    return os.pread(handle, HEAD_BYTES, place * HEAD_BYTES)


def _is_behind(now: Head, before: Head) -> bool:
    """Whether a head is of fewer than before, or of as many others."""
    differ = now.value != before.value and before.value != _UNKNOWN
    return now.count < before.count or (now.count == before.count and differ)


def _behind(name: str, *, now: Head, before: Head) -> Objection:
    counts = f"{now.count:,}, and it showed {before.count:,} before"
    if name == LEDGER:
        return Refusal.LEDGER, f"the coordinator's ledger has {counts}: it was put back from a backup"
    return Refusal.BEHIND, f"of {name} the coordinator shows {counts}: it hides that {name} was put back"

"""A hospital's own memory on its own disk: which questions it answered, and how.

A question is claimed before anything about it leaves the house, and its answer is on the disk before the
claim: a coordinator that died gets the very same answer to the very same question, and never another one.
"""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from clients.state_dir import locked
from pate_fed.disk import write_arrays, write_private
from pate_fed.errors import IntegrityError
from pate_fed.protocol.messages import Packed, Question

Ints = NDArray[np.int64]

_ANSWER = "answer.npz"
_REVEALED = ".revealed"
_PART = ".part"  # of a file that a crash cut short: nothing was sent for it


class Journal:
    """Claims in one state directory (mode 0700), readable by the hospital alone.

    A claim is a file of the places about which a question releases something, called after its content and
    then after the question itself. Not `durable` leaves the disk to the system, for a simulation.
    """

    def __init__(self, state_dir: Path, *, durable: bool = True) -> None:
        self._answered, self._durable = state_dir / "answered", durable
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._answered.mkdir(mode=0o700, exist_ok=True)

    def claim(self, question: Question) -> bool:
        """Mark a question's queries as answered; False when another question named any of them before.

        Batches that overlap would tell one query's votes from the difference of two sums, and twice the noise
        of one query would average out. On the disk when this returns, also for a process that takes over. The
        very same question may be claimed again: whoever does so sends the answer that was kept for it.
        """
        with self.turn():
            return self._claim(question)

    def answer_once(
        self, question: Question, answer: Packed, *, asker: bytes, keep: bool = True
    ) -> Packed | None:
        """The one answer to a question: `answer`, or the one kept for `asker`; None where there is none.

        To be sent only once this has returned it: by then question and answer are on the disk. Not to `keep`
        an answer is for a simulation, in which nobody goes on.

        `answer` is packed, as it leaves.

        Raises:
            IntegrityError: the one that was kept is damaged.
        """
        with self.turn():
            if self._claimed_by(question):
                return self.kept_answer(question, asker=asker)
            if self.overlaps(question.index):
                return None
            if keep:  # before the claim: a claimed question without its answer would be lost for good
                names = {"question": question.digest.encode(), "asker": asker}
                write_arrays(
                    self._answered.with_name(_ANSWER),
                    answer=answer,
                    **{name: np.frombuffer(value, dtype=np.uint8) for name, value in names.items()},
                )
            return answer if self._claim(question) else None

    def kept_answer(self, question: Question, *, asker: bytes) -> Packed | None:
        """The answer that this very question got from this hospital for `asker`, as it left.

        None where it got none, was asked by somebody else, or is not the last that was answered: whoever asks
        the next question has the answers to the one before.

        Raises:
            IntegrityError: it is damaged.
        """
        path, wanted = self._answered.with_name(_ANSWER), (question.digest.encode(), asker)
        if not self._claimed_by(question) or not path.exists():
            return None
        content = path.read_bytes()  # what the disk refuses may pass: it is no damage
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as held:
                same = (held["question"].tobytes(), held["asker"].tobytes()) == wanted
                return held["answer"] if same else None
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise IntegrityError(f"{path}: the answer that was kept is damaged") from error

    def forget_answer(self) -> None:
        """Remove the answer that is kept, once the study is over; the claims stay."""
        self._answered.with_name(_ANSWER).unlink(missing_ok=True)

    def note_revealed(self, digest: str) -> None:
        """Note, before it leaves, that shares for unmasking a question's sum are revealed, by its digest."""
        write_private(self._answered / f"{digest}{_REVEALED}", b"", durable=self._durable)

    def revealed(self, digest: str) -> bool:
        """Whether shares for unmasking that question's sum were revealed: it is never masked again."""
        return (self._answered / f"{digest}{_REVEALED}").exists()

    def turn(self) -> AbstractContextManager[int]:
        """One process at a time, as two may play this hospital at once."""
        return locked(self._answered)

    def claimed(self, content_digest: str) -> bool:
        """Whether the very batch was claimed before, by whatever question."""
        return any(path.name.startswith(content_digest) for path in self._claims())

    def overlaps(self, index: Ints, *, but: Question | None = None) -> bool:
        """Whether any of these queries, int64 (queries,), was claimed before by another question."""
        return bool(np.isin(index, self._claimed_queries(but)).any())

    def answered(self, *, since: float = 0.0) -> int:
        """Queries of all batches that were answered at or after a time (seconds since 1970)."""
        claims = [path.stat() for path in self._claims()]
        return sum(claim.st_size // 8 for claim in claims if claim.st_mtime >= since)

    def _claim(self, question: Question) -> bool:
        if self._claimed_by(question):
            return True
        if self.overlaps(question.index):
            return False
        content = question.released.astype("<i8").tobytes()
        write_private(self._claim_path(question), content, durable=self._durable)
        return True

    def _claim_path(self, question: Question) -> Path:
        return self._answered / f"{question.content_digest}.{question.digest}"

    def _claimed_by(self, question: Question) -> bool:
        """Whether this very question was claimed; what earlier releases claimed names no question."""
        return self._claim_path(question).exists()

    def _claims(self) -> list[Path]:
        return [path for path in self._answered.iterdir() if path.suffix not in (_PART, _REVEALED)]

    def _claimed_queries(self, but: Question | None = None) -> Ints:
        own = None if but is None else self._claim_path(but)
        # A claim that a crash cut short counts as far as it goes: earlier releases wrote them in place.
        parts = [path.read_bytes() for path in self._claims() if path != own]
        return np.concatenate(
            [
                np.empty(0, dtype=np.int64),
                *(np.frombuffer(part[: len(part) // 8 * 8], "<i8") for part in parts),
            ]
        )

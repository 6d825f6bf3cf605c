"""All that another coordinator process resumes a study from, beside the ledger, and what of it is private.

One folder (mode 0700, files 0600) holds what is private: the coordinator's key and the roster of secure
summation, the note of the batch under way, votes or replies under masks that came for it, totals, the
student's checkpoints. It is removed when the study has come to its end. Labels are on the ledger, and nowhere
here.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import (
    PUT_BACK,
    DamagedFileError,
    as_written,
    load_arrays,
    read_json,
    sync_folder,
    write_arrays,
    write_private,
)
from pate_fed.privacy.ledger.rows import digest_of
from pate_fed.protocol.heads import Statement
from pate_fed.protocol.messages import Packed, Question
from pate_fed.runtime.run_dir import ALL_ASKED
from pate_fed.secure_sum import Identity
from pate_fed.structure import setting, to_plain

Ints = NDArray[np.int64]

ROSTER, _IDENTITY, _BATCH = "roster", "identity.key", "batch.json"
_SANITISED, _WRONG = "sanitised.json", "shown-wrong"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Totals:
    """The sum of what `voters` hospitals sent about a batch. Private where exact.

    Shapes: `index` int64 (queries,), the batch's places in the public pool; `value` int64 (queries, classes).
    """

    index: Ints
    value: Ints
    voters: int

    def rows(self, part: slice) -> Totals:
        """The totals of some of the queries."""
        return Totals(self.index[part], self.value[part], self.voters)


@dataclass(frozen=True, slots=True, eq=False)
class OpenBatch:
    """The question that was begun last, released or not. `asked`: hospitals may have answered it.

    `question` names no terms. `step` is the step of its secure summation that was begun last, from 0; those
    before are closed. `proof` shows why the attempts before this `attempt` at it were given up.
    """

    question: Question
    digest: str
    asked: bool
    step: int = 0
    attempt: int = 0
    proof: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchNote:
    """An open batch as it is written."""

    batch: int = setting(low=0)
    digest: str
    index: tuple[int, ...] = setting(low=0)
    asked: bool
    measured: int = setting(low=0)
    given: str
    heads: str = ""
    step: int = setting(low=0)
    attempt: int = setting(low=0)
    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SanitisedDraw:
    """A study's sanitised ε, which may be published, and its noise's standard deviation, which may not."""

    epsilon: float
    deviation_do_not_publish: float | None


@dataclass(frozen=True, slots=True, eq=False)
class StudentPredictions:
    """A student's probabilities of the public pool, float32 (pool, classes).

    They follow from released labels, so they are public.
    """

    probabilities: NDArray[np.float32]

    @property
    def digest(self) -> str:
        """SHA-256 hex."""
        return digest_of(self.probabilities)


class CoordinatorState:
    """One study's state. Whatever a method keeps is on the disk, whole, when it returns.

    `private` is the folder of all that is private; None for a simulation, which begins anew, so that nothing
    private is written. Students' predictions, which are public, lie in `run_dir` beside it.
    """

    def __init__(self, private: Path | None, *, run_dir: Path | None = None) -> None:
        self._private, self._run_dir = private, run_dir or Path()

    def path(self, name: str) -> Path:
        """Where a private file of that name lies."""
        return (self._private or Path()) / name

    # Secure summation: keys, roster.

    def identity(self) -> Identity:
        """The coordinator's key for this run, made when it is not there; questions are signed with it too."""
        path = self._existing(_IDENTITY)
        if path is not None:
            with as_written(path):
                return Identity(path.read_bytes())
        made = Identity.generate()
        self._write(_IDENTITY, made.to_bytes())
        return made

    @property
    def roster(self) -> bytes:
        """The closed roster; empty before."""
        path = self._existing(ROSTER)
        return b"" if path is None else path.read_bytes() or b"\0"  # an empty file is a damaged one

    def keep_roster(self, roster: bytes) -> None:
        """Keep the roster before any hospital sees it."""
        self._write(ROSTER, roster)

    # The batch under way.

    @property
    def last_batch(self) -> OpenBatch | None:
        """The batch that was begun last; DamagedFileError where the note is no such note."""
        path = self._existing(_BATCH)
        if path is None:
            return None
        what = f"the note of the last batch; {PUT_BACK}"
        note = read_json(_BatchNote, path, what=what, error=DamagedFileError)
        question = Question(
            terms_digest="",
            batch=note.batch,
            index=np.array(note.index, dtype=np.int64),
            measured=note.measured,
            given=b64decode(note.given),
            heads=note.heads,
        )
        proof = b64decode(note.proof)
        return OpenBatch(question, note.digest, note.asked, step=note.step, attempt=note.attempt, proof=proof)

    def begin_batch(
        self, question: Question, *, asked: bool, step: int = 0, attempt: int = 0, proof: bytes = b""
    ) -> None:
        """Note a batch before its first message, and each step of its secure summation before the step's."""
        last = self.last_batch
        if last is not None and last.digest != question.digest:
            self.forget_answers()  # before the note: they must never count as another batch's
        note = _BatchNote(
            batch=question.batch,
            digest=question.digest,
            index=tuple(question.index.tolist()),
            asked=asked,
            measured=question.measured,
            given=b64encode(question.given).decode(),
            heads=question.heads,
            step=step,
            attempt=attempt,
            proof=b64encode(proof).decode(),
        )
        self._write(_BATCH, json.dumps(to_plain(note)).encode())

    @property
    def shown_wrong(self) -> tuple[str, ...]:
        """Hospitals that broke the protocol of secure summation, by name: they are in no batch any more."""
        path = self._existing(_WRONG)
        if path is None:
            return ()
        with as_written(path):
            return tuple(path.read_text(encoding="utf-8").split())

    def keep_wrong(self, parties: Iterable[str]) -> None:
        """Keep who was shown to have broken the protocol, before it is left out of anything."""
        self._write(_WRONG, "\n".join(sorted({*self.shown_wrong, *parties})).encode())

    def answers(self) -> dict[str, Packed]:
        """Answers without masks to the last question, packed, by hospital; DamagedFileError of a file."""
        damaged = "the kept answer is damaged; delete the file to leave the party out"
        return {
            path.stem.removeprefix("answer-"): _read_arrays(path, damaged, ("answer",))["answer"]
            for path in self._files("answer-*.npz")
        }

    def keep_answer(self, party: str, answer: Packed) -> None:
        """Keep one hospital's answer to the last question, so that nobody asks it again."""
        self._write_arrays(f"answer-{party}.npz", answer=answer)

    def statements(self) -> dict[str, Statement]:
        """The newest statement of each hospital on its own answers, by name; DamagedFileError of a file."""
        found = {}
        for path in self._files("*.head"):
            with as_written(path):
                found[path.stem] = Statement.read(path.read_bytes())
        return found

    def keep_statement(self, party: str, stated: Statement) -> None:
        """Keep a hospital's newest statement, before anything is made of the answer that it came with."""
        self._write(f"{party}.head", stated.to_bytes())

    def sum_replies(self, step: int, *, attempt: int = 0) -> list[Path]:
        """Files of packed replies that came to a step of an attempt at the last batch's secure summation."""
        return self._files(f"sum-{attempt}.{step}-*.msg")

    def keep_sum_reply(self, step: int, party: str, reply: bytes, *, attempt: int = 0) -> None:
        """Keep one hospital's reply to a step before that is closed, so that it is closed the same again."""
        self._write(f"sum-{attempt}.{step}-{party}.msg", reply)

    def forget_sum_reply(self, step: int, party: str, *, attempt: int = 0) -> None:
        """Remove one hospital's reply to a step that is not closed yet."""
        if (path := self._existing(f"sum-{attempt}.{step}-{party}.msg")) is not None:
            path.unlink()

    def forget_answers(self) -> None:
        """Remove what came for the last batch; for once it is charged."""
        for path in (*self._files("answer-*.npz"), *self._files("sum-*-*.msg")):
            path.unlink()

    @property
    def all_asked(self) -> bool:
        """Whether all that the study asks is on its ledger."""
        return self._existing(ALL_ASKED) is not None

    def note_all_asked(self) -> None:
        """Note that hospitals are asked nothing more: who goes on from here does without them."""
        self._write(ALL_ASKED, b"")

    # Totals: for figures after the fact, and sums of counts that no hospital gives twice.

    def keep_totals(self, digest: str, totals: Totals) -> None:
        """Keep the totals of a batch before it is released."""
        arrays = {"index": totals.index, "value": totals.value, "voters": np.array(totals.voters)}
        self._write_arrays(f"totals-{digest}.npz", **arrays)

    def totals(self, digest: str) -> Totals | None:
        """The totals of a batch; None where they are not here; DamagedFileError where it is damaged."""
        path = self._existing(f"totals-{digest}.npz")
        if path is None:
            return None
        held = _read_arrays(path, "the kept totals are damaged", ("index", "value", "voters"))
        return Totals(held["index"], held["value"], int(held["voters"]))

    @property
    def sanitised(self) -> SanitisedDraw | None:
        """The sanitised ε that was drawn for this study; DamagedFileError where the note is damaged."""
        path = self._existing(_SANITISED)
        if path is None:
            return None
        return read_json(SanitisedDraw, path, what="the note of the sanitised ε", error=DamagedFileError)

    def keep_sanitised(self, drawn: SanitisedDraw) -> None:
        """Keep the sanitised ε before it is told: drawn again it would be paid for again."""
        self._write(_SANITISED, json.dumps(to_plain(drawn)).encode())

    # Students.

    def checkpoint(self, index: Ints, label: Ints) -> Path | None:
        """Where the training of a student of these labels, int64 (m,) each, is kept; None in a simulation."""
        if self._private is None:
            return None
        name = hashlib.sha256(index.tobytes() + label.tobytes()).hexdigest()[:16]
        return self._made(self._private) / f"student-{name}.pt"

    def predictions_path(self, number: int) -> Path:
        """Where the predictions lie that round `number` rests on."""
        return self._run_dir / f"round-{number}.npz"

    def keep_predictions(self, number: int, predictions: StudentPredictions) -> None:
        """Keep what round `number` rests on, before its first question."""
        write_arrays(self.predictions_path(number), probabilities=predictions.probabilities)

    def predictions(self, number: int) -> StudentPredictions:
        """What round `number` rests on; DamagedFileError where the file is gone or damaged."""
        gone = "the predictions that a round rests on are gone or damaged, so it cannot go on"
        held = _read_arrays(self.predictions_path(number), gone, ("probabilities",))
        return StudentPredictions(held["probabilities"])

    def keep_weights(self, number: int, weights: bytes) -> None:
        """Keep what hospitals are given in round `number`, which is public, before they are asked."""
        write_arrays(self.predictions_path(number), weights=np.frombuffer(weights, dtype=np.uint8))

    def weights(self, number: int) -> bytes | None:
        """What hospitals are given in round `number`; None: nothing is kept; DamagedFileError of it."""
        path = self.predictions_path(number)
        if not path.exists():
            return None
        damaged = "the weights that a round rests on are damaged, so it cannot go on"
        return _read_arrays(path, damaged, ("weights",))["weights"].tobytes()

    def remove_private(self) -> None:
        """Remove all that is private, at the study's end; OSError where it cannot be removed."""
        if self._private is not None and self._private.exists():
            shutil.rmtree(self._private)

    def _existing(self, name: str) -> Path | None:
        path = None if self._private is None else self._private / name
        return path if path is not None and path.exists() else None

    def _files(self, pattern: str) -> list[Path]:
        return [] if self._private is None else sorted(self._private.glob(pattern))

    def _write(self, name: str, content: bytes) -> None:
        if self._private is not None:
            write_private(self._made(self._private) / name, content)

    def _write_arrays(self, name: str, **arrays: Packed) -> None:
        if self._private is not None:
            write_arrays(self._made(self._private) / name, **arrays)

    def _made(self, folder: Path) -> Path:
        if not folder.exists():
            folder.mkdir(mode=0o700)  # not its parent: a run directory that is gone is not begun anew
            sync_folder(folder.parent)  # or a power cut takes the folder with all that is in it
        return folder


def _read_arrays(path: Path, damaged: str, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    try:
        held = load_arrays(path, most=None)
        return {name: held[name] for name in names}
    except (OSError, ValueError, KeyError) as error:
        raise DamagedFileError(f"{path}: {damaged}") from error

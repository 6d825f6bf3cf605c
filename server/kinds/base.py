"""What a coordinator does for one kind of question; all else it does for every kind alike (`server.run`).

A setup is what is fixed before the first message. A course has no memory of its own that another process
would lack: what is asked next follows from what was released, which is on the ledger or kept beside it.
"""

from __future__ import annotations

import io
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from pate_fed.config.backend import PROCESSES, Engine
from pate_fed.config.study import Study
from pate_fed.data import Dataset
from pate_fed.format import epsilon_json
from pate_fed.identity.bundle import StudentFacts, covered_by, pack_student
from pate_fed.kinds.make import make_terms, public_file
from pate_fed.kinds.terms import Terms
from pate_fed.learning import RIDGE, TABLE_STUDENTS
from pate_fed.privacy import Ledger, LedgerTerms, NoiseSource, noise_from_seed
from pate_fed.privacy.ledger.terms import guaranteed_epsilon
from pate_fed.protocol.messages import Question
from pate_fed.report.accuracy import Accuracy
from pate_fed.report.log import RunLog
from pate_fed.report.metrics import collect_versions
from pate_fed.report.result import LabelStudyRecord, PrivacyFigures, RunResult, Seconds, StudyRecord
from pate_fed.report.terminal import Progress
from pate_fed.runtime.run_dir import PRIVATE
from pate_fed.structure.parts import part_identity
from server.federation import AdmittedKeys
from server.learning import Learner, measure_student
from server.outcome import Audience
from server.release import Release
from server.state import CoordinatorState, Totals

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setup(ABC):
    """What is fixed of a study of any kind before the first message, and where its run is written.

    `engine` says how the hospitals run, and how long each has to answer. `text` is the run's study.toml,
    `reason` why it is as it is, where that was not the user's choice. `noise` is the coordinator's own.
    """

    terms: Terms
    run_dir: Path
    engine: Engine
    text: str
    reason: str = ""
    noise: NoiseSource

    @property
    def apart(self) -> bool:
        """Whether hospitals are processes of their own: only then is a study worth going on with."""
        return self.engine.backend == PROCESSES

    def private(self, *, resume: bool) -> Path | None:
        """The folder of what another coordinator process goes on from; None: it begins anew."""
        return self.run_dir / PRIVATE if self.apart else None

    def file(self) -> bytes:
        """The public file that every hospital gets with the terms; empty where it needs none."""
        return b""

    def pool(self) -> bytes:
        """The public inputs, for hospitals apart that read them; no label of theirs is in it."""
        return b""

    def bundle(
        self,
        figures: Figures,
        key: Ed25519PrivateKey,
        *,
        head: str,
        fixed: LedgerTerms,
        epsilon: float | None,
    ) -> bytes:
        """The student as every hospital gets it, signed with `key`, of a study whose ledger ends with `head`.

        `epsilon` is what it guarantees, None: no bound.

        Raises:
            InputError: it needs code of the user's own, or is too large.
        """
        terms, assumed = self.terms, fixed.assumptions
        facts = StudentFacts(
            study=terms.study,
            terms_digest=terms.digest,
            ledger_head=head,
            epsilon=epsilon_json(epsilon),
            delta=terms.delta,
            protects=fixed.protects,
            private=fixed.private,
            claimed=assumed.warning if assumed else "",
            hospitals=figures.hospitals,
            licence=terms.about.licence,
            purpose=terms.about.purpose,
            retention=terms.about.retention,
            classes=terms.classes,
            shape=terms.image_shape,
            table=terms.table,
            window=terms.window,
        )
        return pack_student(figures.student, facts, key, covered=self.covered())

    def covered(self) -> NDArray[np.float64] | None:
        """What of a table's columns the public inputs cover; None of images."""
        return None

    @abstractmethod
    def record(self, fixed: LedgerTerms) -> StudyRecord | LabelStudyRecord:
        """What is run, for the log; `fixed` is what the ledger begins with."""

    def add_metrics(self, metrics: dict[str, Any], result: RunResult, figures: Figures) -> None:
        """Put more of the kind's own into `metrics.json`."""

    def lines(self, figures: Figures) -> tuple[str, ...]:
        """What is printed before the outcome line."""
        return ()


def fixed_facts(fixed: LedgerTerms) -> dict[str, Any]:
    """What the log's record says of the ledger's terms, whatever is run under them."""
    return {
        "guaranteed": guaranteed_epsilon(fixed),
        "protects": fixed.protects,
        "noise": fixed.noise,
        "noise_private": fixed.private,
        "coordinator": fixed.coordinator.kind,
        "coordinator_sees": fixed.coordinator.text(),
        "versions": collect_versions(),
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudySetup(Setup):
    """That of a study.toml, with its data."""

    study: Study
    dataset: Dataset

    @classmethod
    def of(cls, study: Study, dataset: Dataset, run_dir: Path) -> StudySetup:
        """Of a resolved study."""
        return cls(
            study=study,
            dataset=dataset,
            terms=make_terms(study, dataset),
            run_dir=run_dir,
            engine=study.engine,
            text=study.to_toml(),
            reason=study.reason,
            noise=noise_from_seed(None if study.seed is None else study.seed_for("noise")),
        )

    def private(self, *, resume: bool) -> Path | None:
        """In a simulation what was asked is kept only where it goes on, with a student to learn."""
        return self.run_dir / PRIVATE if self.apart or resume else None

    def file(self) -> bytes:
        """An encoder or a feature map."""
        return public_file(self.study, self.dataset)

    def pool(self) -> bytes:
        """The public inputs as a .npy file."""
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(self.dataset.public_images), allow_pickle=False)
        return buffer.getvalue()

    def covered(self) -> NDArray[np.float64] | None:
        """Of the whole pool, of which nothing is a hospital's."""
        pool = self.dataset.public_images
        return None if self.terms.table is None else covered_by(np.asarray(pool, dtype=np.float64))

    def lines(self, figures: Figures) -> tuple[str, ...]:
        """Figures on hospitals' own records, where there are some."""
        own = figures.accuracy.own_records
        return () if own is None else (f"On hospitals' own records: {own.text}.",)

    @property
    def student_path(self) -> Path:
        """The student's file."""
        plain = self.study.student.name in (*TABLE_STUDENTS, RIDGE)
        return self.run_dir / ("student.npz" if plain else "student.pt")

    def record(self, fixed: LedgerTerms) -> StudyRecord:
        """The terms, and the facts that are no terms."""
        study = self.study
        return StudyRecord(
            terms=self.terms,
            dataset=study.data.dataset,
            queries=study.queries,
            student="" if study.aggregation.kind else study.student.name,
            student_as="" if study.student.said == study.student.name else study.student.said,
            student_part=None if study.student.code is None else part_identity(study.student.code, "student"),
            partition=study.parties.partition if self.dataset.owners is None else None,
            backend=study.engine.played_on,
            inputs="rows" if self.dataset.public_images.ndim == 2 else "images",
            test_size=self.terms.pool_size - self.dataset.num_queries,
            **fixed_facts(fixed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What a run works with: its state, the hospitals' keys where they have some, log, progress and stop.

    `gather` has hospitals' processes come, before they are asked; `audience` hears who takes part.
    """

    state: CoordinatorState
    keys: AdmittedKeys | None
    log: RunLog
    progress: Progress
    stop: threading.Event
    gather: Callable[[], None] = lambda: None
    audience: Audience = field(default_factory=lambda: Audience(None))


@dataclass(slots=True)
class Figures:
    """What a run came to so far, for its report.

    `cautions` are sentences on what released figures show. `student` is there once it is trained. `hospitals`
    are those that agreed or, once there is a sum, have a part in it. `asked` tells that an answer may have
    left one, `kept` that nobody was asked, as an earlier process had the sum.
    """

    accuracy: Accuracy = field(default_factory=Accuracy)
    seconds: Seconds = field(default_factory=Seconds)
    student: Any = None
    cautions: tuple[str, ...] = ()
    hospitals: int | None = None
    asked: bool = False
    kept: bool = False

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time that is spent inside to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = getattr(self.seconds, phase) or 0.0
            self.seconds = replace(self.seconds, **{phase: spent + time.perf_counter() - start})


class Course(ABC):
    """What is asked for one kind, released and learnt. `figures` fill on the way."""

    once = False  # whether a question that came to nothing ends the study, as hospitals answer it once
    lost = ""  # said then of what was asked and did not come

    def __init__(
        self, setup: Setup, ledger: Ledger, context: RunContext, figures: Figures, *, noise: NoiseSource
    ) -> None:
        self._terms, self._ledger, self._noise = setup.terms, ledger, noise
        self._state, self._log, self._progress = context.state, context.log, context.progress
        self.figures = figures

    def _question(self, number: int, index: Ints, *, measured: int = 0, given: bytes = b"") -> Question:
        return Question(
            terms_digest=self._terms.digest, batch=number, index=index, measured=measured, given=given
        )

    @abstractmethod
    def next_question(self, number: int) -> Question | None:
        """The next question, under a number that no other has; None ends them.

        It follows from what was released alone. It fits the budget, whatever the answers will be: a stop
        afterwards would tell something about them.

        Raises:
            BudgetError: what was asked before never came, and is not asked again.
        """

    @abstractmethod
    def task(self, question: Question) -> str:
        """What asking it is called on the terminal."""

    @abstractmethod
    def release(self, question: Question, totals: Totals) -> Release:
        """Draw the noise, in memory: nothing of it may be used, written or shown before it is charged.

        Raises:
            BudgetError: it would pass the budget; nothing is released.
            ReleaseFailedError: a mechanism that is none of ours fails; it is charged then (`void`).
            IntegrityError: what an earlier process kept is gone or damaged; nothing is charged for that.
        """

    @abstractmethod
    def void(self, question: Question) -> Release:
        """What a question is charged as that was asked and gave nothing: answers may be on their way."""

    def released(self, question: Question, totals: Totals) -> None:
        """Note exact totals of a release that is on the ledger, for figures after the fact."""

    def measured(self, totals: Totals) -> None:
        """Take totals of test inputs, of which nothing is released."""

    @abstractmethod
    def measure(self) -> None:
        """Accuracy of what was released, where the public inputs' true labels are known."""

    @abstractmethod
    def learn(self) -> None:
        """Train the student on what was released, and test it.

        Raises:
            InputError: there is nothing to learn from.
            Stopped: the user asked to stop.
        """

    def keep_for_learning(self, state: CoordinatorState) -> None:
        """Keep what a student learns from beside the ledger, where a study kept nothing so far."""

    def private_figures(self, privacy: PrivacyFigures, *, complete: bool) -> PrivacyFigures:
        """The same with figures that follow from exact totals; `complete`: the study came to its end."""
        return privacy

    def more_labels(self) -> dict[str, Ints]:
        """Columns of `labels.npz` beyond index, answered and label, each int64 (asked,)."""
        return {}

    def log_spending(self) -> None:
        """Write how ε grew along the run, where there is more than one release."""


class StudyCourse(Course):
    """A course with a student of a study.toml."""

    def __init__(
        self, setup: StudySetup, ledger: Ledger, context: RunContext, figures: Figures, *, noise: NoiseSource
    ) -> None:
        super().__init__(setup, ledger, context, figures, noise=noise)
        self._setup, self._study, self._dataset = setup, setup.study, setup.dataset
        self._learner = Learner(setup.study, setup.dataset, context, path=setup.student_path)

    def _measure_student(
        self,
        student: Any,
        *,
        asked: Ints,
        index: Ints,
        label: Ints,
        probabilities: NDArray[np.float32] | None = None,
    ) -> None:
        """The student's accuracy by the rule of `server.learning`.

        `asked` are the places of whose inputs it may know a label; it learnt from `label` of `index`, all
        int64 (n,), or their `probabilities` (n, classes).
        """
        tested = measure_student(
            self._study,
            self._dataset,
            asked=asked,
            predict=student.predict,
            predict_proba=student.predict_proba,
            predict_left_out=lambda parts: self._learner.predict_left_out(index, label, parts, probabilities),
        )
        self.figures.accuracy = self.figures.accuracy.with_student(tested)

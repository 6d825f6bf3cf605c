"""A finished run as a value: its figures, labels, student, ledger and report, read from its directory."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.data import load_study_data
from pate_fed.config.study import read_study
from pate_fed.disk import load_arrays
from pate_fed.errors import InputError, IntegrityError, naming_extras
from pate_fed.format import delta_text, epsilon_text
from pate_fed.privacy.ledger.report import LedgerReport, verify
from pate_fed.report.log import read_result
from pate_fed.report.metrics import make_metrics
from pate_fed.report.result import RunResult, StudyRecord
from pate_fed.structure.parts import full_name, load_part, part_identity, require_same_part

if TYPE_CHECKING:
    from pate_fed.kinds.terms import Terms
    from pate_fed.learning.students.own import FittedStudent
    from pate_fed.learning.students.student import Student

_NEAR = 1e-4  # of probabilities that a student gives again


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """What was released: which public inputs were asked about, which were answered, and with which class.

    Shapes: `index` int64 (asked,), `answered` bool (asked,), `label` int64 (asked,), -1 where not answered.
    """

    index: NDArray[np.int64]
    answered: NDArray[np.bool_]
    label: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.answered.sum())

    def __repr__(self) -> str:
        return f"Labels({len(self)} of {len(self.index)} answered)"


@dataclass(frozen=True, slots=True)
class Report:
    """A run's report.html; a notebook shows it."""

    path: Path

    def _repr_html_(self) -> str:
        page = base64.b64encode(self.path.read_bytes()).decode("ascii")
        return (
            f'<iframe src="data:text/html;base64,{page}" title="report" sandbox '
            'style="width:100%;height:80vh;border:0"></iframe>'
        )


@dataclass(frozen=True)
class Run:
    """A run's directory, read when it is asked for: `Run.load(path)`.

    Figures are those of `metrics.json`; an ε without a bound is None. What is computed from private votes
    stands under names with `do_not_publish` there.
    """

    path: Path

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """The run in a directory, also one that was cut off.

        Raises:
            InputError: it holds no run.
            IntegrityError: its log is damaged.
        """
        run = cls(Path(path))
        _ = run.result
        return run

    def __repr__(self) -> str:
        outcome, study = self.result.outcome, self.result.study
        noise = "" if study.noise_private else ", not private: seeded noise"
        claimed = f" ({study.assumptions.short})" if study.assumptions else ""
        return (
            f"Run({str(self.path)!r}, {outcome.status}, ε={epsilon_text(self.epsilon)} "
            f"δ={delta_text(study.terms.delta)}{claimed}, student {outcome.accuracy.student_text}{noise})"
        )

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    @cached_property
    def result(self) -> RunResult:
        """Everything that was logged, typed."""
        return read_result(self.path)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The content of `metrics.json`."""
        return make_metrics(self.result)

    @property
    def epsilon(self) -> float | None:
        """ε of what is published, data-independent, at the study's δ; rounded up."""
        found: float | None = self.metrics["privacy"]["student"]["data_independent"]
        return found

    @property
    def delta(self) -> float:
        """The study's δ."""
        return float(self.result.study.terms.delta)

    @cached_property
    def labels(self) -> Labels:
        """The released labels.

        Raises:
            InputError: the run ended before it released any.
        """
        path = self.path / "labels.npz"
        try:
            held = load_arrays(path)
            return Labels(held["index"], held["answered"], held["label"])
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path}: holds no labels of a study with votes") from error

    @cached_property
    def ledger(self) -> LedgerReport:
        """The ledger, with its chain checked and every ε computed again.

        Raises:
            InputError: the run has none yet.
            IntegrityError: it is not as it was written.
        """
        return verify(self.path / "ledger.sqlite")

    @property
    def report(self) -> Report:
        """The run's report."""
        return Report(self.path / "report.html")

    @cached_property
    def student(self) -> Any:
        """The trained student, with `predict(inputs)` and `predict_proba(inputs)`.

        Inputs are uint8 images (n, H, W, C), or a table's rows as float64 (n, inputs). One that is code of
        the user's own is there on what `simulate` gave; of a run that was read again `student_from` gives it.

        Raises:
            InputError: the run has none, its code is the user's own, or it needs torch, which is not here.
            IntegrityError: its file is damaged.
        """
        if (table := self.path / "student.npz").is_file():
            from pate_fed.learning.students.class_sums import SumsStudent, holds_sums
            from pate_fed.learning.teachers.forests import Forest

            return SumsStudent.load(table) if holds_sums(table) else Forest.load(table)
        if (kept := self.path / "predictions.npz").is_file():
            raise InputError(
                f"{kept}: all that is kept of {self.result.study.student}, which is code of the user's own; "
                "the run that `simulate` gave has the student itself, and student_from(CODE) makes it again"
            )
        with naming_extras("this student"):
            from pate_fed.learning.students.student import Student

        return Student.load(self.path / "student.pt")

    def student_from(self, part: Any) -> Any:
        """The student that is code of the user's own: `part` is it, or its name, module:attribute.

        A run's files may be anybody's, so whoever runs the code says which. A network gets the weights in
        `student.pt`. Anything else learns again from the released labels and the study's public inputs, and
        is held against `predictions.npz`.

        Raises:
            InputError: the run's student is another, the code fails or learns something else, or the public
                inputs are not there any more.
            IntegrityError: the source of the named code is not the one that ran, or a file is damaged.
        """
        with naming_extras("this student"):
            return _own_student(self, part)


def _own_student(run: Run, part: Any) -> Student | FittedStudent:
    """As `Run.student_from`; an estimator has no file that is safe to read, so it learns again."""
    from pate_fed.learning.students.own import PREDICTIONS
    from pate_fed.learning.teachers.own import is_network, make_own

    study, named = run.result.study, isinstance(part, str)
    known = study.student_part
    name = study.student if known is None else known.name
    if not isinstance(study, StudyRecord) or (named and full_name(part, "student") != name):
        raise InputError(f"student {part!r}: the student of {run.path} is {name}")
    if named and known is not None:
        require_same_part(part_identity(part, "student"), known)
    what, classes = f"student {name!r}", study.terms.num_classes
    code = load_part(part, "student") if named else part
    shape, make = study.terms.image_shape, partial(make_own, code, what=what, num_classes=classes)
    if len(shape) > 1 and is_network(network := make(input_shape=shape)):
        from pate_fed.learning.students.student import Student

        return Student.load(run.path / "student.pt", network=network)
    if not (run.path / PREDICTIONS).is_file():
        raise InputError(f"{what}: fits, and the one of {run.path} is a network, whose weights are kept")
    return _learnt_again(run, study.terms, make, what)


def _learnt_again(run: Run, terms: Terms, make: Callable[..., Any], what: str) -> FittedStudent:
    from pate_fed.learning.students.own import PREDICTIONS, fit_own_student

    study = read_study(run.path / "study.toml").resolve()
    dataset = load_study_data(study)
    if dataset.pool_digest != terms.pool_digest:
        raise InputError(f"{run.path / 'study.toml'}: its public inputs are not those of the run any more")
    made = make(input_shape=dataset.input_shape, rows=dataset.public_images.ndim == 2)
    if terms.words.made_of and "probabilities" in inspect.signature(made.fit).parameters:
        raise InputError(
            f"{what}: learnt from probabilities that the noisy sums gave, which no file keeps; the run that "
            "`simulate` gave has the student itself"
        )
    answered = run.labels.answered
    student = fit_own_student(
        made,
        dataset.public_images[: dataset.num_queries],
        run.labels.index[answered],
        run.labels.label[answered],
        what=what,
        num_classes=terms.num_classes,
        seed=study.seed_for("student"),
    )
    student.kept = _kept(run.path / PREDICTIONS)
    found = student.predict_proba(dataset.public_images)
    if found.shape != student.kept.shape or not np.allclose(found, student.kept, atol=_NEAR):
        raise InputError(
            f"{what}: learns something else from the same labels than in the run: is it another version of "
            "its library, or does something in it follow from no seed (random_state)?"
        )
    return student


def _kept(path: Path) -> Any:
    try:
        return load_arrays(path)["probabilities"]
    except (OSError, ValueError, KeyError) as error:
        raise IntegrityError(f"{path}: damaged") from error

"""A finished run as a value: its figures, labels, student, ledger and report, read from its directory."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError, naming_extras
from pate_fed.format import delta_text, epsilon_text
from pate_fed.privacy.ledger.report import LedgerReport, verify
from pate_fed.report.log import read_result
from pate_fed.report.metrics import make_metrics
from pate_fed.report.result import RunResult


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

    def to_frame(self) -> Any:
        """A pandas data frame with these columns.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError("a data frame needs pandas: pip install pandas") from error
        return pandas.DataFrame({"index": self.index, "answered": self.answered, "label": self.label})


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
            with np.load(path, allow_pickle=False) as held:
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
        from pate_fed.report.own_student import own_student

        with naming_extras("this student"):
            return own_student(self, part)

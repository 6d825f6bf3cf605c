"""How often a run's labels and its student are right: shares, their numbers and intervals, recall by class.

Everything of labels and student follows from released labels and the public inputs' true classes, so it costs
no privacy; `teacher_mean` and `ensemble` come from private votes. Shares are from 0 to 1; None is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Schema
from pate_fed.format import FEW_TRIALS, accuracy_text, counted, interval_text, share_text, wilson_interval
from pate_fed.report.labels import LabelFigures, own_parts
from pate_fed.report.own_records import OwnRecords
from pate_fed.report.ranking import CalibrationLine, Ranking, Subgroup, by_class, spread_of, subgroups
from pate_fed.report.targets import TargetFigures

_BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A reliability diagram, and the same for each class as a whole.

    `bins` go by the probability of the class that the student named, in tenths: inputs, right ones, and the
    mean probability. `by_class` has for each class the sum of its probabilities, and the inputs of it.
    """

    bins: tuple[tuple[int, int, float], ...] = ()
    by_class: tuple[tuple[float, int], ...] = ()

    @classmethod
    def of(cls, probabilities: NDArray[Any], truth: NDArray[np.int64]) -> Calibration | None:
        """Of probabilities float (n, classes) and true classes int64 (n,), -1 where unknown.

        None where nothing is known, or where the student tells classes alone, as all is certain to it.
        """
        shares, truth = np.asarray(probabilities, dtype=np.float64)[truth >= 0], truth[truth >= 0]
        if not len(truth) or (shares.max(axis=1) == 1.0).all():
            return None
        named, top = shares.argmax(axis=1), shares.max(axis=1)
        place = np.minimum((top * _BINS).astype(np.int64), _BINS - 1)
        inside = [place == number for number in range(_BINS)]
        return cls(
            bins=tuple(
                (int(here.sum()), int((named == truth)[here].sum()), round(float(top[here].mean()), 6))
                for here in inside
                if here.any()
            ),
            by_class=tuple(
                (round(float(total), 3), int(count))
                for total, count in zip(
                    shares.sum(axis=0), np.bincount(truth, minlength=shares.shape[1]), strict=True
                )
            ),
        )

    @property
    def count(self) -> int:
        """Test inputs behind it."""
        return sum(count for count, _, _ in self.bins)

    @property
    def error(self) -> float:
        """The expected calibration error (Naeini et al. 2015, AAAI), in ten bins."""
        return sum(abs(right - count * mean) for count, right, mean in self.bins) / max(self.count, 1)

    @property
    def sure_of(self) -> str:
        """What it is sure of on average, beside what it gets right, in words."""
        sure = sum(count * mean for count, _, mean in self.bins) / max(self.count, 1)
        right = sum(right for _, right, _ in self.bins) / max(self.count, 1)
        return (
            f"On average it is {share_text(sure, self.count)} sure of its answer and right in "
            f"{share_text(right, self.count)}"
        )


Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """By how much one model is better than another on the same inputs, with its paired 95 % interval.

    Of two classes in AUC (DeLong et al. 1988), of more, or without probabilities, in balanced accuracy.
    """

    what: str
    by: float
    interval: tuple[float, float]

    @classmethod
    def of(cls, one: NDArray[Any], other: NDArray[Any], truth: Ints, *, ranked: bool) -> Difference:
        """Of both models' probabilities, float (n, classes), of inputs of known classes int64 (n,)."""
        if ranked:
            both = (own_parts(*by_class(each, truth)) for each in (one, other))
            parts = [first - second for first, second in zip(*both, strict=True)]
            what, by, spread = "AUC", float(parts[0].mean()), spread_of(parts)
        else:
            right = [(each.argmax(axis=1) == truth).astype(np.float64) for each in (one, other)]
            parts = [(right[0] - right[1])[truth == each] for each in np.unique(truth)]
            what, by = "balanced accuracy", fmean(float(each.mean()) for each in parts)
            spread = spread_of(parts) / len(parts) ** 2
        far = 1.96 * math.sqrt(spread) if spread else 3 / len(truth)  # none differs: the rule of three
        return cls(what=what, by=by, interval=(by - far, by + far))


_SEEN_OFTEN = 10  # test inputs of a class: fewer may all be missed by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class HowTested:
    """How many public inputs tested the student, by how: each is tested once, and has a true label.

    `kept` are of the part that is never asked about, `not_asked` others that were not, both tested with the
    published student; `left_out` were asked about and tested with students that had not learnt from their
    labels (cross-validation in `splits` parts). Of `seen_unlabelled` the student had seen the input alone.
    """

    kept: int = 0
    not_asked: int = 0
    left_out: int = 0
    splits: int = 0
    seen_unlabelled: int = 0


@dataclass(frozen=True, slots=True)
class Recall:
    """Of the test inputs of one class, how many the student called so."""

    number: int
    right: int
    count: int

    @property
    def share(self) -> float:
        """The recall: the class's own accuracy."""
        return self.right / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of it."""
        return wilson_interval(self.share, self.count)

    @property
    def text(self) -> str:
        """It in words, with its number and interval."""
        return accuracy_text(self.share, self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Shares of right answers. `teacher_mean` and `ensemble` come from private votes on `votes_n` inputs.

    `labels` are those of `labels_n` answered queries, `student` was measured on `student_n` public inputs;
    `labels_majority`, `majority` and `votes_majority` are the shares of the most frequent class among either,
    which whoever always says it gets right. `by_class` are, for each class, how many test inputs of it the
    student got right, and of how many; `tested` says which inputs these were. `calibration`, `groups` and, of
    two classes, `ranking` and `line` are of those that the published student itself was tested on; its
    probabilities and a table's rows tell them. `own_records` are of
    noisy counts of hospitals' own. Of a target, a number, no answer is right, and there is `target` alone;
    of several labels `by_label` alone.
    """

    teacher_mean: float | None = None
    ensemble: float | None = None
    votes_n: int | None = None
    votes_majority: float | None = None
    labels: float | None = None
    labels_n: int | None = None
    labels_majority: float | None = None
    student: float | None = None
    student_n: int | None = None
    majority: float | None = None
    by_class: tuple[tuple[int, int], ...] = ()
    tested: HowTested = field(default_factory=HowTested)
    calibration: Calibration | None = None
    ranking: Ranking | None = None
    line: CalibrationLine | None = None
    groups: tuple[Subgroup, ...] = ()
    own_records: OwnRecords | None = None
    target: TargetFigures | None = None
    by_label: LabelFigures | None = None

    @classmethod
    def of_student(cls, found: Ints, truth: Ints, *, tested: HowTested | None = None) -> Accuracy:
        """A student's, from its classes and the true ones, both int64 (n,); -1 does not count.

        Without `tested` all inputs are kept ones. Nothing is known where no input counts.
        """
        known = (truth >= 0) & (found >= 0)
        found, truth = found[known], truth[known]
        if not len(truth):
            return cls()
        counts = np.bincount(truth)
        right = np.bincount(truth[found == truth], minlength=len(counts))
        return cls(
            student=float(np.mean(found == truth)),
            student_n=len(truth),
            majority=float(counts.max() / len(truth)),
            by_class=tuple((int(hit), int(count)) for hit, count in zip(right, counts, strict=True)),
            tested=HowTested(kept=len(truth)) if tested is None else tested,
        )

    @classmethod
    def of_probabilities(cls, shares: NDArray[Any], truth: Ints) -> Accuracy:
        """The same from probabilities, float (n, classes), of kept inputs, and what these tell besides."""
        found = cls.of_student(np.asarray(shares.argmax(axis=1), dtype=np.int64), truth)
        return found.with_probabilities(shares, truth)

    def with_probabilities(
        self, shares: NDArray[Any], truth: Ints, rows: NDArray[Any] | None = None, table: Schema | None = None
    ) -> Accuracy:
        """The same with what probabilities, float (n, classes), tell; of a table also by `rows`."""
        return replace(
            self,
            calibration=(sure := Calibration.of(shares, truth)),
            ranking=Ranking.of(shares, truth),
            line=None if sure is None else CalibrationLine.of(shares, truth),
            groups=() if rows is None or table is None else subgroups(shares, truth, rows, table),
        )

    def with_student(self, other: Accuracy) -> Accuracy:
        """The same with what another says of the student."""
        return replace(
            self,
            student=other.student,
            student_n=other.student_n,
            majority=other.majority,
            by_class=other.by_class,
            tested=other.tested,
            calibration=other.calibration,
            ranking=other.ranking,
            line=other.line,
            groups=other.groups,
            target=other.target,
            by_label=other.by_label,
        )

    @property
    def no_class(self) -> TargetFigures | LabelFigures | None:
        """Figures of the student where it tells no class."""
        return self.target or self.by_label

    @property
    def student_interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval of `student`; None where it is not known."""
        return _interval(self.student, self.student_n)

    @property
    def labels_interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval of `labels`; None where it is not known."""
        return _interval(self.labels, self.labels_n)

    @property
    def ensemble_interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval of `ensemble`; None where it is not known."""
        return _interval(self.ensemble, self.votes_n)

    @property
    def recall(self) -> tuple[Recall, ...]:
        """The student's recall of every class that is among its test inputs."""
        pairs = enumerate(self.by_class)
        return tuple(Recall(number, right, count) for number, (right, count) in pairs if count)

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean recall of the classes that are among the test inputs; None where it is not known."""
        recall = self.recall
        return fmean(each.share for each in recall) if recall else None

    @property
    def balanced_interval(self) -> tuple[float, float] | None:
        """A 95 % interval of the balanced accuracy: MOVER of Wilson's (Zou and Donner 2008, Stat. Med.)."""
        recall, middle = self.recall, self.balanced_accuracy
        if middle is None:
            return None
        down = math.hypot(*(each.share - each.interval[0] for each in recall)) / len(recall)
        up = math.hypot(*(each.interval[1] - each.share for each in recall)) / len(recall)
        return max(0.0, middle - down), min(1.0, middle + up)

    @property
    def student_text(self) -> str:
        """The student's accuracy in words, with number, interval and the majority's share; "-" if unknown."""
        if self.no_class is not None:
            return self.no_class.text
        return accuracy_text(self.student, self.student_n, majority=self.majority)

    @property
    def votes_text(self) -> str:
        """Teachers' and ensemble's in words; several teachers of the same inputs have no interval."""
        ensemble = accuracy_text(self.ensemble, self.votes_n, majority=self.votes_majority)
        return f"teachers {share_text(self.teacher_mean, self.votes_n)}, ensemble {ensemble}"

    @property
    def balanced_text(self) -> str:
        """The balanced accuracy in words, with its interval; "-" where it is not known."""
        if self.balanced_interval is None:
            return "-"
        # A mean of recalls is as fine as the class that was tested least.
        fewest = min(each.count for each in self.recall)
        ends = interval_text(self.balanced_interval, fewest)
        return f"{share_text(self.balanced_accuracy, fewest)} ({ends})"

    @property
    def weakest(self) -> Recall | None:
        """The class of the least recall, the most frequent among equals; None where nothing is known."""
        return min(self.recall, key=lambda each: (each.share, -each.count), default=None)

    def how_tested(self, inputs: str, *, made_of: str = "") -> str:
        """Which public `inputs` tested the student, in sentences; empty where none is known to have.

        Where their labels are `made_of` something else nobody is asked about an input.
        """
        asked, not_asked = "that were asked about", "that were not asked about"
        if made_of:
            asked = not_asked = f"whose labels were made of {made_of}"
        tested, parts = self.tested, list[str]()
        if tested.kept:
            parts.append(f"{tested.kept:,} that are kept for it")
        if tested.not_asked:
            parts.append(f"{tested.not_asked:,} {not_asked}")
        if tested.left_out:
            parts.append(
                f"{tested.left_out:,} {asked}, each by a student that had not learnt from its label "
                f"(cross-validation in {tested.splits} parts)"
            )
        if not parts:
            return ""
        seen = tested.seen_unlabelled
        note = f" Of {seen:,} it had seen the input, without a label." if seen else ""
        return f"Tested on public {inputs}: {', '.join(parts)}.{note}"

    def warnings(self, name: Callable[[int], str] = str) -> list[str]:
        """Why the student's figure says little, a sentence each; `name` gives a class's name."""
        interval = self.student_interval
        if self.no_class is not None:
            return self.no_class.warnings
        if self.student is None or interval is None or not self.student_n:
            return []
        found: list[str] = []
        if self.majority == 1.0:
            found.append("All test inputs are of one class: how often another is taken for it is not known.")
        elif self.majority is not None and interval[0] <= self.majority:
            guess = share_text(self.majority, self.student_n)
            always = f"always saying the most frequent class is right in {guess}"
            balanced = self.balanced_interval
            if self.student <= self.majority and balanced and balanced[0] > 1 / len(self.recall):
                found.append(
                    f"{always[0].upper()}{always[1:]} of the test inputs, and finds none of the others; the "
                    f"student's balanced accuracy is {self.balanced_text}."
                )
            elif self.student <= self.majority:
                found.append(f"The student is no better than a guess: {always} of the test inputs.")
            else:
                found.append(
                    f"The student may be no better than a guess: {always} of the test inputs, and its own "
                    f"interval begins at {share_text(interval[0], self.student_n)}."
                )
        if self.student_n < FEW_TRIALS:
            tested = counted(self.student_n, "test input")
            found.append(
                f"The student was tested on {tested} only: {FEW_TRIALS} or more give a figure to rely on."
            )
        missed = [each for each in self.recall if not each.right and each.count >= _SEEN_OFTEN]
        if missed and len(self.recall) > 1:
            shown = ", ".join(f"{name(each.number)} ({each.count:,})" for each in missed[:5])
            more = f" and {len(missed) - 5} more" if len(missed) > 5 else ""
            found.append(f"The student finds none of the test inputs of {shown}{more}.")
        return found


def _interval(share: float | None, count: int | None) -> tuple[float, float] | None:
    if share is None or not math.isfinite(share) or not count:
        return None
    return wilson_interval(share, count)

"""How right a student is on files with true labels, beside its answers; what taught it does not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import pool_digest
from pate_fed.data.pictures import DICOM_SUFFIXES, PICTURE_SUFFIXES, read_arrays
from pate_fed.data.schema import TARGET_STEPS
from pate_fed.errors import InputError, PateFedError
from pate_fed.format import printable
from pate_fed.runtime.run_dir import LOG_NAME

if TYPE_CHECKING:
    from pate_fed.report.accuracy import Accuracy

UNKNOWN = -1


class AccuracyTally:
    """Gathers a student's classes and the true ones, file by file; `names` are its classes'.

    With a `target_range` they are numbers and, of true ones, places in it (`Schema.target_place`). With
    `labels` they are probabilities of each, and true ones are bits.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        target_range: tuple[float, float] | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        self._names, self._ends, self._labels = names, target_range, labels
        self._found: list[NDArray[Any]] = []
        self._truth: list[NDArray[Any]] = []
        self._left_out = 0

    def add(self, found: Sequence[Any], truth: NDArray[np.int64], taught: NDArray[np.int64]) -> None:
        """One file's classes and the true ones, int64 (n,), -1 where unknown; `taught` are places in it."""
        truth = truth.copy()
        if self._ends is not None:  # of numbers, which taught nothing here
            low, high = self._ends
            self._found.append(np.array(found)[truth != UNKNOWN])
            self._truth.append(low + (high - low) * truth[truth != UNKNOWN] / TARGET_STEPS)
            return
        if self._labels:
            self._found.append(np.array(found, dtype=np.float64).reshape(-1, len(self._labels)))
            self._truth.append(truth)
            return
        asked = np.isin(np.arange(len(truth)), taught) & (truth != UNKNOWN)
        self._left_out += int(asked.sum())
        truth[asked] = UNKNOWN
        self._found.append(np.array(found, dtype=np.int64))
        self._truth.append(truth)

    def lines(self) -> list[str]:
        """In words; none where no true label was there."""
        accuracy = self._accuracy()
        what = "by label" if self._labels else "off by"
        found = [] if accuracy.no_class is None else [f"{what}: {accuracy.no_class.text}"]
        if accuracy.student is not None:
            found.append(f"accuracy: {accuracy.student_text}")
        weakest = accuracy.weakest
        if weakest is not None and len(accuracy.recall) > 1:
            least = f"least recall: {self._name(weakest.number)}, {weakest.text}"
            found.append(f"balanced accuracy: {accuracy.balanced_text}; {least}")
        if self._left_out:
            found.append(
                f"left out of it: {self._left_out:,} that the student's study asked about, as their labels "
                "taught it"
            )
        return [*found, *(f"warning: {text}" for text in accuracy.warnings(self._name))]

    def to_dict(self) -> dict[str, Any]:
        """As values, by the names of metrics.json; empty where no true label was there."""
        accuracy = self._accuracy()
        if accuracy.no_class is not None:
            return asdict(accuracy.no_class)
        if accuracy.student is None:
            return {"left_out": self._left_out} if self._left_out else {}
        return {
            "accuracy": round(accuracy.student, 6),
            "n": accuracy.student_n,
            "interval": _rounded(accuracy.student_interval),
            "majority": round(accuracy.majority or 0.0, 6),
            "balanced_accuracy": round(accuracy.balanced_accuracy or 0.0, 6),
            "balanced_accuracy_interval": _rounded(accuracy.balanced_interval),
            "recall": {
                self._name(each.number): {
                    "recall": round(each.share, 6),
                    "n": each.count,
                    "interval": _rounded(each.interval),
                }
                for each in accuracy.recall
            },
            "left_out": self._left_out,
        }

    def _accuracy(self) -> Accuracy:
        from pate_fed.report.accuracy import Accuracy
        from pate_fed.report.labels import LabelFigures
        from pate_fed.report.targets import TargetFigures

        none = np.empty((0, len(self._labels)) if self._labels else 0, dtype=np.int64)
        found, truth = np.concatenate([none, *self._found]), np.concatenate([*self._truth, none.ravel()])
        if self._ends is not None:
            return Accuracy(target=TargetFigures.of(found, truth, self._ends))
        if self._labels:
            return Accuracy(by_label=LabelFigures.of(found, truth, self._labels))
        return Accuracy.of_student(found, truth)

    def _name(self, number: int) -> str:
        return printable(self._names[number], "?") if number < len(self._names) else str(number)


def _rounded(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [round(end, 6) for end in interval]


def true_labels(path: Path, count: int, num_classes: int, *, names: Sequence[str]) -> NDArray[np.int64]:
    """True classes of a file's `count` images: `y` of an .npz, or the class that a picture's folder is named.

    int64 (count,), -1 where none is told.
    """
    if path.suffix == ".npz":
        labels = read_arrays(path).get("y")
        if labels is not None and labels.shape == (count,) and labels.dtype.kind in "iu":
            if labels.min() < UNKNOWN or labels.max() >= num_classes:
                raise InputError(f"{path}: y holds {labels.max()}: classes 0 to {num_classes - 1} are meant")
            return labels.astype(np.int64)
    folder = path.absolute().parent.name
    of_folder = path.suffix.lower() in PICTURE_SUFFIXES + DICOM_SUFFIXES and list(names).count(folder) == 1
    return np.full(count, list(names).index(folder) if of_folder else UNKNOWN, dtype=np.int64)


def taught_places(
    student: Path, inputs: NDArray[Any], known: dict[Path, tuple[str, Any]], *, by_labels: bool
) -> NDArray[np.int64]:
    """Places of the inputs that the student's study asked about, where they are its very pool; else none.

    The run directory around the student says so; `known` keeps what was found there. Without `by_labels`, as
    of the ridge of class sums, no label taught it, so of its pool there is none.
    """
    run_dir, none = student.parent, np.empty(0, dtype=np.int64)
    if run_dir not in known:
        known[run_dir] = _asked_of(run_dir) if by_labels else ("", ())
    digest, asked = known[run_dir]
    if not digest or (inputs.dtype.name, inputs.ndim) not in (("uint8", 4), ("float64", 2)):
        return none
    return np.asarray(asked) if pool_digest(inputs) == digest else none


def _asked_of(run_dir: Path) -> tuple[str, Any]:
    """The pool's digest and the places in it that were asked about; empty where no run left them."""
    from pate_fed.report.log import read_result

    labels = run_dir / "labels.npz"
    if not labels.is_file() or not (run_dir / LOG_NAME).is_file():
        return "", ()
    try:
        arrays: Mapping[str, Any] = read_arrays(labels)
        return read_result(run_dir).study.terms.pool_digest, arrays.get("index", ())
    except PateFedError:
        return "", ()  # a student tells its answers all the same

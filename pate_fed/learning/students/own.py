"""Students of the user's own: any network that a factory makes, any object that fits.

A part is one of
- `make(input_shape, num_classes) -> torch.nn.Module`, as of teachers (`pate_fed.learning.teachers.own`);
  `train_student`'s loop trains it on the released labels, as it does "supervised". On other arrays than
  images it learns as a teacher does.
- an object with `fit` and `predict` (and `predict_proba`, if it has one), a class that gives one without
  arguments, or a factory as above. `fit(x, y)` gets the labelled public inputs and their labels alone;
  `fit(x_public, index, labels)`, with these names of the last two, gets all that may be asked about, int64
  places (m,) and their labels (m,). Inputs are float64 rows, as teachers get them. Either `fit` may take
  `probabilities=None` beside: where labels come of class sums it gets float64 (m, classes), one row for each
  label, whose greatest is the label's.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import write_arrays
from pate_fed.errors import InputError
from pate_fed.learning.teachers import own as teachers
from pate_fed.structure.faults import telling

PREDICTIONS = "predictions.npz"

Inputs = NDArray[Any]
Ints = NDArray[np.int64]

_TRIED = 24
_SUM = 1e-3  # by which probabilities may miss 1


class FittedStudent(teachers.FittedTeacher):
    """An estimator that has learnt from released labels.

    What others wrote has no file that is safe to read, so `save` keeps its probabilities of the public
    inputs, float32 (public, classes), as `predictions.npz`.
    """

    def __init__(self, estimator: Any, *, what: str, num_classes: int) -> None:
        super().__init__(estimator, what=what, num_classes=num_classes)
        self.kept = np.empty((0, num_classes), dtype=np.float32)  # probabilities that `save` writes

    def predict_proba(self, inputs: Inputs) -> NDArray[np.float32]:
        """Probabilities float32 (n, classes); of a part that tells classes alone, 1 for the class.

        Raises:
            InputError: the part fails, or gives no probabilities.
        """
        asked = getattr(self.estimator, "predict_proba", None)
        if asked is None:
            return np.eye(self._num_classes, dtype=np.float32)[self.predict(inputs)]
        with telling(f"{self._what}: predict_proba fails"):
            given = np.asarray(asked(teachers.flat_rows(inputs)), dtype=np.float64)
        known = self._known_classes(given)
        whole = given.ndim == 2 and given.shape == (len(inputs), len(known))
        if not whole or not (np.isfinite(given).all() and (given >= 0).all()):
            raise InputError(
                f"{self._what}: predict_proba gives {given.shape} for {len(inputs)} inputs; probabilities "
                f"{(len(inputs), self._num_classes)}, none of them NaN or below 0, are meant"
            )
        if (np.abs(given.sum(axis=1) - 1) > _SUM).any():
            raise InputError(f"{self._what}: predict_proba gives rows that do not sum to 1")
        found = np.zeros((len(inputs), self._num_classes), dtype=np.float32)
        found[:, known] = given
        return found

    def save(self, path: Path) -> None:
        """Keep what it told of the public inputs, beside `path`.

        Raises:
            InputError: the folder cannot be written to.
        """
        write_arrays(path.with_name(PREDICTIONS), probabilities=self.kept)

    def _known_classes(self, given: NDArray[np.float64]) -> Ints:
        """The classes of the columns: scikit-learn leaves out those that no label named."""
        every = np.arange(self._num_classes, dtype=np.int64)
        known = getattr(self.estimator, "classes_", None)
        if known is None or given.shape[-1:] == (self._num_classes,):
            return every
        return teachers.classes_of(known, len(known), what=self._what, num_classes=self._num_classes)


def fit_own_student(
    estimator: Any,
    public: Inputs,
    index: Ints,
    labels: Ints,
    *,
    what: str,
    num_classes: int,
    seed: int,
    probabilities: NDArray[Any] | None = None,
) -> FittedStudent:
    """Fit a fresh estimator to labels of some public inputs, int64 places and classes (m,).

    Their probabilities, float (m, classes), go along where `fit` takes them.

    Raises:
        InputError: the part fails.
    """
    try:
        wanted = set(inspect.signature(estimator.fit).parameters)
    except (TypeError, ValueError):  # of compiled code
        wanted = set()
    beside: dict[str, Any] = {}
    if probabilities is not None and "probabilities" in wanted:
        beside = {"probabilities": np.asarray(probabilities, dtype=np.float64)}
    everything = {"index", "labels"} <= wanted
    if not everything and not beside:
        learnt = teachers.fit_own_teacher(
            estimator, public[index], labels, what=what, num_classes=num_classes, seed=seed
        )
        return FittedStudent(learnt.estimator, what=what, num_classes=num_classes)
    with telling(f"{what}: fit fails"), teachers.seeded_fit(estimator, seed):
        if everything:
            estimator.fit(teachers.flat_rows(public), index=index, labels=labels, **beside)
        else:
            estimator.fit(teachers.flat_rows(public[index]), labels, **beside)
    return FittedStudent(estimator, what=what, num_classes=num_classes)


def try_own_student(
    part: Any,
    inputs: Inputs,
    *,
    what: str,
    num_classes: int,
    with_probabilities: bool = False,
    network: bool = False,
    shape: tuple[int, ...] | None = None,
) -> None:
    """Make, fit and ask a part once on public inputs with made-up classes, before any vote is asked for.

    `with_probabilities` says that labels will come with them, as class sums give them. With `network` only
    one of torch's is meant. `shape` is that of an input as the part gets it, if it is not that of `inputs`.

    Raises:
        InputError: the part cannot learn in this study.
    """
    tried = np.asarray(inputs[:_TRIED])
    made = teachers.make_own(
        part, what=what, input_shape=shape or tried.shape[1:], num_classes=num_classes, rows=tried.ndim == 2
    )
    if network and not teachers.is_network(made):
        raise InputError(f"{what}: makes a {type(made).__name__}; as a network, a torch.nn.Module is meant")
    if teachers.is_network(made):
        teachers.try_network(made, tried, what=what, num_classes=num_classes)
        return
    index = np.arange(0, len(tried), 2, dtype=np.int64)
    labels = np.arange(len(index), dtype=np.int64) % num_classes
    shares = np.eye(num_classes)[labels] if with_probabilities else None
    student = fit_own_student(
        made, tried, index, labels, what=what, num_classes=num_classes, seed=0, probabilities=shares
    )
    student.predict(tried)
    student.predict_proba(tried)

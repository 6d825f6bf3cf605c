"""Teachers of the user's own: any network that a factory makes, any object with `fit` and `predict`.

A part is one of
- `make(input_shape, num_classes) -> torch.nn.Module`, a function or a class: a network from float images
  (n, channels, height, width), standardised by its records' mean and deviation, to logits (n, num_classes).
  Other arrays it gets as they are, float32 (n, *input_shape). `train_teacher`'s loop trains it with the
  study's settings.
- an object with `fit(x, y)` and `predict(x)`, a class that gives one without arguments, or a factory as
  above: any classifier of scikit-learn. x is float64 (n, inputs), images flattened row by row and scaled to
  [0, 1]; y is int64 (n,).
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InputError
from pate_fed.learning.settings import TeacherSettings
from pate_fed.structure.faults import telling

Inputs = NDArray[Any]
Labels = NDArray[np.int64]

_SHORT = TeacherSettings(epochs=1)
_TRIED = 24  # made-up records on which a part is tried before any party is asked


@runtime_checkable
class Estimator(Protocol):
    """What learns by itself: scikit-learn's way."""

    def fit(self, x: NDArray[np.float64], y: Labels) -> Any:
        """Learn from inputs float64 (n, inputs) and their classes int64 (n,)."""

    def predict(self, x: NDArray[np.float64]) -> Any:
        """The class of each input, (n,)."""


def is_network(made: object) -> bool:
    """Whether a part made a network of torch's, without importing torch."""
    return hasattr(made, "state_dict") and hasattr(made, "forward")


class RowsNetwork:
    """A network on rows, float32 (n, *shape) as they are, as an estimator; `train_teacher`'s loop trains it.

    `make` gives a fresh one, of logits (n, num_classes), whose first weights follow from the seed.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        shape: tuple[int, ...],
        num_classes: int,
        settings: TeacherSettings,
    ) -> None:
        self._make, self._shape, self._classes, self._settings = make, shape, num_classes, settings
        self.network: Any = None

    def fit(self, x: NDArray[np.float64], y: Labels) -> None:
        """Train it on rows (n, inputs) and their classes (n,)."""
        import torch

        from pate_fed.learning.teachers.network import fit_network

        self.network = self._make()
        self._logits(x[:2])
        fit_network(self.network, self._tensor(x), torch.from_numpy(np.array(y)), self._settings)

    def predict(self, x: NDArray[np.float64]) -> Labels:
        """The class of each row."""
        return np.asarray(self._logits(x).argmax(axis=1), dtype=np.int64)

    def predict_proba(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities (n, classes)."""
        logits = self._logits(x).astype(np.float64)
        found = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def _logits(self, x: NDArray[np.float64]) -> NDArray[np.float32]:
        import torch

        with torch.inference_mode():
            logits = torch.cat([self.network.eval()(part) for part in self._tensor(x).split(_AT_ONCE)])
        if logits.shape != (len(x), self._classes):
            raise ValueError(f"gives {tuple(logits.shape)}; logits {(len(x), self._classes)} are meant")
        return np.asarray(logits.numpy())

    def _tensor(self, x: NDArray[np.float64]) -> Any:
        import torch

        if np.isnan(x).any():
            raise ValueError("a network takes no NaN: fill missing values in")
        return torch.from_numpy(x.astype(np.float32).reshape(len(x), *self._shape))


_AT_ONCE = 1000  # rows


def make_own(
    part: Any,
    *,
    what: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    rows: bool = False,
    settings: TeacherSettings | None = None,
) -> Any:
    """A fresh network or estimator of a part; `what` names it in errors.

    Of `rows` a network is an estimator too, `RowsNetwork`, and learns with these `settings`.

    Raises:
        InputError: the part is none of these, or fails.
    """
    fits = callable(getattr(part, "fit", None)) and callable(getattr(part, "predict", None))
    if not fits and not callable(part):
        raise InputError(
            f"{what}: is a {type(part).__name__}; a factory or an object with fit and predict is meant"
        )
    with telling(f"{what}: fails when it is made"):
        if isinstance(part, type):
            made = part() if fits and not is_network(part) else part(input_shape, num_classes)
        else:
            made = copy.deepcopy(part) if fits else part(input_shape, num_classes)
    if not is_network(made) and not isinstance(made, Estimator):
        raise InputError(
            f"{what}: made a {type(made).__name__}; a torch.nn.Module or an object with fit and predict is "
            "meant"
        )
    if rows and is_network(made):

        def again() -> Any:
            return part(input_shape, num_classes)

        settings = settings or TeacherSettings()
        return RowsNetwork(again, shape=input_shape, num_classes=num_classes, settings=settings)
    return made


class FittedTeacher:
    """An estimator that has learnt, and that votes for one class an input."""

    def __init__(self, estimator: Estimator, *, what: str, num_classes: int) -> None:
        self.estimator, self._what, self._num_classes = estimator, what, num_classes

    def predict(self, inputs: Inputs) -> Labels:
        """The class of each input.

        Shapes: images uint8 (n, H, W, C) or rows float64 (n, inputs) to int64 (n,).

        Raises:
            InputError: the part fails, or gives no class of the study for each input.
        """
        with telling(f"{self._what}: predict fails"):
            given = self.estimator.predict(flat_rows(inputs))
        return classes_of(given, len(inputs), what=self._what, num_classes=self._num_classes)


def fit_own_teacher(
    estimator: Estimator, inputs: Inputs, labels: Labels, *, what: str, num_classes: int, seed: int
) -> FittedTeacher:
    """Fit a fresh estimator, or InputError; records of one class give a teacher of that class."""
    if len(labels) and (labels == labels[0]).all():  # which many classifiers refuse
        return FittedTeacher(_OneClass(int(labels[0])), what=what, num_classes=num_classes)
    with telling(f"{what}: fit fails"), seeded_fit(estimator, seed):
        estimator.fit(flat_rows(inputs), labels)
    return FittedTeacher(estimator, what=what, num_classes=num_classes)


@contextmanager
def seeded_fit(estimator: object, seed: int) -> Iterator[None]:
    """Seed an estimator that has an open `random_state`, and NumPy's and torch's generators."""
    settings: dict[str, Any] = getattr(estimator, "get_params", dict)()
    if "random_state" in settings and settings["random_state"] is None:
        estimator.set_params(random_state=seed)  # type: ignore[attr-defined]
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        with _seeded_torch(seed):
            yield
    finally:
        np.random.set_state(before)


@contextmanager
def _seeded_torch(seed: int) -> Iterator[None]:
    """Torch seeded, and on one thread, so that what is learnt does not depend on the machine's cores.

    Where nobody imported it, nobody draws from it.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


class _OneClass:
    """What a part with a single class can teach."""

    def __init__(self, label: int) -> None:
        self.label = label

    def fit(self, x: NDArray[np.float64], y: Labels) -> None:
        """Nothing is left to learn."""

    def predict(self, x: NDArray[np.float64]) -> Labels:
        """Its one class for each input."""
        return np.full(len(x), self.label, dtype=np.int64)


def try_own(
    part: Any, inputs: Inputs, *, what: str, num_classes: int, shape: tuple[int, ...] | None = None
) -> None:
    """Make, fit and ask a part once on public inputs with made-up classes, so that a fault is one sentence.

    `shape` is that of an input as the part gets it, where it is not that of `inputs`.

    Raises:
        InputError: the part cannot teach in this study.
    """
    tried = np.asarray(inputs[:_TRIED])
    made = make_own(
        part,
        what=what,
        input_shape=shape or tried.shape[1:],
        num_classes=num_classes,
        rows=tried.ndim == 2,
        settings=_SHORT,
    )
    if isinstance(made, RowsNetwork) and np.isnan(inputs).any():
        raise InputError(f"{what}: makes a network, which takes no NaN; public inputs hold some")
    if not is_network(made):
        labels = np.arange(len(tried), dtype=np.int64) % num_classes
        fit_own_teacher(made, tried, labels, what=what, num_classes=num_classes, seed=0).predict(tried)
        return
    try_network(made, tried, what=what, num_classes=num_classes)


def try_network(made: Any, tried: Inputs, *, what: str, num_classes: int) -> None:
    """Ask a network once for its logits of images uint8 (n, height, width, channels), or InputError."""
    import torch

    from pate_fed.learning.tensors import to_tensor

    with telling(f"{what}: fails on images {tried.shape[1:]}"), torch.inference_mode():
        logits = made.eval()(to_tensor(tried, "cpu"))
    if tuple(logits.shape) != (len(tried), num_classes):
        raise InputError(
            f"{what}: gives {tuple(logits.shape)} for {len(tried)} images; logits "
            f"{(len(tried), num_classes)} are meant"
        )


def flat_rows(inputs: Inputs) -> NDArray[np.float64]:
    """Rows as they are, images flattened and scaled to [0, 1]: float64 (n, inputs)."""
    flat = np.asarray(inputs).reshape(len(inputs), -1).astype(np.float64)
    return flat / 255.0 if inputs.dtype == np.uint8 else flat


def classes_of(given: Any, count: int, *, what: str, num_classes: int) -> Labels:
    """What a part gave as int64 (count,), all classes of the study; else an InputError of `what`."""
    found = np.asarray(given)
    if found.shape != (count,) or found.dtype.kind not in "iuf":
        raise InputError(
            f"{what}: predict gives {found.dtype} {found.shape} for {count} inputs; one class each, "
            f"({count},), is meant"
        )
    if found.dtype.kind == "f" and not (np.isfinite(found).all() and (found == np.floor(found)).all()):
        raise InputError(
            f"{what}: predict gives numbers that are no classes; 0 to {num_classes - 1} are meant"
        )
    labels = found.astype(np.int64)
    if count and not (labels.min() >= 0 and labels.max() < num_classes):
        raise InputError(
            f"{what}: votes for classes {labels.min()} to {labels.max()}; 0 to {num_classes - 1} are meant"
        )
    return labels

"""What a method of the benchmark gets and gives, and how both its answers and its ε are checked.

A method is `run(task, epsilon, seed) -> (predictions, ledger)`. It never gets the labels of what tests. Its
ledger says what one unit was charged for; ε is computed again from that, and a lower claim is refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Schema
from pate_fed.errors import InputError, IntegrityError

ACCURACY, BALANCED, AUC, R2, LEAK = "accuracy", "balanced accuracy", "AUC", "R²", "least ε, by guesses"
RECORD, LABEL, HOSPITAL = "record", "label", "hospital"
UNITS = (LABEL, RECORD, HOSPITAL)
"""Protected units, the weakest first: a method that protects a weaker one than the task's never wins."""
_SLACK = 1e-3  # two accountants' grids
_GRID = 1e-3  # of privacy losses; what it adds stays an upper bound
_CONFIDENCE = 0.99


class NotApplicableError(Exception):
    """A method cannot play a task, which is a result; the text is the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Task:
    """What a method sees: private records with the hospital of each, public inputs, and inputs that test.

    `inputs`, `pool` and `test` are uint8 images (n, H, W, C) or float64 rows (n, features), NaN where a value
    is missing; of a table with a `schema` categories are one column a value. `labels` are int64 (n,) below
    `num_classes`, or with `target_range` float64 (n,) in that range. `owners` int64 (n,) are 0 to
    `parties` - 1. One `unit` is replaced; ε holds at `delta`. `look` says what else may be looked at.
    """

    name: str
    title: str
    inputs: NDArray[Any]
    labels: NDArray[Any]
    owners: NDArray[np.int64]
    pool: NDArray[Any]
    test: NDArray[Any]
    num_classes: int = 2
    target_range: tuple[float, float] | None = None
    schema: Schema | None = None
    measure: str = ACCURACY
    delta: float = 1e-5
    unit: str = RECORD
    look: str = "the pool, the inputs that test, the number of records at each hospital"

    @property
    def parties(self) -> int:
        """How many hospitals there are."""
        return int(self.owners.max()) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a unit was charged for, `count` times: Gaussian noise, or a mechanism of a pure ε.

    `noise` is the deviation by half of what replacing a unit can move, in L2: for clipped gradients the noise
    multiplier. Before that, each unit is taken with chance `sampling` (Poisson).
    """

    noise: float = math.inf
    sampling: float = 1.0
    pure: float = 0.0
    count: int = 1

    def __post_init__(self) -> None:
        good = self.noise > 0 and 0 < self.sampling <= 1 and 0 <= self.pure < math.inf and self.count >= 1
        if not good:
            raise InputError(
                f"{self}: noise above 0, sampling in (0, 1], a pure ε and a count of at least 1 are meant"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a method says of its privacy: ε, None for none, at δ for `unit`, and the rows that it rests on.

    A study of ours has its own ledger in `run_dir`, and no rows.
    """

    epsilon: float | None
    delta: float
    unit: str = RECORD
    rows: tuple[Spent, ...] = ()
    run_dir: Path | None = None


Given = tuple[NDArray[Any], Ledger]
Method = Callable[[Task, float, int], Given]
"""From task, ε and seed to scores (n, classes), classes (n,) or numbers (n,) of `task.test`, and their cost.

It raises NotApplicableError where it cannot play.
"""


def epsilon_of_rows(rows: Iterable[Spent], delta: float) -> float:
    """ε of all rows together at δ, where a unit is replaced (privacy loss, PLD)."""
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.pld import PLDAccountant

    accountant, pure, noisy = PLDAccountant(NeighboringRelation.REPLACE_ONE, _GRID), 0.0, False
    for row in rows:
        pure += row.pure * row.count
        if math.isfinite(row.noise):
            noisy = True
            one: Any = dp_event.GaussianDpEvent(row.noise)
            if row.sampling < 1:
                one = dp_event.PoissonSampledDpEvent(row.sampling, one)
            accountant.compose(dp_event.SelfComposedDpEvent(one, row.count))
    return pure + (float(accountant.get_epsilon(delta)) if noisy else 0.0)


def least_noise(epsilon: float, delta: float, *, sampling: float = 1.0, count: int = 1) -> Spent:
    """The row of so many releases with the least noise, to 1 %, that costs at most ε."""

    def fits(noise: float) -> bool:
        return epsilon_of_rows([row(noise)], delta) <= epsilon

    def row(noise: float) -> Spent:
        return Spent(noise=noise, sampling=sampling, count=count)

    high = 8.0  # from above: what is far too little noise is a large distribution to compose
    while not fits(high):
        high *= 2
        if high > 1e6:
            raise InputError(f"epsilon={epsilon:g}: no noise that is known here keeps it")
    low = high / 2
    while fits(low) and low > 0.1:
        low, high = low / 2, low
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return row(high)


def check_predictions(task: Task, given: Any, *, what: str) -> NDArray[np.float64]:
    """Scores float64 (n, classes), or numbers float64 (n,); classes count as scores of 0 and 1.

    Raises:
        InputError: another shape, other classes, or what is no number; the message has expected and got.
    """
    try:
        found = np.asarray(given)
        values = found.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: predictions are no array of numbers") from error
    count, classes = len(task.test), task.num_classes
    if not np.isfinite(values).all():
        raise InputError(f"{what}: {int((~np.isfinite(values)).sum())} predictions are no finite numbers")
    if task.target_range is None and values.shape == (count, classes):
        return values
    if values.shape != (count,):
        or_scores = "" if task.target_range else f" or ({count}, {classes})"
        raise InputError(f"{what}: predictions {found.shape}; ({count},){or_scores} is meant")
    if task.target_range is not None:
        return values
    if (values != np.rint(values)).any() or values.min() < 0 or values.max() >= classes:
        got = f"classes from {values.min():g} to {values.max():g}"
        raise InputError(f"{what}: {got}; whole numbers from 0 to {classes - 1} are meant")
    return np.eye(classes)[values.astype(np.int64)]


def check_ledger(task: Task, ledger: Any, epsilon: float, *, what: str) -> float | None:
    """ε of the ledger, computed again; None where it claims none.

    Raises:
        InputError: no ledger, a unit or δ that the task does not know, or more than was to be spent.
        IntegrityError: its rows cost more than it claims, or there are none.
    """
    if not isinstance(ledger, Ledger):
        raise InputError(f"{what}: gives a {type(ledger).__name__} for its ledger; a Ledger is meant")
    if ledger.unit not in UNITS:
        raise InputError(f"{what}: protects a {ledger.unit!r}; one of {', '.join(UNITS)} is meant")
    if ledger.epsilon is None:
        return None
    if not 0 <= ledger.epsilon <= epsilon * (1 + _SLACK):
        raise InputError(f"{what}: claims ε = {ledger.epsilon:g}; at most {epsilon:g} is to be spent")
    if ledger.delta > task.delta:
        raise InputError(f"{what}: δ = {ledger.delta:g}; at most {task.delta:g} is meant")
    if ledger.run_dir is not None:
        from pate_fed import Run

        found = Run.load(ledger.run_dir).ledger.epsilon
        if found is None:
            raise IntegrityError(f"{what}: the run's ledger has no bound")
    elif ledger.rows:
        found = epsilon_of_rows(ledger.rows, ledger.delta)
    else:
        raise IntegrityError(f"{what}: claims ε = {ledger.epsilon:g} with no row that it follows from")
    if found > ledger.epsilon * (1 + _SLACK):
        raise IntegrityError(f"{what}: claims ε = {ledger.epsilon:g}, but its rows cost {found:.4g}")
    return float(found)


def digest_of(task: Task, truth: NDArray[Any]) -> str:
    """SHA-256 of all arrays, the tested labels among them, and of how it is measured."""
    found = hashlib.sha256(repr((task.measure, task.delta, task.unit, task.target_range)).encode())
    for array in (task.inputs, task.labels, task.owners, task.pool, task.test, truth):
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def measured(task: Task, found: NDArray[np.float64], truth: NDArray[Any]) -> float:
    """The task's measure of checked predictions. `LEAK` is the least ε that the guesses do not refute."""
    if task.measure == R2:
        low, high = task.target_range or (-math.inf, math.inf)
        return 1 - float(((np.clip(found, low, high) - truth) ** 2).mean() / np.var(truth))
    if task.measure == AUC:
        from sklearn.metrics import roc_auc_score

        return float(roc_auc_score(truth, found[:, 1] - found[:, 0]))
    right = found.argmax(axis=1) == truth
    if task.measure == BALANCED:
        return float(np.mean([right[truth == label].mean() for label in np.unique(truth)]))
    if task.measure == LEAK:
        from pate_fed.privacy.planning.attack import one_run_bound

        seen = {"guesses": len(truth), "canaries": len(truth)}
        return one_run_bound(int(right.sum()), **seen, delta=task.delta, confidence=_CONFIDENCE)
    return float(right.mean())

"""A federation as a classifier of scikit-learn's: private rows are dealt to parties, one study is one fit."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from pate_fed.cli.simulate import simulate
from pate_fed.errors import InputError

if TYPE_CHECKING:
    from pate_fed.report.run import Run

_DRAWN = 1000  # rows that stand for public inputs, even over the declared bounds


class PateClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that is (ε, δ)-differentially private in the rows that it is fitted to.

    Rows are dealt to `n_parties`, whose noisy class sums teach one student. Each fit spends `epsilon` anew:
    in `cross_val_score` with a split that does not look at y (`KFold`) a row is in k - 1 of k fits, which
    cost up to (k - 1) ε together; a stratified split moves other rows where a label changes, and then no such
    sum is stated. Scores are exact figures of the rows left out, and outside of ε; so is what a step before
    it in a `Pipeline` learns from the rows.

    `X_public` of `fit` are rows that belong to nobody. Without any, `bounds` = (lowest, highest) of all
    columns, or arrays with one for each, say what numbers can be, and rows drawn evenly from there stand for
    public ones. Private rows are never taken for public ones. `classes` are public, too; without them those
    in y are taken, and that one occurs is no secret.

    Without a `random_state` noise is the operating system's. With one a fit repeats, and protects nobody:
    `private_` is False. `study` has further settings, as `study.toml` has them. `run_dir` is a new directory
    that keeps the run; without one only the student stays.

    Fitted: `classes_`, `n_features_in_`, `epsilon_`, `delta_`, `private_`, and `student_`.

    >>> from pate_fed import PateClassifier
    >>> PateClassifier(n_parties=8, epsilon=2, bounds=(0, 1))
    PateClassifier(bounds=(0, 1), epsilon=2, n_parties=8)
    """

    def __init__(
        self,
        *,
        n_parties: int = 4,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        classes: ArrayLike | None = None,
        study: Mapping[str, Any] | None = None,
        run_dir: str | Path | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_parties = n_parties
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.classes = classes
        self.study = study
        self.run_dir = run_dir
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, X_public: ArrayLike | None = None) -> PateClassifier:
        """Run a study on private rows X (n, features) with classes y (n,), and public rows (m, features).

        Raises:
            InputError: neither public rows nor bounds, or what a study refuses.
            ValueError: rows or classes that are none, as scikit-learn says it.
        """
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        found = np.unique(labels if self.classes is None else np.asarray(self.classes))
        if len(found) < 2 or not np.isin(labels, found).all():
            raise ValueError(f"y has classes other than the {len(found)} class(es) {found[:9]}, or only one")
        public, drawn = self._public(X_public, rows.shape[1])
        data = {
            "private_images": rows,
            "private_labels": np.searchsorted(found, labels).astype(np.int64),
            "public_images": public,
            "class_names": [str(each) for each in found],
        }
        with tempfile.TemporaryDirectory(prefix="pate_fed-") as folder:
            kept = Path(folder) / "run" if self.run_dir is None else Path(self.run_dir)
            run = simulate(self._settings(len(rows), drawn=drawn), dataset=data, run_dir=kept, quiet=True)
            self._learnt(run)
        self.classes_ = found
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The student's probabilities (n, classes), in the order of `classes_`."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        chances: NDArray[np.float64] = np.asarray(self.student_.predict_proba(rows), dtype=np.float64)
        chances /= chances.sum(axis=1, keepdims=True)
        return chances

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class of each row."""
        chances = self.predict_proba(X)
        found: NDArray[Any] = self.classes_[chances.argmax(axis=1)]
        return found

    def _public(self, given: ArrayLike | None, columns: int) -> tuple[NDArray[np.float64], bool]:
        """Rows that may be asked about, and whether they were drawn."""
        if given is not None:
            rows: NDArray[np.float64] = validate_data(self, given, reset=False, dtype=np.float64)
            return rows, False
        if self.bounds is None:
            raise InputError(
                "PateClassifier: has no public rows, and takes no private ones for them: give "
                "fit(X, y, X_public=ROWS), or bounds=(lowest, highest) of what numbers can be"
            )
        low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), (columns,)) for end in self.bounds)
        if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise InputError(f"bounds={self.bounds!r}: finite numbers, lowest below highest, are meant")
        return np.random.default_rng(0).uniform(low, high, (_DRAWN, columns)), True

    def _settings(self, records: int, *, drawn: bool) -> dict[str, Any]:
        """The study, of which `study` may change anything."""
        made: dict[str, dict[str, Any]] = {
            "parties": {"num_clients": self.n_parties, "records": max(1, records // max(1, self.n_parties))},
            "aggregation": {"aggregator": "class-sums"},
            "secrecy": {"secure_sum": True, "noise_at": "hospitals"},
            "privacy": {"epsilon": self.epsilon, "delta": self.delta},
            "student": {"name": "ridge"},
            "sums": {"features": "bins"} if drawn else {},
        }
        if self.random_state is not None:
            made["study"] = {"seed": int(check_random_state(self.random_state).randint(2**31))}
        given = self.study or {}
        if given.get("aggregation"):  # another way altogether
            made |= {name: {} for name in ("aggregation", "secrecy", "student", "sums")}
        return {name: {**made.get(name, {}), **given.get(name, {})} for name in {**made, **given}}

    def _learnt(self, run: Run) -> None:
        self.student_ = run.student
        self.epsilon_, self.delta_ = run.epsilon, run.delta
        self.private_ = bool(run.result.study.noise_private)

"""Forests for tables: teachers by random forest or gradient boosting, the student by random forest.

scikit-learn grows the trees; what is kept are their nodes as plain arrays, which are saved without pickle and
predict without scikit-learn. Papernot et al. 2017 (arXiv 1610.05755), appendix C: 100 trees a teacher.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import load_arrays, write_result
from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.settings import TeacherSettings

Floats = NDArray[np.float64]
_CHUNK = 4096  # rows at a time: bounds the memory of (rows, trees)
_LEAF = -1
_FIELDS = ("feature", "threshold", "left", "right", "value", "roots", "fill", "start")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)  # thresholds are records' values
class Forest:
    """Trees whose leaves' values are added up; the greatest sum is the class.

    Shapes: feature, left, right int64 (nodes,), feature -1 at a leaf; threshold float64 (nodes,); value
    float64 (nodes, classes); roots int64 (trees,); fill float64 (features,), put where a value is missing;
    start float64 (classes,), the sum before the first tree.
    """

    kind: ClassVar[str] = "forest"
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    value: NDArray[np.float64]
    roots: NDArray[np.int64]
    fill: NDArray[np.float64]
    start: NDArray[np.float64]

    @property
    def num_classes(self) -> int:
        """Classes that are told apart."""
        return int(self.value.shape[1])

    def scores(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """The leaves' sums of float64 (n, features), NaN where missing: float64 (n, classes)."""
        if rows.ndim != 2 or rows.shape[1] != len(self.fill):
            raise InputError(f"rows {rows.shape}: (n, {len(self.fill)}) is meant")
        # Trees were grown on 32 bits, and compare so.
        filled = np.where(np.isnan(rows), self.fill, rows).astype(np.float32)
        found = [np.empty((0, self.num_classes))]
        for at in range(0, len(filled), _CHUNK):
            found.append(self.start + self.value[self._leaves(filled[at : at + _CHUNK])].sum(axis=1))
        return np.concatenate(found)

    def predict(self, rows: NDArray[np.float64]) -> NDArray[np.int64]:
        """The class of each row; int64 (n,)."""
        return np.asarray(self.scores(rows).argmax(axis=1), dtype=np.int64)

    def predict_proba(self, rows: NDArray[np.float64]) -> NDArray[np.float32]:
        """A random forest's class probabilities: float32 (n, classes), rows sum to 1."""
        return self.scores(rows).astype(np.float32)

    def _leaves(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """The leaf that each row reaches in each tree: int64 (n, trees)."""
        at = np.repeat(self.roots[None, :], len(rows), axis=0)
        place = np.arange(len(rows))[:, None]
        while True:
            feature = self.feature[at]
            inner = feature != _LEAF
            if not inner.any():
                return at
            goes_left = rows[place, np.where(inner, feature, 0)] <= self.threshold[at]
            at = np.where(inner, np.where(goes_left, self.left[at], self.right[at]), at)

    def save(self, path: Path, *, durable: bool = True) -> None:
        """Write the forest to `path` (.npz), whole or not at all, readable by the owner only.

        Not `durable` leaves the disk to the system.

        Raises:
            InputError: the folder cannot be written to.
        """
        content = io.BytesIO()
        np.savez(content, **self.to_arrays())  # type: ignore[arg-type]  # as in `write_arrays`
        write_result(path, content.getvalue(), durable=durable)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """All that its predictions follow from, by name."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def load(cls, path: Path) -> Forest:
        """Read what `save` wrote; no code in the file is run.

        Raises:
            InputError: no such file.
            IntegrityError: the file is damaged or is no forest.
        """
        try:
            arrays = load_arrays(path)
        except FileNotFoundError as error:
            raise InputError(f"{path}: there is no such file") from error
        except (OSError, ValueError) as error:  # whatever it held: perhaps another student
            raise IntegrityError(f"{path}: the file is damaged") from error
        try:
            return cls.of_arrays(arrays, where=str(path))
        except (ValueError, KeyError) as error:
            raise IntegrityError(f"{path}: the file is damaged or holds no forest") from error

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]], *, where: str) -> Forest:
        """The forest that `to_arrays` gave.

        Raises:
            KeyError: an array is missing.
            IntegrityError: the arrays do not fit together.
        """
        forest = cls(**{name: arrays[name] for name in _FIELDS})
        forest._check(where)
        return forest

    def _check(self, where: str) -> None:
        """A damaged file must not send a row round in circles or out of the arrays."""
        nodes = len(self.feature)
        inner = np.flatnonzero(self.feature != _LEAF)
        children = np.concatenate([self.left[inner], self.right[inner]])
        shapes = (len(self.threshold), len(self.left), len(self.right), len(self.value)) == (nodes,) * 4
        if (
            not shapes
            or (children <= np.tile(inner, 2)).any()  # children lie behind their parents, so every walk ends
            or (children >= nodes).any()
            or (self.feature < _LEAF).any()
            or (self.feature >= len(self.fill)).any()
            or (self.roots < 0).any()
            or (self.roots >= nodes).any()
            or not np.isfinite(self.value).all()
        ):
            raise IntegrityError(f"{where}: the file is damaged or holds no forest")


def train_forest(
    rows: NDArray[np.float64],
    labels: NDArray[np.int64],
    *,
    num_classes: int,
    method: str = "random-forest",
    trees: int = 100,
    seed: int,
    balanced: bool = False,
    probabilities: NDArray[Any] | None = None,
) -> Forest:
    """Train on one core; the same seed and data give the same forest.

    `balanced` weighs rows so that all classes that occur count alike, as teachers do. A random forest learns
    from the labels' `probabilities` in their place, where there are any: each row counts for every class by
    its share, in a split's impurity and in a leaf's value.

    Shapes: rows float64 (n, features), NaN where missing; labels int64 (n,), n ≥ 1; one class will do;
    probabilities float (n, classes).

    Raises:
        InputError: rows, labels or probabilities are not that, or an unknown method.
    """
    if rows.ndim != 2 or len(rows) == 0 or labels.shape != (len(rows),):
        raise InputError(f"rows {rows.shape} with labels {labels.shape}: (n, features) and (n,), n ≥ 1")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise InputError(f"labels from {labels.min()} to {labels.max()}: 0 to {num_classes - 1} is meant")
    present = ~np.isnan(rows).all(axis=0)
    fill = np.zeros(rows.shape[1])
    fill[present] = np.nanmedian(rows[:, present], axis=0)
    filled = np.where(np.isnan(rows), fill, rows)
    if probabilities is not None:
        if probabilities.shape != (len(rows), num_classes) or method != "random-forest" or balanced:
            raise InputError(
                f"probabilities {probabilities.shape}: ({len(rows)}, {num_classes}) is meant, of a random "
                "forest that weighs no classes"
            )
        return _soft_forest(filled, probabilities, fill, trees=trees, seed=seed)
    if len(np.unique(labels)) == 1:
        return _constant(int(labels[0]), num_classes, fill)
    weights: Floats | None = None
    if balanced:
        weights = 1 / np.bincount(labels)[labels]
        weights *= len(labels) / weights.sum()
    if method == "random-forest":
        from sklearn.ensemble import RandomForestClassifier

        model: Any = RandomForestClassifier(n_estimators=trees, random_state=seed, n_jobs=1)
        model.fit(filled, labels, sample_weight=weights)
        return _random_forest(model, num_classes, fill)
    if method == "gradient-boosting":
        from threadpoolctl import threadpool_limits

        model, fine = _boosting_model(trees, seed), filled.astype(np.float32)  # as rows are asked about
        cuts = _cuts(fine)
        codes = np.stack([np.searchsorted(*each) for each in zip(cuts, fine.T, strict=True)], axis=1)
        with threadpool_limits(1, user_api="openmp"):  # sums over rows depend on how many threads share them
            model.fit(codes, labels, sample_weight=weights)
        prior = np.bincount(labels, weights=weights, minlength=num_classes) / len(labels)
        return _gradient_boosting(model, prior, fill, cuts)
    raise InputError(f"method {method!r}: random-forest or gradient-boosting is meant")


def train_table_teacher(
    rows: NDArray[np.float64],
    labels: NDArray[np.int64],
    *,
    num_classes: int,
    settings: TeacherSettings,
    seed: int,
) -> Forest:
    """Train one teacher of a table by its settings, as `train_teacher` does one of images."""
    return train_forest(
        rows,
        labels,
        num_classes=num_classes,
        method=settings.name,
        trees=settings.trees,
        seed=seed,
        balanced=True,
    )


def _boosting_model(trees: int, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    # Of a hospital's 60 records leaves of 20, the usual, would leave a tree two questions.
    return HistGradientBoostingClassifier(
        max_iter=trees,
        max_depth=3,
        max_leaf_nodes=None,
        min_samples_leaf=5,
        early_stopping=False,
        random_state=seed,
    )


def _soft_forest(rows: Floats, probabilities: NDArray[Any], fill: Floats, *, trees: int, seed: int) -> Forest:
    """Regression trees on all classes' probabilities: their squared error is the Gini impurity of shares."""
    from sklearn.ensemble import RandomForestRegressor

    model: Any = RandomForestRegressor(
        n_estimators=trees, max_features="sqrt", random_state=seed, n_jobs=1
    ).fit(rows, probabilities)
    grown = [estimator.tree_ for estimator in model.estimators_]
    values = [tree.value[:, :, 0] / trees for tree in grown]  # (nodes, classes)
    return _stack(grown, values, fill, np.zeros(probabilities.shape[1]))


def _random_forest(model: Any, classes: int, fill: Floats) -> Forest:
    trees = len(model.estimators_)
    known = np.asarray(model.classes_, dtype=np.int64)
    values = []
    for estimator in model.estimators_:
        counts = estimator.tree_.value[:, 0, :]  # (nodes, known classes)
        value = np.zeros((len(counts), classes))
        value[:, known] = counts / counts.sum(axis=1, keepdims=True) / trees
        values.append(value)
    return _stack([estimator.tree_ for estimator in model.estimators_], values, fill, np.zeros(classes))


_BINS = 255  # of a number's values: what the histograms have


def _cuts(rows: NDArray[np.float32]) -> list[Floats]:
    """Between which values of each column a tree may cut, rising: between all, or at quantiles of many.

    scikit-learn would sort a column for each of its quantiles where rows have weights: minutes for 10^5 rows.
    """
    found = []
    for column in rows.T.astype(np.float64):
        values = np.unique(column)
        if len(values) > _BINS:
            shares = np.linspace(0, 1, _BINS + 1)[1:-1]
            found.append(np.unique(np.quantile(column, shares, method="midpoint")))
        else:
            found.append((values[1:] + values[:-1]) / 2)
    return found


def _gradient_boosting(model: Any, prior: Floats, fill: Floats, cuts: list[Floats]) -> Forest:
    """`prior` is the classes' share of the rows' weights, (classes,)."""
    classes = len(prior)
    known = np.asarray(model.classes_, dtype=np.int64)
    grown, values = [], []
    for stage in model._predictors:
        # Two classes share one tree, whose value speaks for the second.
        for column, predictor in zip(known[-len(stage) :], stage, strict=True):
            grown.append(_Grown.of(predictor.nodes, cuts))
            value = np.zeros((len(predictor.nodes), classes))
            value[:, column] = np.where(predictor.nodes["is_leaf"], predictor.nodes["value"], 0)
            values.append(value)
    start = np.full(classes, -np.inf)
    start[known] = 0.0
    prior = prior[known]
    start[known] = np.array([0.0, np.log(prior[1] / prior[0])]) if len(known) == 2 else np.log(prior)
    return _stack(grown, values, fill, start)


class _Grown(NamedTuple):
    """A tree of histogram-based boosting, as scikit-learn's other trees name their parts."""

    node_count: int
    feature: NDArray[np.int64]
    threshold: Floats
    children_left: NDArray[np.int64]
    children_right: NDArray[np.int64]

    @classmethod
    def of(cls, nodes: NDArray[Any], cuts: list[Floats]) -> _Grown:
        """Its nodes, children behind their parents, grown on places among each column's `cuts`."""
        feature = np.where(nodes["is_leaf"], _LEAF, nodes["feature_idx"])
        places = zip(feature, nodes["num_threshold"], strict=True)
        threshold = np.array([0.0 if at == _LEAF else cuts[at][int(place)] for at, place in places])
        return cls(len(nodes), feature, threshold, nodes["left"], nodes["right"])


def _stack(trees: list[Any], values: list[NDArray[Any]], fill: NDArray[Any], start: NDArray[Any]) -> Forest:
    """All trees' nodes one after another."""
    sizes = np.array([tree.node_count for tree in trees])
    roots = np.cumsum(sizes) - sizes

    def shifted(children: str) -> NDArray[np.int64]:
        each = (
            getattr(tree, children).astype(np.int64) + root for tree, root in zip(trees, roots, strict=True)
        )
        return np.concatenate(list(each))

    feature = np.concatenate([tree.feature for tree in trees]).astype(np.int64)
    leaf = feature < 0
    return Forest(
        feature=np.where(leaf, _LEAF, feature),
        threshold=np.concatenate([tree.threshold for tree in trees]).astype(np.float64),
        left=np.where(leaf, 0, shifted("children_left")),
        right=np.where(leaf, 0, shifted("children_right")),
        value=np.concatenate(values),
        roots=roots.astype(np.int64),
        fill=fill,
        start=start,
    )


def _constant(label: int, classes: int, fill: NDArray[np.float64]) -> Forest:
    """One leaf: what a part with a single class can teach."""
    none = np.zeros(1, dtype=np.int64)
    leaf = _Grown(1, feature=none + _LEAF, threshold=np.zeros(1), children_left=none, children_right=none)
    return _stack([leaf], [np.eye(classes)[[label]]], fill, np.zeros(classes))

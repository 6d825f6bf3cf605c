"""Forests as plain arrays: equal to scikit-learn's, saved without pickle, safe against a damaged file."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from threadpoolctl import threadpool_limits

from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.teachers.forests import Forest, train_forest


def _table(classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    stream = np.random.default_rng(seed)
    rows = stream.normal(size=(400, 6))
    labels = (rows[:, 0] + 0.5 * rows[:, 1] > 0).astype(np.int64) + (classes > 2) * (rows[:, 2] > 0.7)
    return rows, labels.astype(np.int64)


def _theirs(
    method: str, rows: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> RandomForestClassifier | HistGradientBoostingClassifier:
    model = RandomForestClassifier(n_estimators=20, random_state=4)
    if method == "gradient-boosting":
        model = HistGradientBoostingClassifier(
            max_iter=20, max_depth=3, max_leaf_nodes=None, min_samples_leaf=5, early_stopping=False
        )
    with threadpool_limits(1):
        return model.fit(rows.astype(np.float32), labels, sample_weight=weights)


@pytest.mark.parametrize("classes", [2, 3])
def test_boosting_is_the_same_on_any_number_of_threads_and_scores_as_scikit_learn_does(classes: int) -> None:
    rows, labels = _table(classes)
    rows, labels = (
        np.tile(rows.round(1), (30, 1)),
        np.tile(labels, 30),
    )  # enough for sums to be shared among threads
    given = {"num_classes": classes, "method": "gradient-boosting", "trees": 20, "seed": 4, "balanced": True}
    found = []
    for threads in (1, 3):
        with threadpool_limits(threads):
            found.append(train_forest(rows, labels, **given).to_arrays())
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name])
    weights = 1 / np.bincount(labels)[labels]
    theirs = _theirs("gradient-boosting", rows, labels, weights / weights.mean())
    test = np.random.default_rng(9).normal(size=(500, 6)).astype(np.float32)
    scores = Forest.of_arrays(found[0], where="here").scores(test.astype(np.float64))
    want = theirs.decision_function(test)
    ours = scores[:, 1] - scores[:, 0] if classes == 2 else scores - scores.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(
        ours, want - (0 if classes == 2 else want.mean(axis=1, keepdims=True)), atol=1e-6
    )


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("method", ["random-forest", "gradient-boosting"])
def test_predictions_are_scikit_learns(method: str, classes: int) -> None:
    rows, labels = _table(classes)
    rows = rows.round(1)  # with so few values histograms are exact
    test = np.random.default_rng(9).normal(size=(500, 6)).round(1)
    forest = train_forest(rows, labels, num_classes=classes, method=method, trees=20, seed=4)
    theirs = _theirs(method, rows, labels)
    np.testing.assert_array_equal(forest.predict(test), theirs.predict(test.astype(np.float32)))
    assert np.mean(forest.predict(rows) == labels) > 0.9


@pytest.mark.parametrize("method", ["random-forest", "gradient-boosting"])
def test_balanced_classes_count_alike(method: str) -> None:
    rows, labels = _table(2)
    rare = (labels == 0) | (np.arange(400) % 10 == 0)  # about a tenth is of the second class
    own, test = (rows[rare].round(1), labels[rare]), np.random.default_rng(9).normal(size=(500, 6)).round(1)
    forest = train_forest(*own, num_classes=2, method=method, trees=20, seed=4, balanced=True)
    weights = 1 / np.bincount(own[1])[own[1]]
    theirs = _theirs(method, *own, weights / weights.mean())
    np.testing.assert_array_equal(forest.predict(test), theirs.predict(test.astype(np.float32)))
    plain = train_forest(*own, num_classes=2, method=method, trees=20, seed=4)
    assert forest.predict(test).sum() != plain.predict(test).sum()


def test_boosting_on_many_values_cuts_at_their_quantiles() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(5000, 2)) * (1.0, 1e30)
    labels = (rows[:, 0] > 1.7).astype(np.int64)
    forest = train_forest(rows, labels, num_classes=2, method="gradient-boosting", trees=5, seed=0)
    assert np.mean(forest.predict(rows) == labels) > 0.995
    again = train_forest(rows[::-1], labels[::-1], num_classes=2, method="gradient-boosting", trees=5, seed=0)
    assert set(forest.threshold.tolist()) == set(again.threshold.tolist())
    few = train_forest(rows[:4], np.arange(4) % 2, num_classes=2, method="gradient-boosting", seed=0)
    assert few.predict(rows).shape == (5000,)


def test_a_forest_learns_from_probabilities() -> None:
    """What 0.6 says is lost where the class alone is told: then every row is sure of it."""
    rows, labels = _table(3)
    shares = np.where(np.eye(3)[labels] > 0, 0.6, 0.2)
    kind = {"num_classes": 3, "trees": 20, "seed": 4}
    soft = train_forest(rows, labels, **kind, probabilities=shares)
    test = np.random.default_rng(9).normal(size=(500, 6))
    found, hard = soft.predict_proba(test), train_forest(rows, labels, **kind)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    assert found.max() <= 0.6 + 1e-6 and found.min() >= 0.2 - 1e-6 and hard.predict_proba(test).max() > 0.9
    assert np.mean(soft.predict(test) == hard.predict(test)) > 0.95
    same = train_forest(rows, np.zeros(400, dtype=np.int64), **kind, probabilities=shares)
    np.testing.assert_array_equal(same.scores(test), soft.scores(test))  # the classes have no part
    for wrong in ({"probabilities": shares[:, :2]}, {"probabilities": shares, "method": "gradient-boosting"}):
        with pytest.raises(InputError, match=r"\(400, 3\) is meant"):
            train_forest(rows, labels, **kind, **wrong)  # type: ignore[arg-type]


def test_missing_values_are_filled_with_the_training_median() -> None:
    rows, labels = _table(2)
    holes = np.random.default_rng(1).random(rows.shape) < 0.2
    rows[holes] = np.nan
    forest = train_forest(rows, labels, num_classes=2, trees=20, seed=0)
    filled = np.where(np.isnan(rows), np.nanmedian(rows, axis=0), rows)
    np.testing.assert_array_equal(forest.predict(rows), forest.predict(filled))
    assert np.mean(forest.predict(rows) == labels) > 0.9


def test_one_class_or_an_empty_column_still_teaches() -> None:
    rows, _ = _table(2)
    rows[:, 3] = np.nan
    forest = train_forest(rows, np.full(400, 2), num_classes=4, seed=0)
    assert set(forest.predict(rows).tolist()) == {2}
    some = np.where(rows[:, 0] > 0, 3, 1)
    assert set(train_forest(rows, some, num_classes=4, trees=5, seed=0).predict(rows).tolist()) == {1, 3}


def test_a_saved_forest_predicts_alike_and_is_private(tmp_path: Path) -> None:
    rows, labels = _table(3)
    forest = train_forest(rows, labels, num_classes=3, trees=10, seed=0)
    forest.save(tmp_path / "t.npz")
    assert stat.S_IMODE((tmp_path / "t.npz").stat().st_mode) == 0o600
    np.testing.assert_array_equal(Forest.load(tmp_path / "t.npz").scores(rows), forest.scores(rows))
    assert forest.predict(rows[:0]).shape == (0,)
    with pytest.raises(InputError, match="is meant"):
        forest.predict(rows[:, :5])


@pytest.mark.parametrize(
    "damage",
    [
        {"left": lambda a: a * 0},
        {"right": lambda a: a + 10_000},
        {"feature": lambda a: a + 100},
        {"value": lambda a: a * np.nan},
        {"threshold": lambda a: a[:-1]},
    ],
)
def test_a_damaged_file_is_refused(damage: dict[str, object], tmp_path: Path) -> None:
    rows, labels = _table(2)
    path = tmp_path / "t.npz"
    train_forest(rows, labels, num_classes=2, trees=3, seed=0).save(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    for name, change in damage.items():
        arrays[name] = change(arrays[name])  # type: ignore[operator]
    np.savez(path, **arrays)
    with pytest.raises(IntegrityError, match="damaged"):
        Forest.load(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(IntegrityError, match="damaged"):
        Forest.load(path)
    with pytest.raises(InputError, match="no such file"):
        Forest.load(tmp_path / "none.npz")


def test_wrong_input_is_named() -> None:
    rows, labels = _table(2)
    for bad in ((rows[:0], labels[:0]), (rows, labels[:-1]), (rows, labels + 1)):
        with pytest.raises(InputError, match=r"meant|n ≥ 1"):
            train_forest(*bad, num_classes=2, seed=0)
    with pytest.raises(InputError, match="random-forest or gradient-boosting"):
        train_forest(rows, labels, num_classes=2, method="oak", seed=0)

"""The class-sums student: what noisy sums teach it, and its file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pate_fed.bench.tasks import four_hospitals
from pate_fed.config.defaults import Sums
from pate_fed.data.schema import Schema
from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import LINEAR, FeatureMap, FeatureSettings
from pate_fed.learning.students import class_sums
from pate_fed.learning.students.class_sums import RoundsFit, SumsStudent, fit_sums_student
from pate_fed.privacy import SeededNoise
from pate_fed.privacy.mechanisms.class_sums import ClassSums, SharedClassSums, SumShape, least_sigma
from tests.support.four_hospitals import central_model


@pytest.mark.parametrize("kind", ["table", "images"])
def test_a_student_comes_back_from_its_file(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    if kind == "table":
        inputs, settings = rng.normal(0, 1, (40, 2)), FeatureSettings(columns=(1, 1))
    else:
        inputs = rng.integers(0, 256, (40, 10, 10, 1), dtype=np.uint8)
        settings = FeatureSettings(dimension=12)
    feature_map = build_feature_map(settings, inputs)
    weights = rng.normal(0, 1, (feature_map.dimension, 3))
    student = SumsStudent(feature_map, weights, sharpness=4.0, offset=np.array([0.0, 0.5, -0.5]))
    student.class_names = ("a", "b", "c")
    path = tmp_path / "student.npz"
    student.save(path)
    again = SumsStudent.load(path)
    assert (again.predict_proba(inputs) == student.predict_proba(inputs)).all()
    assert again.class_names == student.class_names and again.num_classes == 3
    assert path.stat().st_mode & 0o077 == 0


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    feature_map = build_feature_map(FeatureSettings(columns=(1,)), np.arange(9.0)[:, None])
    path = tmp_path / "student.npz"
    for weights in (np.zeros((feature_map.dimension + 1, 2)), np.full((feature_map.dimension, 2), np.nan)):
        SumsStudent(feature_map, weights).save(path)
        with pytest.raises(IntegrityError, match="damaged or holds no student"):
            SumsStudent.load(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(IntegrityError, match="damaged"):
        SumsStudent.load(path)
    np.savez(path, weights=np.zeros((2, 2)))
    with pytest.raises(IntegrityError, match="damaged"):
        SumsStudent.load(path)
    with pytest.raises(InputError, match="no such file"):
        SumsStudent.load(tmp_path / "none.npz")


Rows = NDArray[np.float64]
Ints = NDArray[np.int64]

SETTINGS = FeatureSettings(columns=(1, 1, 1))


def _records(count: int, *, seed: int, rare: float = 1 / 3) -> tuple[Rows, Ints]:
    """Three overlapping classes in three numbers, the last of which is rare."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, count, p=[(1 - rare) / 2, (1 - rare) / 2, rare])
    return rng.normal(0, 1, (count, 3)) + 1.6 * np.eye(3)[labels], labels.astype(np.int64)


@pytest.fixture(scope="module")
def feature_map() -> FeatureMap:
    """A map of 400 public rows."""
    return build_feature_map(SETTINGS, _records(400, seed=0)[0])


def _noisy(feature_map: FeatureMap, total: Ints, epsilon: float, seed: int = 0) -> tuple[Ints, float]:
    size = {"num_classes": 3, "dimension": feature_map.dimension, "squared_norm": feature_map.squared_norm}
    sigma = least_sigma(epsilon, 1e-5, SumShape(**size))
    return ClassSums(**size, sigma=sigma).noisy(total, SeededNoise(seed)), sigma


def test_the_student_learns_and_more_noise_teaches_less(feature_map: FeatureMap) -> None:
    pool, (rows, labels), (asked, truth) = (
        _records(400, seed=0)[0],
        _records(6000, seed=1),
        _records(3000, seed=2),
    )
    total = feature_map.contributions(rows, labels, num_classes=3)
    right = {}
    for epsilon in (0.002, 0.3, 3.0):
        noisy, sigma = _noisy(feature_map, total, epsilon)
        student = fit_sums_student(noisy, feature_map, pool, sigma=sigma)
        right[epsilon] = float((student.predict(asked) == truth).mean())
        shares = student.predict_proba(asked)
        assert shares.shape == (3000, 3) and shares.sum(axis=1) == pytest.approx(1, abs=1e-5)
        assert (shares.argmax(axis=1) == student.predict(asked)).all()
    best = 0.76  # of Bayes' rule, about
    assert right[3.0] > best - 0.03 and right[0.3] > best - 0.1 and right[0.002] < 0.6
    sure = student.predict_proba(asked).max(axis=1).mean()
    assert sure == pytest.approx(right[3.0], abs=0.06)


def _shrunk(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of φφᵀ, covariances drawn to 0 (Schäfer and Strimmer 2005), by the products themselves."""
    centred = features - features.mean(axis=0)
    products = centred[:, :, None] * centred[:, None]
    apart = products.mean(axis=0) * ~np.eye(features.shape[1], dtype=np.bool_)
    wavers = (products.var(axis=0) * ~np.eye(features.shape[1], dtype=np.bool_)).sum() / len(features)
    share = min(1.0, wavers / (apart**2).sum())
    return np.asarray(features.T @ features / len(features) - share * apart)


def test_weights_are_the_ridge_regression_that_they_are_said_to_be(feature_map: FeatureMap) -> None:
    pool, (rows, labels) = _records(400, seed=0)[0], _records(2000, seed=1)
    total = feature_map.contributions(rows, labels, num_classes=3)
    unit = math.sqrt(feature_map.squared_norm)
    student = fit_sums_student(total, feature_map, pool, sigma=5 * unit)
    features = feature_map.scaled(pool).astype(np.float64)
    sums = total / unit
    centred = sums - sums.mean(axis=1, keepdims=True)
    found = []
    for count in (1990.0, 2000.0, 2010.0):  # it estimates how many records there are
        gram = count * _shrunk(features)
        left = gram @ gram + (1 + count / 400) * gram + 25 / (2 / 9) * np.eye(len(gram))
        found.append(np.abs(student.weights - np.linalg.solve(left, gram @ centred)).max())
    assert min(found) < 0.02 * np.abs(student.weights).max()


def test_of_further_features_as_much_is_expected_as_makes_the_sums_likely() -> None:
    """Weights are D G (G D G + c G + λ²)⁻¹ S with the D that makes S the most likely, by a plain formula."""
    pool, (rows, labels) = _records(300, seed=0)[0], _records(600, seed=1)
    made = build_feature_map(FeatureSettings(name=LINEAR, columns=(1, 1, 1), dimension=20), pool)
    noisy, sigma = _noisy(made, made.contributions(rows, labels, num_classes=3), 3.0)
    unit, features = math.sqrt(made.squared_norm), made.scaled(pool).astype(np.float64)
    student = fit_sums_student(noisy, made, pool, sigma=sigma)
    centred = (noisy - noisy.mean(axis=1, keepdims=True)) / unit
    ones = np.linalg.solve(_shrunk(features) + 1e-3 * np.eye(made.dimension), features.mean(axis=0))
    count = float((ones @ noisy).sum() / unit / (ones @ features.mean(axis=0)))
    gram, found = count * _shrunk(features), []
    for weight in (0.0, 0.03, 0.1, 0.3, 1.0):
        prior = np.diag(np.where(np.arange(made.dimension) < made.dimension - made.further, 1.0, weight))
        spread = 2 / 9 * (gram @ prior @ gram + (1 + count / 300) * gram)
        spread += (sigma / unit) ** 2 * np.eye(len(gram))
        quadratic = (centred * np.linalg.solve(spread, centred)).sum()
        # Three columns whose sum is 0 have two degrees of freedom.
        likely = -quadratic / 2 - 2 * np.linalg.slogdet(spread).logabsdet / 2
        found.append((likely, 2 / 9 * prior @ gram @ np.linalg.solve(spread, centred)))
    best = max(found, key=lambda each: float(each[0]))[1]
    assert student.weights == pytest.approx(best, abs=1e-3 * float(np.abs(best).max()))


def test_four_hospitals_get_what_none_has_alone() -> None:
    """At ε 1 with a study's defaults: within 2 points of all records in one place, above the best alone."""
    found = np.array([_four_hospitals(seed) for seed in range(10)])
    together, central, *alone = found.mean(axis=0)
    print(f"together {together:.3f} ± {found[:, 0].std():.3f}, central {central:.3f}, alone {alone}")
    assert together > central - 0.02 and together > max(alone)


def _four_hospitals(seed: int) -> list[float]:
    """Accuracy on a quarter of all patients: together, central, and each hospital alone."""
    table = four_hospitals(seed)
    order = np.random.default_rng(seed).permutation(len(table.labels))
    mine, pool = order[len(order) // 4 :], order[: len(order) // 4]
    schema = Schema(label="y", classes=("0", "1"), columns=tuple((name, ()) for name in map(str, range(13))))
    made = build_feature_map(Sums().of_inputs(schema), table.rows[pool])
    total = made.contributions(table.rows[mine], table.labels[mine], num_classes=2)
    size = {"num_classes": 2, "dimension": made.dimension, "squared_norm": made.squared_norm}
    sigma = least_sigma(1.0, 1e-4, SumShape(**size))
    noisy = ClassSums(**size, sigma=sigma).noisy(total, SeededNoise(seed))
    students = [fit_sums_student(noisy, made, table.rows[pool], sigma=sigma)]
    students += [central_model(table, mine)]
    students += [central_model(table, mine[table.owners[mine] == own]) for own in range(4)]
    return [float((each.predict(table.rows[pool]) == table.labels[pool]).mean()) for each in students]


def test_a_rare_class_is_called_from_halfway_between_the_means(feature_map: FeatureMap) -> None:
    """By itself where it is rare. Without noise the means of scores are those of the records themselves."""
    rows, labels = _records(6000, seed=1, rare=0.05)
    asked, truth = _records(4000, seed=2, rare=0.05)
    pool = _records(400, seed=3, rare=0.05)[0]
    total = feature_map.contributions(rows, labels, num_classes=3)
    noisy, sigma = _noisy(feature_map, total, 1.0)
    recall = {}
    for balanced in (False, None):
        student = fit_sums_student(noisy, feature_map, pool, sigma=sigma, balanced=balanced)
        assert (balanced is None) == (list(student.rare) == [2]) == bool(student.offset.any())
        right = student.predict(asked) == truth
        recall[balanced] = [float(right[truth == label].mean()) for label in range(3)]
    assert recall[None][2] > recall[False][2] + 0.2
    assert np.mean(recall[None]) > np.mean(recall[False]) + 0.03
    plain, even = (
        fit_sums_student(total, feature_map, pool, sigma=1.0, balanced=each) for each in (False, True)
    )
    scores = plain.logits(rows)
    of = [scores[labels == label].mean(axis=0) for label in range(3)]
    between = [
        np.mean([of[a][a] - of[a][b] + of[b][a] - of[b][b] for b in range(3)]) for a in range(3)
    ]  # twice what a score has in advance
    assert np.allclose(even.offset, -np.array(between) / 2, atol=0.05 * np.ptp(even.offset))


@pytest.mark.parametrize("records", [None, 6000])
def test_a_rare_class_changes_no_round_and_is_found_after_it(
    feature_map: FeatureMap, records: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hospitals are asked with are scores alone, so the step's curvature is by these."""
    rows, labels = _records(6000, seed=1, rare=0.05)
    pool = _records(400, seed=3, rare=0.05)[0]
    total = feature_map.contributions(rows, labels, num_classes=3)
    if records is not None:  # the first question is of residuals, those of weights 0
        total = total - np.rint(total.sum(axis=1, keepdims=True) / 3).astype(np.int64)
    after, found = list[Rows](), list[SumsStudent]()
    for rare in (0.4, 0.0):
        monkeypatch.setattr(class_sums, "RARE", rare)
        fit = RoundsFit(feature_map, pool, sigma=50.0, length=1, unit=1, records=records)
        after.append(fit.go_on(fit.begin(total), total // 10, 1))
        found.append(fit.student(after[-1]))
    assert np.array_equal(*after)
    assert list(found[0].rare) == [2] and not found[1].rare
    asked, truth = _records(4000, seed=2, rare=0.05)
    told = [float((each.predict(asked) == 2)[truth == 2].mean()) for each in found]
    assert told[0] > told[1] + 0.1


def test_classes_that_are_no_rarer_than_others_keep_their_records_weight(feature_map: FeatureMap) -> None:
    rows, labels = _records(3000, seed=4, rare=0.2)
    noisy, sigma = _noisy(feature_map, feature_map.contributions(rows, labels, num_classes=3), 1.0)
    student = fit_sums_student(noisy, feature_map, _records(400, seed=5, rare=0.2)[0], sigma=sigma)
    assert not student.rare and not student.offset.any()


def test_noise_in_shares_has_the_stated_deviation_and_is_whole() -> None:
    size = {"num_classes": 4, "dimension": 500, "squared_norm": 100}
    shared = SharedClassSums(**size, sigma_party=20.0, survivors=4, colluders=1)
    draws = [SeededNoise(seed).discrete_gaussian((500, 4), sigma=shared.sigma_party) for seed in range(3)]
    every = sum(draws)
    assert every.dtype == np.int64 and every.shape == (500, 4)
    assert every.std() == pytest.approx(shared.sigma, rel=0.05)
    sums = ClassSums(**size, sigma=30.0)
    total = np.full((500, 4), 7, dtype=np.int64)
    assert (sums.noisy(total, SeededNoise(1)) - 7).std() == pytest.approx(30, rel=0.05)


def test_the_pool_is_labelled_by_features_at_hand_as_by_its_inputs(feature_map: FeatureMap) -> None:
    pool, _ = _records(300, seed=4)
    fit = RoundsFit(feature_map, pool, sigma=5.0, length=1, unit=1)
    student = SumsStudent(feature_map, np.random.default_rng(0).normal(size=(feature_map.dimension, 3)))
    np.testing.assert_array_equal(student.predict_of(fit.features), student.predict(pool))


def test_sums_of_another_shape_are_refused(feature_map: FeatureMap) -> None:
    sums = ClassSums(num_classes=3, dimension=4, squared_norm=100, sigma=30.0)
    for total in (np.zeros((4, 2), dtype=np.int64), np.zeros((4, 3))):
        with pytest.raises(InputError, match="whole numbers"):
            sums.noisy(total, SeededNoise(0))
    with pytest.raises(InputError, match="the sums are"):
        fit_sums_student(np.zeros((4, 3), dtype=np.int64), feature_map, np.zeros((3, 3)), sigma=5.0)


def test_nothing_but_noise_gives_a_student_that_knows_nothing_and_says_so(feature_map: FeatureMap) -> None:
    pool = _records(400, seed=0)[0]
    noisy, sigma = _noisy(feature_map, np.zeros((feature_map.dimension, 3), dtype=np.int64), 1.0)
    shares = fit_sums_student(noisy, feature_map, pool, sigma=sigma).predict_proba(pool)
    assert np.isfinite(shares).all()

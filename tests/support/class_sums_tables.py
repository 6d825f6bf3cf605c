"""Noisy class sums of four hospitals: accuracy against ε on Fashion-MNIST, on Adult and on breast cancer.

Each hospital adds up its clipped contributions; noise that keeps ε is added to the sum of all; the student is
fitted in closed form to that and the public pool. One record is replaced; ε is exact, and all of it.

Fashion-MNIST: the 60,000 at four hospitals; of the 10,000 test images a fifth, by the seed, tests, and the
others are the pool. The map was chosen on sums of the first 50,000, tested on the last 10,000 of the private
part. Adult:
adult.data at four hospitals, the first half of adult.test as the pool, tested on the other half. Breast
cancer (Wolberg, Street and Mangasarian, 1995; shipped with scikit-learn): 420 records at four hospitals and
149 as the pool, which are the test too: no label of theirs is used. Four clinics: 910 patients drawn anew
by each seed (tests/support/four_hospitals.py), a quarter of them the pool and the test. What is fixed about
tables was chosen on scikit-learn's digits and on parts of Adult of 420 records; when rounds pay without a
pool on Adult's private records and on drawn clinics. "no pool" has no public inputs: bins of declared ranges
(breast cancer's: 0 to the greatest, rounded up to one digit). It and "in rounds" have as many rounds as a
study has by default that knows its records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.bench.tasks import CODES, four_hospitals
from pate_fed.config.defaults import LATTICE_WITHOUT_POOL
from pate_fed.data import Dataset
from pate_fed.format import delta_text
from pate_fed.kinds.rounds import LENGTH, UNIT
from pate_fed.learning.features.build import build_feature_map, drawn_alike
from pate_fed.learning.features.feature_map import (
    BINS,
    KERNEL,
    LINEAR,
    FeatureMap,
    FeatureSettings,
    Pull,
)
from pate_fed.learning.features.residuals import ClassPull, ResidualPull, pack_weights, unpack_weights
from pate_fed.learning.students.class_sums import RoundsFit, fit_sums_student
from pate_fed.privacy import SeededNoise
from pate_fed.privacy.mechanisms.class_sums import (
    ClassSums,
    SumShape,
    class_length,
    least_sigma,
)
from pate_fed.privacy.planning.choice import Sites, sums_noise, useful_rounds
from pate_fed.privacy.protection import RECORD, Shares
from pate_fed.reproduce.census import is_rich, read_adult, table_of
from pate_fed.reproduce.columns import ACCURACY, Column, cells_of, text_table
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables
from pate_fed.reproduce.votes import inputs_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

HOSPITALS = 4
EPSILONS = (0.3, 1.0, 3.0)
FOLDS = 5
BREAST_PRIVATE = 420
_AT_ONCE = 5000  # images whose features are made
CLINICS = "four clinics, drawn"
DELTAS = {"fashion-mnist": 1e-5, "adult": 1e-5, "breast cancer": 1e-4, CLINICS: 1e-5}
ALONE, CENTRAL = "one hospital alone", "central, no privacy"
NO_POOL, ROUNDS = "no pool", "in rounds, by default"
_ADULT_RANGES = ((17, 90), (0, 1_500_000), (1, 16), (0, 100_000), (0, 5_000), (1, 99))
_NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
_NAMES = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country"
).split()


@dataclass(frozen=True, slots=True)
class SumsRun:
    """One student; `epsilon` is 0 where there is no privacy, `auc` where there are more than two classes."""

    data: str
    method: str
    epsilon: float
    seed: int
    _: KW_ONLY
    accuracy: float
    balanced: float
    auc: float
    sigma: float
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class SplitRecords:
    """Private records with the hospital of each, the public pool, and what is tested."""

    inputs: NDArray[Any]
    labels: Ints
    owners: Ints
    pool: NDArray[Any]
    test: tuple[NDArray[Any], Ints]
    columns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(Reproduction):
    """A reproduction whose figures tests/benchmarks/test_class_sums_benchmark.py makes."""

    name: str

    @property
    def command(self) -> str:
        command = "pytest -m benchmark -s tests/benchmarks/test_class_sums_benchmark.py"
        return f"{command} -k nothing_was_chosen" if self.name == "class-sums-untouched" else command


def reproduce_sums_of_images(plan: Reproduction, log: Log) -> list[str]:
    """Fashion-MNIST."""
    dataset = plan.load("fashion-mnist")
    tasks = [
        ("fashion-mnist", method, e, seed)
        for seed in range(plan.seeds)
        for method in (KERNEL, ROUNDS)
        for e in EPSILONS
    ]
    return _reproduce(plan, log, tasks, [dataset], _Images(dataset))


def reproduce_sums_of_tables(plan: Reproduction, log: Log) -> list[str]:
    """Adult and breast cancer; beside them one hospital alone, and all together."""
    adult, breast = _adult(plan), _breast_cancer()
    tasks: list[tuple[str, str, float, int]] = []
    for data in (breast.name, CLINICS, adult.name):
        for seed in range(plan.seeds):
            tasks += [(data, method, 0.0, seed) for method in (CENTRAL, ALONE)]
            methods = (LINEAR, ROUNDS, NO_POOL) if data == adult.name else (LINEAR, NO_POOL)
            tasks += [(data, method, e, seed) for e in EPSILONS for method in methods]
    return _reproduce(plan, log, tasks, [adult, breast], _Tables(adult, breast))


def _reproduce(
    plan: Reproduction, log: Log, tasks: list[Any], datasets: list[Dataset], made: Any
) -> list[str]:
    table = Table(
        path=plan.out_dir / f"{plan.name}-runs.csv",
        row=SumsRun,
        tasks=tasks,
        make=made,
        inputs=inputs_of(plan, datasets, {}),
        lines=partial(_lines, plan.name),
    )
    return run_tables(plan, [table], text=plan.out_dir / f"{plan.name}.txt", log=log)


class _Images:
    """The rows of Fashion-MNIST; features and exact sums of a seed's images are kept."""

    def __init__(self, dataset: Dataset) -> None:
        self._data = dataset
        self._seed = -1
        self._kept: tuple[SplitRecords, FeatureMap, NDArray[np.int16], Ints] | None = None

    def __call__(self, task: tuple[str, str, float, int]) -> SumsRun:
        if task[3] != self._seed or self._kept is None:
            self._kept, self._seed = None, task[3]
            parts = self._parts(task[3] % FOLDS)
            features = build_feature_map(FeatureSettings(), parts.pool)
            kept = np.empty((len(parts.labels), features.dimension), dtype=np.int16)
            for at in range(0, len(kept), _AT_ONCE):
                kept[at : at + _AT_ONCE] = features.features(parts.inputs[at : at + _AT_ONCE])
            total = features.contributions(
                parts.inputs, parts.labels, num_classes=self._data.num_classes, kept=kept
            )
            self._kept = parts, features, kept, total
        parts, features, kept, total = self._kept
        rounds = _rounds_by_default(task, parts) if task[1] == ROUNDS else 0
        if rounds:
            return _in_rounds(task, parts, features, rounds, kept=kept)
        return _measured(task, parts, features, total)

    def _parts(self, fold: int) -> SplitRecords:
        whole = self._data
        tested = np.arange(len(whole.public_labels)) * FOLDS // len(whole.public_labels) == fold
        test = whole.public_images[tested], whole.public_labels[tested]
        owners = np.random.default_rng(0).integers(0, HOSPITALS, len(whole.private_labels))
        return SplitRecords(
            whole.private_images, whole.private_labels, owners, whole.public_images[~tested], test
        )


class _Tables:
    """The rows of tables: who has which record, and of breast cancer what is public, is dealt by the seed."""

    def __init__(self, adult: Dataset, breast: Dataset) -> None:
        self._adult, self._breast = adult, breast

    def __call__(self, task: tuple[str, str, float, int]) -> SumsRun:
        data, method, _, seed = task
        parts = self._parts(data, np.random.default_rng(seed))
        if method in (CENTRAL, ALONE):
            return _without_privacy(task, parts)
        if method == NO_POOL:
            return _without_pool(task, parts)
        if method == ROUNDS:
            features = build_feature_map(FeatureSettings(name=LINEAR, columns=parts.columns), parts.pool)
            return _in_rounds(task, parts, features, _rounds_by_default(task, parts))
        feature_map = build_feature_map(FeatureSettings(name=method, columns=parts.columns), parts.pool)
        return _measured(task, parts, *_exact(parts, feature_map))

    def _parts(self, data: str, rng: np.random.Generator) -> SplitRecords:
        if data == self._adult.name:
            whole, half = self._adult, len(self._adult.public_labels) // 2
            owners = rng.integers(0, HOSPITALS, len(whole.private_labels))
            test = whole.public_images[half:], whole.public_labels[half:]
            columns = tuple(map(int, whole.details.split()))
            pool = whole.public_images[:half]
            return SplitRecords(whole.private_images, whole.private_labels, owners, pool, test, columns)
        if data == CLINICS:
            return _clinics(int(rng.integers(2**31)))
        rows, labels = self._breast.private_images, self._breast.private_labels
        order = rng.permutation(len(labels))
        private, public = order[:BREAST_PRIVATE], order[BREAST_PRIVATE:]
        owners = np.arange(BREAST_PRIVATE) % HOSPITALS
        test = rows[public], labels[public]
        return SplitRecords(rows[private], labels[private], owners, rows[public], test, (1,) * rows.shape[1])


def _clinics(seed: int) -> SplitRecords:
    """910 drawn patients of four unlike clinics; a quarter of them is the pool and the test."""
    table = four_hospitals(seed)
    codes = [table.rows[:, at, None] == np.arange(count) for at, count in enumerate(CODES, 8)]
    rows = np.hstack([table.rows[:, :8], *codes])
    order = np.random.default_rng(seed).permutation(len(rows))
    public, private = order[: len(order) // 4], order[len(order) // 4 :]
    owners, test = table.owners[private], (rows[public], table.labels[public])
    return SplitRecords(rows[private], table.labels[private], owners, rows[public], test, (*(1,) * 8, *CODES))


def _declared(parts: SplitRecords, knots: int) -> tuple[tuple[float, ...], ...]:
    """Knots, even over each number's range; none of a category."""
    ends: Iterator[tuple[float, float]] = iter(_ADULT_RANGES)
    if parts.columns[-5:] == CODES:  # the clinics' numbers are in deviations
        ends = iter([(-4.0, 4.0)] * 8)
    if len(set(parts.columns)) == 1:  # numbers alone
        greatest = np.vstack([parts.inputs, parts.test[0]]).max(axis=0)
        digit = 10.0 ** np.floor(np.log10(greatest))
        ends = iter((0.0, float(end)) for end in np.ceil(greatest / digit) * digit)
    return tuple(tuple(np.linspace(*next(ends), knots).tolist()) if w == 1 else () for w in parts.columns)


def _exact(parts: SplitRecords, feature_map: FeatureMap) -> tuple[FeatureMap, Ints]:
    """The public map, and the sum over hospitals of what each adds up; int64 (dimension, classes)."""
    classes = int(parts.labels.max()) + 1
    each = (
        feature_map.contributions(
            parts.inputs[parts.owners == own], parts.labels[parts.owners == own], num_classes=classes
        )
        for own in range(HOSPITALS)
    )
    return feature_map, sum(each, np.zeros((feature_map.dimension, classes), dtype=np.int64))


def _measured(
    task: tuple[str, str, float, int],
    parts: SplitRecords,
    feature_map: FeatureMap,
    total: Ints,
    *,
    drawn: bool = False,
) -> SumsRun:
    data, _, epsilon, seed = task
    started = time.perf_counter()
    size: dict[str, Any] = {"num_classes": total.shape[1], "dimension": total.shape[0]}
    shape = SumShape(**size, squared_norm=feature_map.squared_norm)
    sigma = least_sigma(epsilon, DELTAS[data], shape)
    mechanism = ClassSums(**size, squared_norm=feature_map.squared_norm, sigma=sigma)
    noisy = mechanism.noisy(total, SeededNoise(seed))
    pool = drawn_alike(feature_map, noisy) if drawn else parts.pool
    student = fit_sums_student(noisy, feature_map, pool, sigma=sigma)
    spent = time.perf_counter() - started
    unit = float(np.sqrt(feature_map.squared_norm))
    return _row(task, student.predict_proba(parts.test[0]), parts, sigma=sigma / unit, seconds=spent)


def _without_pool(task: tuple[str, str, float, int], parts: SplitRecords) -> SumsRun:
    """One student of bins of declared ranges, where rows drawn from the sums are the pool."""
    settings = FeatureSettings(
        name=BINS,
        lattice=LATTICE_WITHOUT_POOL,
        columns=parts.columns,
        cuts=_declared(parts, FeatureSettings().bins),
    )
    features = build_feature_map(settings, parts.pool)  # of which it takes nothing
    rounds = _rounds_by_default(task, parts, drawn=True)
    if not rounds:
        return _measured(task, parts, *_exact(parts, features), drawn=True)
    return _in_rounds(task, parts, features, rounds, drawn=True)


def _rounds_by_default(task: tuple[str, str, float, int], parts: SplitRecords, *, drawn: bool = False) -> int:
    """As a study that knows its records has them (`fixed_rounds`)."""
    sites = Sites(
        hospitals=HOSPITALS,
        teachers=HOSPITALS,
        records=len(parts.labels) // HOSPITALS,
        classes=int(parts.labels.max()) + 1,
        epsilon=task[2],
        delta=DELTAS[task[0]],
        shares=Shares(num_clients=HOSPITALS, least_voters=HOSPITALS, colluders=0),
    )
    return useful_rounds(len(parts.labels), sites.classes, sums_noise(sites), drawn=drawn)


def _in_rounds(
    task: tuple[str, str, float, int],
    parts: SplitRecords,
    features: FeatureMap,
    rounds: int,
    *,
    drawn: bool = False,
    kept: NDArray[Any] | None = None,
) -> SumsRun:
    """One student of one question and rounds after it, as a study asks them."""
    started = time.perf_counter()
    data, _, epsilon, seed = task
    kept = features.features(parts.inputs) if kept is None else kept
    classes, first = int(parts.labels.max()) + 1, class_length(LENGTH, RECORD.adjacency)
    shape = SumShape(
        num_classes=classes,
        dimension=features.dimension,
        squared_norm=features.squared_norm * LENGTH**2,
        class_norm=features.squared_norm * first**2,
        questions=1 + rounds,
    )
    sigma = least_sigma(epsilon, DELTAS[data], shape)
    noise, weights = SeededNoise(seed), np.zeros((features.dimension, classes))
    fit: RoundsFit | None = None
    pull: Pull = ClassPull(num_classes=classes, length=first)
    for number in range(1 + rounds):
        total = features.contributions(parts.inputs, parts.labels, num_classes=classes, pull=pull, kept=kept)
        noisy = total + noise.discrete_gaussian(total.shape, sigma=sigma)
        if fit is None:
            pool = drawn_alike(features, noisy) if drawn else parts.pool
            fit = RoundsFit(features, pool, sigma=sigma, length=first, unit=UNIT)
        weights = fit.go_on(weights, noisy, number) if number else fit.begin(noisy)
        given = unpack_weights(pack_weights(weights), (features.dimension, classes))
        pull = ResidualPull(weights=given, squared_norm=features.squared_norm, length=LENGTH, unit=UNIT)
    assert fit is not None
    scores = fit.student(weights).predict_proba(parts.test[0])
    unit = math.sqrt(shape.squared_norm)
    return _row(task, scores, parts, sigma=sigma / unit, seconds=time.perf_counter() - started)


def _row(
    task: Any, scores: NDArray[Any], parts: SplitRecords, *, sigma: float = 0.0, seconds: float = 0.0
) -> SumsRun:
    """What scores (n, classes) of the tested inputs come to."""
    from sklearn.metrics import roc_auc_score

    truth = parts.test[1]
    right = scores.argmax(axis=1) == truth
    recalls = [float(right[truth == label].mean()) for label in np.unique(truth)]
    return SumsRun(
        *task,
        accuracy=float(right.mean()),
        balanced=float(np.mean(recalls)),
        auc=float(roc_auc_score(truth, scores[:, 1] - scores[:, 0])) if scores.shape[1] == 2 else 0.0,
        sigma=sigma,
        seconds=seconds,
    )


def _without_privacy(task: tuple[str, str, float, int], parts: SplitRecords) -> SumsRun:
    """Logistic regression on standardised columns: of all records, or the mean of each hospital's own."""
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if task[1] == CENTRAL:
        chosen = [np.ones(len(parts.labels), dtype=np.bool_)]
    else:
        chosen = [parts.owners == own for own in range(HOSPITALS)]
    rows = []
    for own in chosen:
        model = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression(max_iter=1000))
        model.fit(parts.inputs[own], parts.labels[own])
        rows.append(_row(task, np.asarray(model.predict_proba(parts.test[0])), parts))
    accuracy, balanced, auc = (
        float(np.mean([getattr(row, name) for row in rows])) for name in ("accuracy", "balanced", "auc")
    )
    return SumsRun(*task, accuracy=accuracy, balanced=balanced, auc=auc, sigma=0.0, seconds=0.0)


def _lines(name: str, rows: list[SumsRun]) -> Iterator[str]:
    columns = (
        Column("data", lambda cell: cell.task[0]),
        Column("method", lambda cell: cell.task[1]),
        Column("ε", lambda cell: cell.task[2] or None, "g"),
        *ACCURACY,
        Column("balanced, %", lambda cell: cell.percent("balanced")[0], ".1f"),
        Column("AUC, %", lambda cell: cell.percent("auc")[0] or None, ".1f"),
        Column("σ", lambda cell: cell.mean("sigma") or None, ".2f"),
        Column("fit, s", lambda cell: cell.mean("seconds") or None, ".1f"),
    )
    order = [(row.data, row.method, row.epsilon) for row in rows]
    yield f"{name}: noisy class sums of {HOSPITALS} hospitals, one record replaced"
    yield from text_table(columns, cells_of(rows, order))
    deltas = {row.data: DELTAS[row.data] for row in rows}
    yield "δ: " + ", ".join(f"{data} {delta_text(delta)}" for data, delta in deltas.items())
    yield "σ: in lengths of a record's contribution; balanced: the mean of the classes' recalls"
    yield "not private: seeded noise, on a public data set"


def _breast_cancer() -> Dataset:
    from sklearn.datasets import load_breast_cancer

    rows, labels = load_breast_cancer(return_X_y=True)
    return table_of("breast cancer", rows, labels.astype(np.int64), train=len(labels), num_queries=0)


def _adult(plan: Reproduction) -> Dataset:
    """Numbers as they are, a category as one number for each of its values, all 0 where it is missing."""
    rows, train = read_adult(plan.data_dir)
    columns = []
    for place, name in enumerate(_NAMES):
        cells = np.array([row[place] for row in rows])
        if name in _NUMBERS:
            columns.append(cells.astype(np.float64)[:, None])
        elif name != "education":  # its number says the same
            values = sorted(set(cells.tolist()) - {"?"})
            columns.append((cells[:, None] == np.array(values)).astype(np.float64))
    widths = " ".join(str(column.shape[1]) for column in columns)
    features, tested = np.concatenate(columns, axis=1), len(rows) - train
    return table_of("adult", features, is_rich(rows), train=train, num_queries=tested, details=widths)

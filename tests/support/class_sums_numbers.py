"""Noisy sums of a number beside central differential privacy: R² against ε on Adult and on Diabetes130.

Hours a week (Adult, 1 to 99) and days in hospital (Diabetes130, 1 to 14), read by the product's own reader.
Adult: adult.data is private, the first half of adult.test the pool, the other half tests. Diabetes130: each
patient's first stay, in an order that the seed draws; 4,000 are the pool, 8,000 test, the others are private.
One record is replaced, δ 1e-5, all of ε is spent on the sums.

Beside it AdaSSP (Wang, 2018, algorithm 2) in one place: a noisy Gram matrix, sums and least eigenvalue of all
private records, ε shared evenly between them, as Gaussian DP. It gets what ours does not: the better of two
sets of features (columns alone, or ours), and the best of nine ridges, both by the inputs that test.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from class_sums_tables import EPSILONS, Bench
from numpy.typing import NDArray

from pate_fed.bench.tasks import ADULT, first_stays, read_cells
from pate_fed.data.schema import TARGET_STEPS, Schema
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import LINEAR, FeatureSettings
from pate_fed.learning.students.targets import fit_target_student
from pate_fed.privacy import SeededNoise
from pate_fed.privacy.mechanisms.class_sums import ClassSums, SumShape, least_sigma
from pate_fed.reproduce.census import read_adult
from pate_fed.reproduce.columns import Column, cells_of, text_table
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables

Floats = NDArray[np.float64]

DELTA = 1e-5
OURS, ADASSP, PLAIN = (
    "sums of four hospitals",
    "AdaSSP in one place, best of 18",
    "ridge in one place, no privacy",
)
HOURS, DAYS = "adult, hours a week", "diabetes130, days in hospital"
_RANGES = {HOURS: (1.0, 99.0), DAYS: (1.0, 14.0)}
_RIDGES = tuple(2.0**power for power in range(-6, 3))


@dataclass(frozen=True, slots=True)
class NumbersRun:
    """One student; `epsilon` is 0 where there is no privacy."""

    data: str
    method: str
    epsilon: float
    seed: int
    _: KW_ONLY
    r2: float
    mean_absolute_error: float
    seconds: float

    @property
    def accuracy(self) -> float:
        """What the log shows of a row."""
        return self.r2


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """Private rows, pool and tested rows, with where each stands in the range, 0 to 1."""

    private: tuple[NDArray[Any], Floats]
    pool: NDArray[Any]
    test: tuple[NDArray[Any], Floats]
    schema: Schema


def reproduce_sums_of_numbers(plan: Bench, log: Log) -> list[str]:
    """Both tables, ours and central, by ε."""
    tasks: list[tuple[str, str, float, int]] = []
    for data in (HOURS, DAYS):
        for seed in range(plan.seeds):
            tasks.append((data, PLAIN, 0.0, seed))
            tasks += [(data, method, epsilon, seed) for epsilon in EPSILONS for method in (OURS, ADASSP)]
    table = Table(
        path=plan.out_dir / f"{plan.name}-runs.csv",
        row=NumbersRun,
        tasks=tasks,
        make=partial(_measured, plan),
        inputs={"code": sha256(Path(__file__).read_bytes()).hexdigest()},
        lines=_lines,
    )
    return run_tables(plan, [table], text=plan.out_dir / f"{plan.name}.txt", log=log)


def _measured(plan: Reproduction, task: tuple[str, str, float, int]) -> NumbersRun:
    data, method, epsilon, seed = task
    parts, started = _parts(plan, data, seed), time.perf_counter()
    if method == OURS:
        found = _ours(parts, epsilon, seed)
    elif method == ADASSP:
        found = max(
            (_adassp(parts, way, epsilon, seed, ridge) for way in _sets(parts) for ridge in _RIDGES),
            key=lambda told: _r2(told, parts.test[1]),
        )
    else:
        private, tested = _sets(parts)[1]
        gram = private.T @ private + 1e-2 * np.eye(private.shape[1])
        middle = parts.private[1].mean()
        found = middle + tested @ np.linalg.solve(gram, private.T @ (parts.private[1] - middle))
    truth, told = parts.test[1], np.clip(found, 0.0, 1.0)
    low, high = _RANGES[data]
    return NumbersRun(
        *task,
        r2=_r2(told, truth),
        mean_absolute_error=float(np.abs(told - truth).mean()) * (high - low),
        seconds=time.perf_counter() - started,
    )


def _r2(told: Floats, truth: Floats) -> float:
    return 1 - float(((np.clip(told, 0.0, 1.0) - truth) ** 2).mean() / truth.var())


def _map(parts: Numbers) -> Any:
    widths = tuple(max(1, len(values)) for _, values in parts.schema.columns)
    return build_feature_map(FeatureSettings(name=LINEAR, columns=widths), parts.pool)


def _ours(parts: Numbers, epsilon: float, seed: int) -> Floats:
    """The study's own sums, noise and student."""
    features = _map(parts)
    rows, places = parts.private
    steps = np.rint(places * TARGET_STEPS).astype(np.int64)
    total = features.contributions(rows, steps, num_classes=2, steps=TARGET_STEPS)
    size: dict[str, Any] = {"num_classes": 2, "dimension": features.dimension}
    size["squared_norm"] = features.squared_norm
    sigma = least_sigma(epsilon, DELTA, SumShape(**size))
    noisy = ClassSums(**size, sigma=sigma).noisy(total, SeededNoise(seed))
    student = fit_target_student(noisy, features, parts.pool, sigma=sigma, target_range=(0.0, 1.0))
    return np.asarray(student.predict_proba(parts.test[0])[:, 1], dtype=np.float64)


def _sets(parts: Numbers) -> list[tuple[Floats, Floats]]:
    """Private and tested rows as features of norm 1 at most: columns alone with a constant, and ours."""
    features = _map(parts)
    ways = []
    for make in (partial(_columns, parts), features.scaled):
        each = [np.asarray(make(rows), dtype=np.float64) for rows in (parts.private[0], parts.test[0])]
        ways.append((each[0], each[1]))
    return ways


def _columns(parts: Numbers, rows: NDArray[Any]) -> Floats:
    """Columns, categories one-hot, standardised by the pool, 0 where missing; a constant; cut at norm 1."""
    pool = np.asarray(parts.pool, dtype=np.float64)
    middle, spread = np.nanmean(pool, axis=0), np.nanstd(pool, axis=0)
    kept = spread > 0

    def scaled(part: Floats) -> Floats:
        standard = np.nan_to_num((part[:, kept] - middle[kept]) / spread[kept])
        return np.hstack([standard, np.full((len(part), 1), math.sqrt(kept.sum()) / 2)])

    length = np.median(np.linalg.norm(scaled(pool), axis=1))
    found = scaled(np.asarray(rows, dtype=np.float64))
    return found / np.maximum(length, np.linalg.norm(found, axis=1, keepdims=True))


def _adassp(parts: Numbers, way: tuple[Floats, Floats], epsilon: float, seed: int, ridge: float) -> Floats:
    """Places of the tested rows; the ridge is `ridge` times what the noise on the Gram matrix wants."""
    private, tested = way
    targets = 2 * parts.private[1] - 1  # |y| ≤ 1
    rng, dimension = np.random.default_rng(seed), private.shape[1]
    noise = math.sqrt(3) / _mu(epsilon)  # a third of μ² each
    gram = private.T @ private
    drawn = np.triu(rng.normal(size=gram.shape)) * math.sqrt(2) * noise  # ‖xxᵀ - x'x'ᵀ‖ ≤ √2
    least = max(0.0, float(np.linalg.eigvalsh(gram)[0]) + rng.normal() * noise)
    sums = private.T @ targets + rng.normal(size=dimension) * 2 * noise
    wanted = 2 * math.sqrt(2 * dimension) * noise  # the noise's greatest eigenvalue
    held = gram + drawn + np.triu(drawn, 1).T + max(0.0, ridge * wanted - least) * np.eye(dimension)
    return (tested @ np.linalg.solve(held, sums) + 1) / 2


@cache
def _mu(epsilon: float) -> float:
    """The μ of Gaussian DP that is (ε, δ)."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    def beyond(mu: float) -> float:
        below = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(below) - DELTA

    return float(brentq(beyond, 1e-3, 20))


@cache
def _parts(plan: Reproduction, data: str, seed: int) -> Numbers:
    assert plan.data_dir is not None
    inputs, places, schema, private = _read(plan.data_dir, data)
    if data == HOURS:
        half = (len(places) + private) // 2
        cuts = (slice(0, private), slice(private, half), slice(half, None))
        order = np.arange(len(places))
    else:
        order = np.random.default_rng(seed).permutation(len(places))
        cuts = (slice(12_000, None), slice(0, 4_000), slice(4_000, 12_000))
    own, pool, test = (order[cut] for cut in cuts)
    return Numbers((inputs[own], places[own]), inputs[pool], (inputs[test], places[test]), schema)


@cache
def _read(folder: Path, data: str) -> tuple[NDArray[Any], Floats, Schema, int]:
    """Inputs, places in the range, schema, and how many rows are private by their file."""
    if data == HOURS:
        cells, private = read_adult(folder)
        names, cells = ADULT, [[*row[:-1], row[-1].rstrip(".")] for row in cells]
    else:
        names, cells = first_stays(folder / "diabetes130" / "dataset_diabetes.zip")
        private = 0
    label, (low, high) = "hours" if data == HOURS else "time_in_hospital", _RANGES[data]
    inputs, labels, schema = read_cells(names, cells, label=label, target_range=(low, high))
    return inputs, (labels - low) / (high - low), schema, private


def _lines(rows: list[NumbersRun]) -> Iterator[str]:
    columns = (
        Column("data", lambda cell: cell.task[0]),
        Column("method", lambda cell: cell.task[1]),
        Column("ε", lambda cell: cell.task[2] or None, "g"),
        Column("R²", lambda cell: cell.mean("r2"), ".3f"),
        Column("± sd", lambda cell: cell.percent("r2")[1] / 100, ".3f"),
        Column("mean error", lambda cell: cell.mean("mean_absolute_error"), ".2f"),
        Column("seeds", lambda cell: len(cell.rows), "d"),
        Column("s", lambda cell: cell.mean("seconds"), ".1f"),
    )
    yield "class-sums-numbers: one record replaced, δ 1e-5"
    yield from text_table(columns, cells_of(rows, [(row.data, row.method, row.epsilon) for row in rows]))

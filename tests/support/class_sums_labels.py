"""Noisy sums of several labels beside central differential privacy: mean AUC against ε.

Diabetes130: whether a patient comes back, whether the treatment was changed, whether insulin is given; parts
as for numbers (`class_sums_numbers`). Generated: eight labels that 5 to 50 % of records have, drawn by the
seed from 12 numbers and a code, some of them together, 20,000 private records, 2,000 in the pool, 4,000 that
test. One record is replaced, δ 1e-5, all of ε is spent on the sums.

Beside it AdaSSP as there, of all labels together: ±1/√labels each, so that a record has length 1. It gets
the better of two sets of features, and the best of nine ridges, by the inputs that test.
"""

from __future__ import annotations

import csv
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cache, lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from class_sums_numbers import _RIDGES, DELTA, Numbers, _columns, _map, _mu
from class_sums_tables import EPSILONS, Bench
from numpy.typing import NDArray

from pate_fed.bench.tasks import LEFT_OUT, first_stays
from pate_fed.data.infer import infer_schema
from pate_fed.data.schema import Schema
from pate_fed.data.table import Rows, read_table
from pate_fed.learning.students.targets import fit_labels_student
from pate_fed.privacy import SeededNoise
from pate_fed.privacy.mechanisms.class_sums import ClassSums, SumShape, least_sigma
from pate_fed.report.labels import LabelFigures
from pate_fed.reproduce.columns import Column, cells_of, text_table
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables

Floats = NDArray[np.float64]

OURS, ADASSP, PLAIN = (
    "sums of four hospitals",
    "AdaSSP in one place, best of 18",
    "ridge in one place, no privacy",
)
DIABETES, DRAWN = "diabetes130, three labels", "generated, eight labels"


@dataclass(frozen=True, slots=True)
class LabelsRun:
    """One student; `epsilon` is 0 where there is no privacy."""

    data: str
    method: str
    epsilon: float
    seed: int
    _: KW_ONLY
    mean_auc: float
    mean_accuracy: float
    least_auc: float
    seconds: float

    @property
    def accuracy(self) -> float:
        """What the log shows of a row."""
        return self.mean_auc


def reproduce_sums_of_labels(plan: Bench, log: Log) -> list[str]:
    """Both tables, ours and central, by ε."""
    tasks: list[tuple[str, str, float, int]] = []
    for seed in range(plan.seeds):
        for data in (DRAWN, DIABETES):
            tasks.append((data, PLAIN, 0.0, seed))
            tasks += [(data, method, epsilon, seed) for epsilon in EPSILONS for method in (OURS, ADASSP)]
    table = Table(
        path=plan.out_dir / f"{plan.name}-runs.csv",
        row=LabelsRun,
        tasks=tasks,
        make=partial(_measured, plan),
        inputs={"code": sha256(Path(__file__).read_bytes()).hexdigest()},
        lines=_lines,
    )
    return run_tables(plan, [table], text=plan.out_dir / f"{plan.name}.txt", log=log)


def _measured(plan: Reproduction, task: tuple[str, str, float, int]) -> LabelsRun:
    data, method, epsilon, seed = task
    parts, started = _parts(plan, data, seed), time.perf_counter()
    if method == OURS:
        figures = _figures(parts, _ours(plan, data, epsilon, seed))
    elif method == ADASSP:
        both = (_adassp(plan, data, way, epsilon, seed) for way in (0, 1))
        told = (_figures(parts, found) for way in both for found in way)
        figures = max(told, key=lambda each: each.mean_auc)
    else:
        (private, tested), gram = _sets(plan, data, seed)[1], _gram(plan, data, seed, 1)[0]
        known = _marks(parts)
        middle = known.mean(axis=0)
        weights = np.linalg.solve(gram + 1e-2 * np.eye(len(gram)), private.T @ (known - middle))
        figures = _figures(parts, middle + tested @ weights)
    return LabelsRun(
        *task,
        mean_auc=figures.mean_auc,
        mean_accuracy=figures.mean_accuracy,
        least_auc=min(each.auc or 1.0 for each in figures.each),
        seconds=time.perf_counter() - started,
    )


def _figures(parts: Numbers, found: Floats) -> LabelFigures:
    names = [name for name, _ in parts.schema.labels]
    figures = LabelFigures.of(found, parts.test[1].astype(np.int64), names)
    assert figures is not None
    return figures


def _marks(parts: Numbers) -> Floats:
    """1 where a private record has a label, else 0: (n, labels)."""
    places = np.arange(len(parts.schema.labels))
    return (parts.private[1].astype(np.int64)[:, None] >> places & 1).astype(np.float64)


def _ours(plan: Reproduction, data: str, epsilon: float, seed: int) -> Floats:
    """The study's own sums, noise and student."""
    parts = _parts(plan, data, seed)
    features, total = _summed(plan, data, seed)
    several = len(parts.schema.labels)
    size: dict[str, Any] = {"num_classes": 2 * several, "dimension": features.dimension}
    size["squared_norm"] = several * features.squared_norm
    sigma = least_sigma(epsilon, DELTA, SumShape(**size))
    noisy = ClassSums(**size, sigma=sigma).noisy(total, SeededNoise(seed))
    student = fit_labels_student(noisy, features, parts.pool, sigma=sigma, several=several)
    return np.asarray(student.predict_proba(parts.test[0])[:, 1::2], dtype=np.float64)


@lru_cache(maxsize=1)
def _summed(plan: Reproduction, data: str, seed: int) -> tuple[Any, NDArray[np.int64]]:
    parts = _parts(plan, data, seed)
    features, several = _map(parts), len(parts.schema.labels)
    labels = parts.private[1].astype(np.int64)
    return features, features.contributions(
        parts.private[0], labels, num_classes=2 * several, several=several
    )


@lru_cache(maxsize=1)
def _sets(plan: Reproduction, data: str, seed: int) -> list[tuple[Floats, Floats]]:
    """Private and tested rows as features of norm 1 at most: columns alone with a constant, and ours."""
    parts = _parts(plan, data, seed)
    ways = (partial(_columns, parts), _summed(plan, data, seed)[0].scaled)
    rows = parts.private[0], parts.test[0]
    each = [[np.asarray(make(one), dtype=np.float64) for one in rows] for make in ways]
    return [(private, tested) for private, tested in each]


@lru_cache(maxsize=2)
def _gram(plan: Reproduction, data: str, seed: int, way: int) -> tuple[Floats, float, Floats]:
    """Of private rows: their Gram matrix, its least eigenvalue, and sums by labels, ±1/√labels each."""
    private, known = _sets(plan, data, seed)[way][0], 2 * _marks(_parts(plan, data, seed)) - 1
    gram = private.T @ private
    return gram, float(np.linalg.eigvalsh(gram)[0]), private.T @ known / math.sqrt(known.shape[1])


def _adassp(plan: Reproduction, data: str, way: int, epsilon: float, seed: int) -> Iterator[Floats]:
    """Probabilities of the tested rows by each ridge: so many times what the noise on the Gram wants."""
    tested, (gram, eigenvalue, sums) = _sets(plan, data, seed)[way][1], _gram(plan, data, seed, way)
    rng, (dimension, labels) = np.random.default_rng(seed), sums.shape
    noise = math.sqrt(3) / _mu(epsilon)  # a third of μ² each
    drawn = np.triu(rng.normal(size=gram.shape)) * math.sqrt(2) * noise  # ‖xxᵀ - x'x'ᵀ‖ ≤ √2
    least = max(0.0, eigenvalue + rng.normal() * noise)
    noisy = sums + rng.normal(size=sums.shape) * 2 * noise
    wanted = 2 * math.sqrt(2 * dimension) * noise  # the noise's greatest eigenvalue
    for ridge in _RIDGES:
        held = gram + drawn + np.triu(drawn, 1).T + max(0.0, ridge * wanted - least) * np.eye(dimension)
        yield (tested @ np.linalg.solve(held, noisy) * math.sqrt(labels) + 1) / 2


@lru_cache(maxsize=1)
def _parts(plan: Reproduction, data: str, seed: int) -> Numbers:
    assert plan.data_dir is not None
    if data == DIABETES:
        rows, schema = _diabetes(plan.data_dir)
        order = np.random.default_rng(seed).permutation(len(rows.labels))
        cuts = (slice(12_000, None), slice(0, 4_000), slice(4_000, 12_000))
    else:
        rows, schema = _generated(seed)
        order = np.arange(len(rows.labels))
        cuts = (slice(6_000, None), slice(0, 2_000), slice(2_000, 6_000))
    own, pool, test = (order[cut] for cut in cuts)
    known = rows.labels.astype(np.float64)
    return Numbers(
        (rows.inputs[own], known[own]), rows.inputs[pool], (rows.inputs[test], known[test]), schema
    )


@cache
def _diabetes(folder: Path) -> tuple[Rows, Schema]:
    names, cells = first_stays(folder / "diabetes130" / "dataset_diabetes.zip")
    labels = ["readmitted", "change", "insulin"]
    kept = [place for place, name in enumerate(names) if name not in {*LEFT_OUT, *labels}]
    told = [[row[names.index(label)] for label in labels] for row in cells]
    rows = [
        [*("no" if each.upper() == "NO" else "yes" for each in own), *(row[place] for place in kept)]
        for own, row in zip(told, cells, strict=True)
    ]
    return _read([*labels, *(names[place] for place in kept)], rows, labels)


def _generated(seed: int) -> tuple[Rows, Schema]:
    rng = np.random.default_rng(seed)
    count, numbers, labels = 26_000, 12, [f"label{number}" for number in range(8)]
    drawn, codes = rng.normal(size=(count, numbers)), rng.integers(0, 4, count)
    scores = 0.35 * drawn @ rng.normal(size=(numbers, 3)) @ rng.normal(size=(3, len(labels)))
    scores += 0.3 * drawn @ rng.normal(size=(numbers, len(labels)))
    scores += 0.8 * np.tanh(drawn[:, :4] @ rng.normal(size=(4, len(labels))))
    scores += 0.7 * rng.normal(size=(4, len(labels)))[codes] + rng.logistic(size=(count, len(labels)))
    drawn[:, 1] += 0.6 * drawn[:, 0]
    drawn[:, 4] = np.exp(0.5 * drawn[:, 4])
    least = [
        np.quantile(own, 1 - share) for own, share in zip(scores.T, np.linspace(0.05, 0.5, 8), strict=True)
    ]
    rows = [
        [*np.where(own > least, "yes", "no"), *(f"{value:.3f}" for value in row), "abcd"[code]]
        for own, row, code in zip(scores, drawn, codes, strict=True)
    ]
    return _read([*labels, *(f"x{number}" for number in range(numbers)), "ward"], rows, labels)


def _read(names: list[str], rows: list[list[str]], labels: list[str]) -> tuple[Rows, Schema]:
    """A table by the product's own reader."""
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "rows.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([names, *rows])
        schema = infer_schema([path], labels=labels).schema
        return read_table(path, schema, labelled=True), schema


def _lines(rows: list[LabelsRun]) -> Iterator[str]:
    columns = (
        Column("data", lambda cell: cell.task[0]),
        Column("method", lambda cell: cell.task[1]),
        Column("ε", lambda cell: cell.task[2] or None, "g"),
        Column("mean AUC", lambda cell: 100 * cell.mean("mean_auc"), ".1f"),
        Column("± sd", lambda cell: cell.percent("mean_auc")[1], ".1f"),
        Column("least", lambda cell: 100 * cell.mean("least_auc"), ".1f"),
        Column("right", lambda cell: 100 * cell.mean("mean_accuracy"), ".1f"),
        Column("seeds", lambda cell: len(cell.rows), "d"),
        Column("s", lambda cell: cell.mean("seconds"), ".1f"),
    )
    yield "class-sums-labels: one record replaced, δ 1e-5, AUC in percent"
    yield from text_table(columns, cells_of(rows, [(row.data, row.method, row.epsilon) for row in rows]))

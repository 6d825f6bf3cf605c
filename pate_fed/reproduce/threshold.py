"""What a threshold keeps, at one data-independent ε: labels that are right more often, of easy images.

250 light teachers on Fashion-MNIST, ε 4.05 at δ 1e-5. Each row spends the same ε; σ2 follows from how many
queries were looked at and answered. Beside the labels stands what they taught: a student's accuracy on the
inputs 7,000 to 8,999, with questions among the first 7,000. The last 1,000 images are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset
from pate_fed.format import delta_text
from pate_fed.learning import StudentSettings
from pate_fed.privacy import ConfidentGNMax, GNMax
from pate_fed.reproduce.columns import Cell, Column, cells_of, student_table
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables
from pate_fed.reproduce.measures import (
    ReleasedLabels,
    StudentRow,
    affordable_sigma2,
    release_labels,
    train_and_test,
)
from pate_fed.reproduce.votes import ensemble_size, inputs_of, teachers_totals

Setting = tuple[float | None, float | None, int]
EPSILON, DELTA = 4.05, 1e-5
ASKED_OF = 7000
STUDENT, TEACHER = "encoder-head", "encoder-head"
# Threshold and σ1 in votes (None: every query is answered), and the labels wanted.
SETTINGS: tuple[tuple[float | None, float | None, int], ...] = (
    (None, None, 500),
    (None, None, 1000),
    (None, None, 1500),
    (200.0, 60.0, 500),
    (200.0, 80.0, 1000),
    (240.0, 100.0, 500),
)


@dataclass(frozen=True, slots=True)
class ThresholdRun(StudentRow):
    """One release and the student that learnt from it; shares in [0, 1].

    `agreement` is the mean share of teachers behind the plurality, among what was answered and in the pool;
    `rarest` the labels of the class with fewest, as a share of an even part.
    """

    threshold: float | None
    sigma1: float | None
    labels: int
    seed: int
    _: KW_ONLY
    asked: int
    sigma2: float
    agreement: float
    agreement_pool: float
    rarest: float


def reproduce_threshold(plan: Reproduction, log: Log) -> list[str]:
    """Train the students and write threshold.txt."""
    dataset = plan.load("fashion-mnist")
    path = plan.totals or plan.out_dir / f"totals-{TEACHER}.npz"
    totals = teachers_totals(plan, dataset, path, teacher=TEACHER, log=log)
    table = Table(
        path=plan.out_dir / "threshold-runs.csv",
        row=ThresholdRun,
        tasks=[(*setting, seed) for seed in range(plan.seeds) for setting in SETTINGS],
        make=partial(_train, plan, dataset, totals),
        inputs=inputs_of(plan, [dataset], {"totals": totals}),
        lines=_lines,
    )
    return run_tables(plan, [table], text=plan.out_dir / "threshold.txt", log=log)


def _release(totals: NDArray[np.int64], setting: Setting, seed: int) -> tuple[ReleasedLabels, float]:
    """The labels, and the σ2 that the looks at the votes leave room for."""
    threshold, sigma1, labels = setting
    size, affordable = ensemble_size(totals), partial(affordable_sigma2, epsilon=EPSILON, delta=DELTA)
    if threshold is None or sigma1 is None:
        sigma2 = affordable(asked=labels, answered=labels)
        return release_labels(GNMax(**size, sigma=sigma2), totals, seed=seed, labels=labels), sigma2
    check = ConfidentGNMax(**size, threshold=threshold, sigma1=sigma1, sigma2=1.0)
    # Seeded noise of the check comes first, so the next release answers the same queries.
    first = release_labels(check, totals, seed=seed, labels=labels)
    sigma2 = affordable(asked=len(first.asked), answered=len(first.index), sigma1=sigma1)
    return release_labels(replace(check, sigma2=sigma2), totals, seed=seed, labels=labels), sigma2


def _train(
    plan: Reproduction,
    dataset: Dataset,
    totals: NDArray[np.int64],
    task: tuple[float | None, float | None, int, int],
) -> ThresholdRun:
    threshold, sigma1, labels, seed = task
    pool = totals[:ASKED_OF]
    given, sigma2 = _release(pool, (threshold, sigma1, labels), seed)
    settings, part = StudentSettings(name=STUDENT), slice(ASKED_OF, dataset.num_queries)
    _, figures = train_and_test(plan, dataset, given.index, given.label, settings, seed=seed, tested=part)
    classes, agreement = totals.shape[1], pool.max(axis=1) / pool[0].sum()
    return ThresholdRun(
        *task,
        asked=len(given.asked),
        sigma2=sigma2,
        agreement=float(agreement[given.index].mean()),
        agreement_pool=float(agreement.mean()),
        rarest=float(np.bincount(given.label, minlength=classes).min() * classes / len(given.label)),
        **figures,
    )


def _lines(rows: list[ThresholdRun]) -> Iterator[str]:
    columns = (
        Column("T", lambda cell: cell.task[0], "g"),
        Column("σ1", lambda cell: cell.task[1], "g"),
        Column("labels", lambda cell: cell.task[2], "d"),
        Column("asked", lambda cell: cell.mean("asked"), ".0f"),
        Column("σ2", lambda cell: cell.mean("sigma2"), ".1f"),
        Column("agreed, %", lambda cell: cell.percent("agreement")[0], ".1f"),
        Column("rarest, %", lambda cell: cell.percent("rarest")[0], ".0f"),
    )
    yield from student_table(columns, cells_of(rows, SETTINGS))
    if rows:
        pool = Cell((), rows).percent("agreement_pool")[0]
        yield f"agreed: teachers behind the plurality, of what was answered; in the whole pool {pool:.1f} %"
    yield "rarest: labels of the class with fewest, of an even part"
    cost = f"data-independent ε {EPSILON:g}, δ {delta_text(DELTA)}"
    yield f"each row at {cost}; not private: seeded noise, public data"

"""MNIST from the votes of 250 teachers that the authors of PATE published in 2018; no teacher is trained.

P18 (Papernot et al., arXiv 1802.08908, Table 1): Confident-GNMax with T 200, σ1 150, σ2 40 answers 286
queries at a data-dependent ε of 1.97 (δ 1e-5), and the student reaches 98.5 % on the last 1,000 test images.
The number of labels is fixed beforehand, never by the data-dependent ε: a stop on it would leak.

Beside a quick student stand the GAN of P18 and the students of PATE++; they take a minute or two each, so
they come after it, seed by seed, and what there is can be looked at after each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset
from pate_fed.format import delta_text, epsilon_text
from pate_fed.learning import StudentSettings
from pate_fed.privacy import ConfidentGNMax, data_dependent_epsilon_do_not_publish, epsilon_of
from pate_fed.reproduce.columns import Column, cells_of, student_table
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables
from pate_fed.reproduce.measures import StudentRow, release_labels, train_and_test
from pate_fed.reproduce.votes import authors_totals, ensemble_size, inputs_of, read_totals

THRESHOLD, SIGMA1, SIGMA2, DELTA = 200.0, 150.0, 40.0, 1e-5
EPOCHS = 10  # of each stage of a student
LABELS = (286, 100)
PAPER = {286: (1.97, 98.5)}  # ε and % of P18
QUICK_STUDENTS = ("encoder-head",)
SLOW_STUDENTS = ("co-teaching", "gan", "pate+", "pate++")


@dataclass(frozen=True, slots=True)
class MnistRun(StudentRow):
    """One student. The first ε comes from the votes and is for study on public data only."""

    student: str
    labels: int
    seed: int
    _: KW_ONLY
    asked: int
    epsilon_do_not_publish: float
    epsilon_data_independent: float


def reproduce_mnist(plan: Reproduction, log: Log) -> list[str]:
    """Train the students and write mnist-votes.txt."""
    dataset = plan.load("mnist")
    if plan.totals is None:
        totals = authors_totals(plan, dataset)
    else:
        totals = read_totals(plan.totals, rows=dataset.num_queries, classes=dataset.num_classes)
    table = Table(
        path=plan.out_dir / "mnist-votes-runs.csv",
        row=MnistRun,
        tasks=list(_tasks(plan.seeds)),
        make=partial(_train, plan, dataset, totals),
        inputs=inputs_of(plan, [dataset], {"totals": totals}),
        lines=_lines,
    )
    text = plan.out_dir / "mnist-votes.txt"
    return run_tables(plan, [table], text=text, log=log)


def _tasks(seeds: int) -> Iterator[tuple[str, int, int]]:
    """Student, labels and seed: the quick student for all seeds, then the slow ones, seeds outermost."""
    for students in (QUICK_STUDENTS, SLOW_STUDENTS):
        for seed in range(seeds):
            for student in students:
                for labels in LABELS:
                    yield student, labels, seed


def _train(
    plan: Reproduction, dataset: Dataset, totals: NDArray[np.int64], task: tuple[str, int, int]
) -> MnistRun:
    student, labels, seed = task
    size = ensemble_size(totals)
    mechanism = ConfidentGNMax(**size, threshold=THRESHOLD, sigma1=SIGMA1, sigma2=SIGMA2)
    given = release_labels(mechanism, totals, seed=seed, labels=labels)
    settings = StudentSettings(name=student, epochs=EPOCHS)
    _, figures = train_and_test(plan, dataset, given.index, given.label, settings, seed=seed)
    answered = np.isin(given.asked, given.index)
    spent = data_dependent_epsilon_do_not_publish(mechanism, totals[given.asked], answered, delta=DELTA)
    return MnistRun(
        *task,
        asked=len(given.asked),
        epsilon_do_not_publish=spent.epsilon,
        epsilon_data_independent=epsilon_of(given.event.cost(), DELTA),
        **figures,
    )


def _lines(rows: list[MnistRun]) -> Iterator[str]:
    columns = (
        Column("student", lambda cell: cell.task[0]),
        Column("labels", lambda cell: cell.task[1], "d"),
        Column("paper, %", lambda cell: PAPER[cell.task[1]][1] if cell.task[1] in PAPER else None, ".1f"),
    )
    order = [(name, labels) for labels in LABELS for name in (*QUICK_STUDENTS, *SLOW_STUDENTS)]
    yield from student_table(columns, cells_of(rows, order), pairs=True)
    for labels in LABELS:
        some = [row for row in rows if row.labels == labels]
        if some:
            worst = max(row.epsilon_do_not_publish for row in some)
            flat = max(row.epsilon_data_independent for row in some)
            yield (
                f"{labels} labels, T {THRESHOLD:g}, σ1 {SIGMA1:g}, σ2 {SIGMA2:g}, δ {delta_text(DELTA)}: "
                f"data-independent ε {epsilon_text(flat)}; data-dependent at most {epsilon_text(worst)} "
                "(do not publish; P18: 1.97 for 286)"
            )
    yield "not private: seeded noise, on public votes"

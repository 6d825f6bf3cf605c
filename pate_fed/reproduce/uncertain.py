"""Which inputs an ε is spent on: at random, or half of them where a student of the others is least sure.

250 light teachers on Fashion-MNIST, 1,500 labels without a threshold at ε 4.05 and δ 1e-5, charged by
outcome. A choice is a function of released labels and public inputs, so it costs nothing, and a number of
labels costs the same however they were chosen. Between the halves a kernel head on the public encoder says
where it is unsure. The strategy and the number of labels were settled on inputs 7,000 to 8,999 with questions
among the first 7,000; students are tested on the last 1,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset
from pate_fed.format import delta_text
from pate_fed.learning import StudentSettings, choose_order
from pate_fed.privacy import GNMax, SeededNoise
from pate_fed.reproduce.columns import Column, cells_of, student_table
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables
from pate_fed.reproduce.measures import StudentRow, affordable_sigma2, train_and_test
from pate_fed.reproduce.votes import ensemble_size, inputs_of, teachers_totals

Ints = NDArray[np.int64]
EPSILON, DELTA, LABELS = 4.05, 1e-5, 1500
STUDENT = TEACHER = "encoder-head"
STRATEGIES = ("least-confident", "random")


@dataclass(frozen=True, slots=True)
class UncertainRun(StudentRow):
    """One student of labels that were asked for by a strategy; `plurality` is the teachers' share right.

    The latter is of the labelled inputs alone, and not private.
    """

    strategy: str
    seed: int
    _: KW_ONLY
    sigma2: float
    plurality: float


def reproduce_uncertain(plan: Reproduction, log: Log) -> list[str]:
    """Train the students and write questions.txt."""
    dataset = plan.load("fashion-mnist")
    path = plan.totals or plan.out_dir / f"totals-{TEACHER}.npz"
    totals = teachers_totals(plan, dataset, path, teacher=TEACHER, log=log)
    sigma2 = affordable_sigma2(asked=LABELS, answered=LABELS, epsilon=EPSILON, delta=DELTA, by_outcome=True)
    table = Table(
        path=plan.out_dir / "questions-runs.csv",
        row=UncertainRun,
        tasks=[(strategy, seed) for strategy in STRATEGIES for seed in range(plan.seeds)],
        make=partial(_train, plan, dataset, totals, sigma2),
        inputs=inputs_of(plan, [dataset], {"totals": totals}),
        lines=_lines,
    )
    return run_tables(plan, [table], text=plan.out_dir / "questions.txt", log=log)


def _train(
    plan: Reproduction, dataset: Dataset, totals: Ints, sigma2: float, task: tuple[str, int]
) -> UncertainRun:
    """Half of the labels at random, the other half by the strategy."""
    strategy, seed = task
    mechanism, noise = GNMax(**ensemble_size(totals), sigma=sigma2), SeededNoise(seed)
    order = np.random.default_rng(seed).permutation(len(totals)).astype(np.int64)
    index, rest = np.split(order, [LABELS // 2])
    label = mechanism.release(totals[index], noise).label
    if strategy != "random":
        rest = rest[choose_order(strategy, certainty(plan, dataset, index, label, rest))]
    rest = rest[: LABELS - len(index)]
    label = np.concatenate([label, mechanism.release(totals[rest], noise).label])
    index = np.concatenate([index, rest])
    _, figures = train_and_test(plan, dataset, index, label, StudentSettings(name=STUDENT), seed=seed)
    right = totals[index].argmax(axis=1) == dataset.public_labels[index]
    return UncertainRun(*task, sigma2=sigma2, plurality=float(right.mean()), **figures)


def certainty(
    plan: Reproduction, dataset: Dataset, index: Ints, label: Ints, asked: Ints
) -> NDArray[np.float32]:
    """Probabilities of the inputs `asked` (n, K) by a head of the labels so far."""
    from pate_fed.learning.networks.encoder import fit_encoder
    from pate_fed.learning.students.closed_form import head_probabilities
    from pate_fed.learning.students.data import LabelledPool

    images = dataset.public_images[: dataset.num_queries]
    pool = LabelledPool(images=images, labelled_index=index, labels=label, num_classes=dataset.num_classes)
    return head_probabilities(pool, images[asked], fit_encoder(images), device=plan.device)


def _lines(rows: list[UncertainRun]) -> Iterator[str]:
    return question_lines(rows, STRATEGIES, note="plurality right, wrong: of the labelled inputs")


def question_lines(rows: Iterable[Any], kinds: Iterable[str], *, note: str) -> Iterator[str]:
    """The table of students by the kind of their questions; rows have `sigma2` and `plurality`."""
    columns = (
        Column("questions", lambda cell: cell.task[0]),
        Column("σ2", lambda cell: cell.rows[0].sigma2, ".1f"),
        Column("plurality right, %", lambda cell: cell.percent("plurality")[0], ".1f"),
    )
    yield from student_table(columns, cells_of(rows, [(each,) for each in kinds]))
    yield note
    cost = f"data-independent ε {EPSILON:g} by outcome, δ {delta_text(DELTA)}"
    yield f"{LABELS:,} labels at {cost}; not private: seeded noise, public data"

"""PATE 2017, appendix B (Papernot et al., arXiv 1610.05755): which questions to ask.

Which inputs are asked about: at random, or those first of which a student of the first half of the labels is
least sure, or that it takes for the class with fewest labels. All students are supervised alone, as in the
paper, and every label comes from GNMax, so a number of labels costs the same however they were chosen.

The paper's binary experts gained 0.3 points here, and its distillation, without noise, has no privacy: both
are left out. The paper takes SVHN; here it is Fashion-MNIST, with 250 heads on a public encoder and a small
network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset
from pate_fed.format import delta_text
from pate_fed.learning import STRATEGIES, StudentSettings, choose_order
from pate_fed.privacy import RECORD, GNMax, SeededNoise, epsilon_of
from pate_fed.reproduce.columns import EPSILON, Column, cells_of, student_table
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables
from pate_fed.reproduce.measures import StudentRow, train_and_test
from pate_fed.reproduce.votes import ensemble_size, ensemble_totals, inputs_of

NAME = "pate-2017-questions"
LABELS, SIGMA, DELTA, EPOCHS = (200, 400, 800), 40.0, 1e-5, 100

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Asked(StudentRow):
    """One student of labels that were chosen by a strategy."""

    strategy: str
    labels: int
    seed: int
    _: KW_ONLY
    epsilon: float


def reproduce_questions(plan: Reproduction, log: Log) -> list[str]:
    """Train the students and write pate-2017-questions.txt."""
    dataset = plan.load("fashion-mnist")
    totals = ensemble_totals(plan, dataset, 250, log)
    asked = Table(
        path=plan.out_dir / f"{NAME}-asked.csv",
        row=Asked,
        tasks=[(name, n, seed) for seed, n, name in product(range(plan.seeds), LABELS, STRATEGIES)],
        make=partial(_ask, plan, dataset, totals),
        inputs=inputs_of(plan, [dataset], {"totals": totals}),
        lines=_asked_lines,
    )
    return run_tables(plan, [asked], text=plan.out_dir / f"{NAME}.txt", log=log)


def _ask(plan: Reproduction, dataset: Dataset, totals: Ints, task: tuple[str, int, int]) -> Asked:
    """Half of the labels at random, the other half by the strategy."""
    strategy, labels, seed = task
    mechanism, noise = GNMax(**ensemble_size(totals), sigma=SIGMA), SeededNoise(seed)
    settings = StudentSettings(name="supervised", epochs=EPOCHS, ema_decay=0.98)
    train = partial(train_and_test, plan, dataset, settings=settings, seed=seed)
    order = np.random.default_rng(seed).permutation(len(totals)).astype(np.int64)
    index, rest = np.split(order, [labels // 2])
    label = mechanism.release(totals[index], noise).label
    if strategy != STRATEGIES[0]:
        scores = train(index, label)[0].predict_proba(dataset.public_images[: len(totals)])
        counts = np.bincount(label, minlength=dataset.num_classes)
        rest = rest[choose_order(strategy, scores[rest], released=counts)]
    rest = rest[: labels - len(index)]
    label = np.concatenate([label, mechanism.release(totals[rest], noise).label])
    index = np.concatenate([index, rest])
    epsilon = epsilon_of(mechanism.cost_asked(RECORD) * labels, DELTA)
    return Asked(*task, epsilon=epsilon, **train(index, label)[1])


def _asked_lines(rows: list[Asked]) -> Iterator[str]:
    cells = cells_of(rows, [(name, labels) for labels in LABELS for name in STRATEGIES])
    random = {cell.task[1]: cell.percent()[0] for cell in cells if cell.task[0] == STRATEGIES[0]}
    columns = (
        Column("strategy", lambda cell: cell.task[0]),
        Column("labels", lambda cell: cell.task[1], "d"),
        Column("ε", lambda cell: cell.rows[0].epsilon, EPSILON),
    )
    gain = Column("gain", lambda cell: cell.percent()[0] - random.get(cell.task[1], np.nan), "+.1f")
    yield from student_table(columns, cells, after=(gain,))
    yield "published, on SVHN: least confident +4 to +10 points"
    yield f"ε is data-independent, at δ {delta_text(DELTA)}; not private: seeded noise, on public data"

"""Fashion-MNIST at ε 4.05: heads of wider kernels, and questions where a student wavers between two.

As `pate_fed.reproduce.uncertain` has it, but for three things. A teacher is a kernel head on an encoder of
shorter features, so its kernel is wider, with less ridge: alone it is a little worse, and the plurality of
many is better, as an average removes a head's variance and never its bias (Zhang, Duchi and Wainwright,
"Divide and conquer kernel ridge regression", COLT 2013). The second half of the questions has the least
margin between the two most probable classes, plus a random amount, so that no corner of the pool takes them
all. The student is one head of a fixed ridge, which many wrong labels on hard inputs want. σ2 is the least at
which optimal control, which states a study's ε, stays within it.

All was settled on 2,000 of the pool's 9,000 inputs, at random, several times, with questions among the
others. Students are tested on the last 1,000 inputs, which had no part in that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset
from pate_fed.format import delta_text
from pate_fed.privacy import RECORD, GNMax, SeededNoise
from pate_fed.privacy.accountant import capped_cost_epsilon
from pate_fed.reproduce.columns import Column, cells_of, student_table
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables
from pate_fed.reproduce.votes import ensemble_size, inputs_of, wide_totals

__all__ = ["WideRun", "least_margin", "reproduce_wide", "stated_sigma2"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
EPSILON, DELTA, LABELS = 4.05, 1e-5, 1500
QUESTIONS = ("random", "least margin")
SPREAD = 0.5  # of the random amount that is added to a margin
WIDTH, RIDGE = 0.5, 0.2  # the student's: features' squared length, and strength
CHOICE_RIDGE = 0.15  # of the head between the halves


@dataclass(frozen=True, slots=True)
class WideRun:
    """One student; shares of right answers. `plurality` is the teachers', not private.

    It is of the whole pool of questions. `labels_wrong` is of the labels that were released.
    """

    questions: str
    seed: int
    _: KW_ONLY
    sigma2: float
    plurality: float
    labels_wrong: float
    accuracy: float


def reproduce_wide(plan: Reproduction, log: Log) -> list[str]:
    """Train the students and write wide.txt."""
    dataset = plan.load("fashion-mnist")
    totals = wide_totals(plan, dataset, log)
    sigma2 = stated_sigma2(LABELS, epsilon=EPSILON, delta=DELTA)
    table = Table(
        path=plan.out_dir / "wide-runs.csv",
        row=WideRun,
        tasks=[(questions, seed) for questions in QUESTIONS for seed in range(plan.seeds)],
        make=partial(_train, dataset, totals, sigma2),
        inputs=inputs_of(plan, [dataset], {"totals": totals}),
        lines=_lines,
    )
    return run_tables(plan, [table], text=plan.out_dir / "wide.txt", log=log)


def stated_sigma2(labels: int, *, epsilon: float, delta: float) -> float:
    """The least σ2, to a tenth of a vote, at which a study with a cap of `labels` states at most `epsilon`.

    Outcomes alone are released, one vote of a query may move, and every query is answered.
    """

    def stated(tenths: int) -> float:
        mechanism = GNMax(num_teachers=1, num_classes=2, sigma=tenths / 10)
        return capped_cost_epsilon(mechanism.cost_asked(RECORD) * labels, delta)

    low, high = 9, 10
    while stated(high) > epsilon:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if stated(middle) <= epsilon else (middle, high)
    return high / 10


def least_margin(scores: Floats, *, spread: float, rng: np.random.Generator) -> Ints:
    """All inputs, those first whose two greatest scores are nearest, after a uniform amount up to `spread`.

    Shapes: (n, classes) to int64 (n,).
    """
    ranked = np.sort(scores, axis=1)
    margin = ranked[:, -1] - ranked[:, -2] + spread * rng.random(len(scores))
    return np.argsort(margin, kind="stable").astype(np.int64)


def _train(dataset: Dataset, totals: Ints, sigma2: float, task: tuple[str, int]) -> WideRun:
    questions, seed = task
    mechanism, noise = GNMax(**ensemble_size(totals), sigma=sigma2), SeededNoise(seed)
    rng = np.random.default_rng(seed)
    index, rest = np.split(rng.permutation(len(totals)).astype(np.int64), [LABELS // 2])
    label = mechanism.release(totals[index], noise).label
    if questions != "random":
        scores = _scores(dataset, index, label, dataset.public_images[rest], ridge=CHOICE_RIDGE)
        rest = rest[least_margin(scores, spread=SPREAD, rng=rng)]
    rest = rest[: LABELS - len(index)]
    label = np.concatenate([label, mechanism.release(totals[rest], noise).label])
    index = np.concatenate([index, rest])
    tested, truth = dataset.public_images[len(totals) :], dataset.public_labels[len(totals) :]
    right = float(np.mean(_scores(dataset, index, label, tested, ridge=RIDGE).argmax(axis=1) == truth))
    known = dataset.public_labels[: len(totals)]
    return WideRun(
        *task,
        sigma2=sigma2,
        plurality=float(np.mean(totals.argmax(axis=1) == known)),
        labels_wrong=float(np.mean(label != known[index])),
        accuracy=right,
    )


def _scores(dataset: Dataset, index: Ints, label: Ints, asked: NDArray[np.uint8], *, ridge: float) -> Floats:
    """What a head of the released labels says of other public images (n, H, W, C): (n, classes)."""
    import torch

    from pate_fed.learning.networks.encoder import fit_encoder
    from pate_fed.learning.networks.heads import fit_kernel_classifier, one_hot

    pool = dataset.public_images[: dataset.num_queries]
    encoder = fit_encoder(pool).scaled(WIDTH)
    own = torch.from_numpy(encoder.transform(pool[index]))
    targets = one_hot(label, dataset.num_classes, "cpu")
    model, _ = fit_kernel_classifier(encoder.preprocessing(), own, targets, centres=own, strengths=(ridge,))
    with torch.inference_mode():
        return np.asarray(model.output(torch.from_numpy(encoder.transform(asked))).numpy())


def _lines(rows: list[WideRun]) -> Iterator[str]:
    columns = (
        Column("questions", lambda cell: cell.task[0]),
        Column("σ2", lambda cell: cell.rows[0].sigma2, ".1f"),
        Column("plurality right, %", lambda cell: cell.percent("plurality")[0], ".1f"),
    )
    yield from student_table(columns, cells_of(rows, [(each,) for each in QUESTIONS]))
    yield "plurality right: of the whole pool, not private; wrong: of the labelled inputs"
    cost = f"data-independent ε {EPSILON:g} by outcome, δ {delta_text(DELTA)}"
    yield f"{LABELS:,} labels at {cost}; not private: seeded noise, public data"

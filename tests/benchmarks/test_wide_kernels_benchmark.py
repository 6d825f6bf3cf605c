"""Fashion-MNIST at ε 4.05: wider kernels on more features, and questions where a student wavers between two.

    pytest -m benchmark -s tests/benchmarks/test_wide_kernels_benchmark.py

PATE_FED_BENCH_OUT (a folder of the test's own) keeps the rows, PATE_FED_BENCH_SEEDS (20) counts them. No
study can do this: its features are none of the product's.

250 light teachers, 1,500 labels without a threshold at δ 1e-5, charged by outcome. Half of the questions are
at random; the others follow from released labels and public inputs, so that choosing them costs nothing, and
a number of labels costs the same however they were chosen.

Teachers and student have the coefficients of a scattering transform beside the public encoder
(`scattering`): worth a point to the plurality of 50 teachers, and nothing to a student. A
teacher's features are shorter, so its kernel is wider, with less ridge: alone it is a little worse, and the
plurality of many is better, as an average removes a head's variance and never its bias (Zhang, Duchi and
Wainwright, "Divide and conquer kernel ridge regression", COLT 2013). The second half of the questions has the
least margin between the two most probable classes, plus a random amount, so that no corner of the pool takes
them all. The student is one head of a fixed ridge, which many wrong labels on hard inputs want. σ2 is the
least at which optimal control, which states a study's ε, stays within it; in the last row the least for noisy
totals, which papers charge.

All was settled on 2,000 of the pool's 9,000 inputs, at random, several times, with questions among the
others. Students are tested on the last 1,000 inputs, which had no part in that.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from affordable import affordable_sigma2
from numpy.typing import NDArray
from scattering import JointFeatures

from pate_fed.data import Dataset
from pate_fed.format import delta_text
from pate_fed.privacy import RECORD, GNMax, SeededNoise
from pate_fed.privacy.bounds.control import capped_cost_epsilon
from pate_fed.reproduce.columns import Column, cells_of, student_table
from pate_fed.reproduce.driver import Reproduction, Table, run_tables
from pate_fed.reproduce.votes import AT_ONCE, TEACHERS, ensemble_size, inputs_of, kept_totals

Ints = NDArray[np.int64]
EPSILON, DELTA, LABELS = 4.05, 1e-5, 1500
Floats = NDArray[np.float32]
BY_TOTALS = "least margin, charged as noisy totals"
QUESTIONS = ("random", "least margin", BY_TOTALS)
WIDE, WIDE_RIDGE = 0.15, 0.0005  # a teacher's: features' squared length, and strength
SPREAD = 0.5  # of the random amount that is added to a margin
WIDTH, RIDGE = 0.5, 0.2  # the student's
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(Reproduction):
    """A reproduction whose figures this benchmark makes."""

    name: str = "fashion-mnist-wide"

    @property
    def command(self) -> str:
        return "pytest -m benchmark -s tests/benchmarks/test_wide_kernels_benchmark.py"


@pytest.mark.benchmark
def test_wider_kernels_and_questions_of_the_least_margin(shared: Path, tmp_path: Path) -> None:
    seeds = int(os.environ.get("PATE_FED_BENCH_SEEDS", "20"))
    out = Path(os.environ.get("PATE_FED_BENCH_OUT", tmp_path))
    plan = Bench(data_dir=shared / "data", out_dir=out, seeds=seeds)
    dataset = plan.load("fashion-mnist")
    features = JointFeatures(dataset.public_images[: dataset.num_queries])
    votes = partial(_votes, dataset, features)
    totals = kept_totals(dataset, out / "totals-wide.npz", votes, count=TEACHERS, log=print)
    stated = stated_sigma2(LABELS, epsilon=EPSILON, delta=DELTA)
    by_totals = affordable_sigma2(LABELS, epsilon=EPSILON, delta=DELTA)
    table = Table(
        path=out / "wide-runs.csv",
        row=WideRun,
        tasks=[(questions, seed) for questions in QUESTIONS for seed in range(seeds)],
        make=partial(_train, dataset, features(dataset.public_images), totals, stated, by_totals),
        inputs=inputs_of(plan, [dataset], {"totals": totals}),
        lines=_lines,
    )
    found = run_tables(plan, [table], text=out / "wide.txt", log=print)
    print("\n".join(found))
    assert len(found) > len(QUESTIONS)


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
    return bisect_left(range(high), True, lo=low + 1, key=lambda tenths: stated(tenths) <= epsilon) / 10


def least_margin(scores: Floats, *, spread: float, rng: np.random.Generator) -> Ints:
    """All inputs, those first whose two greatest scores are nearest, after a uniform amount up to `spread`.

    Shapes: (n, classes) to int64 (n,).
    """
    ranked = np.sort(scores, axis=1)
    margin = ranked[:, -1] - ranked[:, -2] + spread * rng.random(len(scores))
    return np.argsort(margin, kind="stable").astype(np.int64)


def _votes(dataset: Dataset, features: JointFeatures, parts: list[Ints]) -> Iterator[Ints]:
    """Classes of the queries by a head on each part of the records, int64 (queries,) each."""
    import torch

    from pate_fed.learning.networks.heads import head_scores

    classes, scale = dataset.num_classes, np.float32(WIDE**0.5)
    asked = torch.from_numpy(scale * features(dataset.public_images[: dataset.num_queries]))
    # A batch wants parts of one size: at most one record of each is left out.
    rows = np.stack([part[: min(map(len, parts))] for part in parts])
    for batch in np.split(rows, range(AT_ONCE, len(rows), AT_ONCE)):
        own = torch.from_numpy(scale * features(dataset.private_images[batch.ravel()]))
        labels = torch.from_numpy(dataset.private_labels[batch])
        private = own.view(len(batch), 1, batch.shape[1], -1)  # no moved copies of the records
        scores = head_scores(private, labels, asked, num_classes=classes, strength=WIDE_RIDGE)
        yield from np.asarray(scores.argmax(dim=2).numpy(), dtype=np.int64)


def _train(
    dataset: Dataset, features: Floats, totals: Ints, stated: float, by_totals: float, task: tuple[str, int]
) -> WideRun:
    """`features` are all public images', float32 (public, d); two values of σ2, by what is charged."""
    questions, seed = task
    sigma2 = by_totals if questions == BY_TOTALS else stated
    mechanism, noise = GNMax(**ensemble_size(totals), sigma=sigma2), SeededNoise(seed)
    classes = dataset.num_classes
    rng = np.random.default_rng(seed)
    index, rest = np.split(rng.permutation(len(totals)).astype(np.int64), [LABELS // 2])
    label = mechanism.release(totals[index], noise).label
    if questions != "random":
        scores = _scores(features[index], label, features[rest], ridge=CHOICE_RIDGE, classes=classes)
        rest = rest[least_margin(scores, spread=SPREAD, rng=rng)]
    rest = rest[: LABELS - len(index)]
    label = np.concatenate([label, mechanism.release(totals[rest], noise).label])
    index = np.concatenate([index, rest])
    scores = _scores(features[index], label, features[len(totals) :], ridge=RIDGE, classes=classes)
    known, truth = np.split(dataset.public_labels, [len(totals)])
    return WideRun(
        *task,
        sigma2=sigma2,
        plurality=float(np.mean(totals.argmax(axis=1) == known)),
        labels_wrong=float(np.mean(label != known[index])),
        accuracy=float(np.mean(scores.argmax(axis=1) == truth)),
    )


def _scores(own: Floats, label: Ints, asked: Floats, *, ridge: float, classes: int) -> Floats:
    """What a head of the features (m, d) of labelled images says of others' (n, d): (n, classes)."""
    import torch

    from pate_fed.learning.networks.heads import fit_kernel_head, one_hot

    centres = torch.from_numpy(WIDTH**0.5 * own)
    sample = centres, one_hot(label, classes, "cpu"), torch.ones(len(own))
    head = fit_kernel_head([sample], centres=centres, num_classes=classes, strength=ridge)
    with torch.inference_mode():
        return np.asarray(head(torch.from_numpy(WIDTH**0.5 * asked)).numpy())


def _lines(rows: list[WideRun]) -> Iterator[str]:
    columns = (
        Column("questions", lambda cell: cell.task[0]),
        Column("σ2", lambda cell: cell.rows[0].sigma2, ".1f"),
        Column("plurality right, %", lambda cell: cell.percent("plurality")[0], ".1f"),
    )
    yield from student_table(columns, cells_of(rows, [(each,) for each in QUESTIONS]))
    yield (
        "plurality right: of the whole pool, not private; wrong: of the labelled inputs; "
        "the ε of the last row is that of noisy totals"
    )
    cost = f"data-independent ε {EPSILON:g} by outcome, δ {delta_text(DELTA)}"
    yield f"{LABELS:,} labels at {cost}; not private: seeded noise, public data"

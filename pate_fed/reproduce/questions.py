"""PATE 2017, appendix B (Papernot et al., arXiv 1610.05755): fewer questions, or more of each answer.

Which inputs are asked about: at random, those first of which a student of the first half of the labels is
least sure, or those of which binary experts are in doubt. All students are supervised alone, as in the paper,
and every label comes from GNMax, so a number of labels costs the same however they were chosen.

Distillation: the student gets the sum of the teachers' probabilities at temperature 1 or 5 instead of the
plurality. It is NOT PRIVATE: no noise is added, and whole probability vectors leave the teachers. It stands
here as the paper's comparison alone; no study can do it.

The paper takes SVHN and 50 teachers for distillation; here it is Fashion-MNIST, 50 heads on a public encoder,
and students in closed form; the strategies take 250 heads and a small network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from itertools import product

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, partition
from pate_fed.format import delta_text
from pate_fed.learning import STRATEGIES, StudentSettings, choose_order, expert_scores
from pate_fed.privacy import RECORD, GNMax, SeededNoise, epsilon_of
from pate_fed.reproduce.columns import ACCURACY, EPSILON, Column, cells_of, student_table, text_table
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables
from pate_fed.reproduce.measures import StudentRow, train_and_test
from pate_fed.reproduce.votes import PLAIN_RIDGE, ensemble_size, ensemble_totals, inputs_of

NAME = "pate-2017-questions"
LABELS, SIGMA, DELTA, EPOCHS = (200, 400, 800), 40.0, 1e-5, 100
SAMPLES, TEACHERS, TEMPERATURES = (100, 200, 500, 1000, 2000), 50, (1.0, 5.0)
TARGETS = ("plurality", *(f"T = {each:g}" for each in TEMPERATURES))
SHARPNESS = 10.0  # turns a regression on classes into logits

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Asked(StudentRow):
    """One student of labels that were chosen by a strategy."""

    strategy: str
    labels: int
    seed: int
    _: KW_ONLY
    epsilon: float


@dataclass(frozen=True, slots=True)
class Distilled:
    """One student of teachers' answers without noise: NOT PRIVATE."""

    target: str
    samples: int
    seed: int
    _: KW_ONLY
    accuracy: float


def reproduce_questions(plan: Reproduction, log: Log) -> list[str]:
    """Train the students and write pate-2017-questions.txt."""
    dataset = plan.load("fashion-mnist")
    totals = ensemble_totals(plan, dataset, 250, log)
    shares = cache(lambda: _teachers_shares(dataset, plan.device, log))
    asked = Table(
        path=plan.out_dir / f"{NAME}-asked.csv",
        row=Asked,
        tasks=[(name, n, seed) for seed, n, name in product(range(plan.seeds), LABELS, STRATEGIES)],
        make=partial(_ask, plan, dataset, totals),
        inputs=inputs_of(plan, [dataset], {"totals": totals}),
        lines=_asked_lines,
    )
    distilled = Table(
        path=plan.out_dir / f"{NAME}-distilled-not-private.csv",
        row=Distilled,
        tasks=[(name, n, seed) for seed, n, name in product(range(plan.seeds), SAMPLES, TARGETS)],
        make=lambda task: _distil(dataset, shares()[task[0]], task),
        inputs=inputs_of(plan, [dataset], {}),
        lines=_distilled_lines,
    )
    return run_tables(plan, [asked, distilled], text=plan.out_dir / f"{NAME}.txt", log=log)


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
        pool = dataset.public_images[: len(totals)]
        if strategy == "binary-experts":
            classes = dataset.num_classes
            scores = expert_scores(pool, index=index, labels=label, num_classes=classes, seed=seed)
        else:
            scores = train(index, label)[0].predict_proba(pool)
        counts = np.bincount(label, minlength=dataset.num_classes)
        rest = rest[choose_order(strategy, scores[rest], released=counts)]
    rest = rest[: labels - len(index)]
    label = np.concatenate([label, mechanism.release(totals[rest], noise).label])
    index = np.concatenate([index, rest])
    epsilon = epsilon_of(mechanism.cost_asked(RECORD) * labels, DELTA)
    return Asked(*task, epsilon=epsilon, **train(index, label)[1])


def _distil(dataset: Dataset, targets: Floats, task: tuple[str, int, int]) -> Distilled:
    """A kernel regression on what the teachers say of some queries; NOT PRIVATE."""
    import torch

    from pate_fed.learning.networks.encoder import fit_encoder
    from pate_fed.learning.networks.heads import MOST_CENTRES, fit_ridge, gaussian_kernel

    _, samples, seed = task
    pool, test = np.split(dataset.public_images, [dataset.num_queries])
    index = np.random.default_rng(seed).permutation(len(pool))[:samples]
    encoder = fit_encoder(pool)
    features = torch.from_numpy(encoder.transform(pool[index])).double()
    centres = features[:MOST_CENTRES]
    ridge = fit_ridge(gaussian_kernel(features, centres), torch.from_numpy(targets[index]))
    tested = gaussian_kernel(torch.from_numpy(encoder.transform(test)).double(), centres)
    said = (tested @ ridge.weights + ridge.bias).argmax(dim=1).numpy()
    right = said == dataset.public_labels[dataset.num_queries :]
    return Distilled(*task, accuracy=float(np.mean(right)))


def _teachers_shares(dataset: Dataset, device: str, log: Log) -> dict[str, Floats]:
    """What a student may be given of each query: float32 (n, classes) for each target, rows sum to 1."""
    log(f"probabilities of {TEACHERS} teachers")
    parts = partition(dataset.private_labels, num_parties=TEACHERS, scheme="iid", seed=0)
    return dict(zip(TARGETS, shares_of_heads(dataset, parts, TEMPERATURES, device=device), strict=True))


def shares_of_heads(
    dataset: Dataset, parts: Iterable[Ints], temperatures: Iterable[float], *, device: str = "cpu"
) -> list[Floats]:
    """One-hot plurality, then the teachers' mean probabilities at each temperature, of every query.

    NOT PRIVATE: whole probabilities leave the teachers, without noise (Hinton et al., arXiv 1503.02531; P17,
    appendix B.1). Shapes: parts int64 each, to float32 (queries, classes) each.
    """
    import torch

    from pate_fed.learning.networks.encoder import fit_encoder
    from pate_fed.learning.networks.heads import head_scores

    public, classes = dataset.public_images[: dataset.num_queries], dataset.num_classes
    encoder = fit_encoder(public)
    rows = torch.from_numpy(encoder.transform(dataset.private_images, device)).to(device)
    asked = torch.from_numpy(encoder.transform(public, device)).to(device)
    labels = torch.from_numpy(np.array(dataset.private_labels)).to(device)
    scores = [
        head_scores(
            rows[own][None, None],  # one teacher, no moved copies
            labels[own][None],
            asked,
            num_classes=classes,
            strength=PLAIN_RIDGE,
        )[0]
        for own in (torch.from_numpy(part).to(device) for part in parts)
    ]
    every = torch.stack(scores)  # (teachers, queries, classes)
    votes = torch.nn.functional.one_hot(every.argmax(dim=2), classes).sum(dim=0)
    plurality = torch.nn.functional.one_hot(votes.argmax(dim=1), classes).float()
    means = [(SHARPNESS / each * every).softmax(dim=2).mean(dim=0) for each in temperatures]
    return [np.asarray(each.cpu().numpy()) for each in (plurality, *means)]


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
    yield "published, on SVHN: least confident +4 to +10 points, binary experts +1.5 to +2.5"
    yield f"ε is data-independent, at δ {delta_text(DELTA)}; not private: seeded noise, on public data"


def _distilled_lines(rows: list[Distilled]) -> Iterator[str]:
    yield "Distillation: NOT PRIVATE, no noise at all"
    columns = (
        Column("given", lambda cell: cell.task[0]),
        Column("samples", lambda cell: cell.task[1], "d"),
        *ACCURACY,
    )
    yield from text_table(columns, cells_of(rows, product(TARGETS, SAMPLES)))

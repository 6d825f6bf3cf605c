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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, load_dataset, partition
from pate_fed.learning import STRATEGIES, StudentSettings, choose_order
from pate_fed.privacy import RECORD, GNMax, SeededNoise, epsilon_of
from pate_fed.reproduce.measures import accuracy_of, shown_sd
from pate_fed.reproduce.pictures import COLOURS, draw_panels
from pate_fed.reproduce.plan import Reproduction
from pate_fed.reproduce.rows import append_row, bind_rows, read_rows
from pate_fed.reproduce.votes import TRAINED, ensemble_totals, inputs_of

__all__ = ["Asked", "Distilled", "reproduce_questions"]

NAME = "pate-2017-questions"
LABELS, SIGMA, DELTA, EPOCHS = (200, 400, 800), 40.0, 1e-5, 100
SAMPLES, TEACHERS, TEMPERATURES = (100, 200, 500, 1000, 2000), 50, (1.0, 5.0)
PLURALITY = "plurality"

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One student of labels that were chosen by a strategy; shares in [0, 1]."""

    strategy: str
    labels: int
    seed: int
    epsilon: float
    labels_wrong: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distilled:
    """One student of teachers' answers without noise: NOT PRIVATE."""

    target: str
    samples: int
    seed: int
    accuracy: float


def reproduce_questions(plan: Reproduction, say: Callable[[str], None]) -> list[str]:
    """Train what is missing, write pate-2017-questions.txt, .csv and .png, and give the text's lines.

    Raises:
        InputError: the images are not there, or the rows there were made from other images or totals.
    """
    dataset = load_dataset("fashion-mnist", data_dir=plan.data_dir)
    asked, distilled = _strategies(plan, dataset, say), _distillation(plan, dataset, say)
    lines = [*_strategy_lines(asked), *_distilled_lines(distilled)]
    (plan.out_dir / f"{NAME}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _draw(plan, asked, distilled)
    return lines


def _strategies(plan: Reproduction, dataset: Dataset, say: Callable[[str], None]) -> list[Asked]:
    path = plan.out_dir / f"{NAME}-asked.csv"
    kept = plan.totals or plan.out_dir / "totals-fashion-mnist-250.npz"
    totals = ensemble_totals(dataset, path=kept, count=250, device=plan.device, say=say)
    bind_rows(path, inputs_of(plan, dataset, {"totals": totals}))
    runs = read_rows(path, Asked)
    done = {(run.strategy, run.labels, run.seed) for run in runs}
    todo = [
        (strategy, labels, seed)
        for seed in range(plan.seeds)
        for labels in LABELS
        for strategy in STRATEGIES
        if (strategy, labels, seed) not in done
    ]
    for strategy, labels, seed in todo:
        runs.append(_ask(plan, dataset, totals, strategy, labels, seed))
        append_row(path, runs[-1])
        say(f"{strategy}, {labels} labels, seed {seed}: {100 * runs[-1].accuracy:.1f} %")
    return [run for run in runs if run.seed < plan.seeds]


def _ask(plan: Reproduction, dataset: Dataset, totals: Ints, strategy: str, labels: int, seed: int) -> Asked:
    """Half of the labels at random, the other half by the strategy."""
    mechanism = GNMax(num_teachers=int(totals[0].sum()), num_classes=totals.shape[1], sigma=SIGMA)
    noise, pool = SeededNoise(seed), dataset.public_images[:TRAINED]
    order = np.random.default_rng(seed).permutation(len(pool)).astype(np.int64)
    index = order[: labels // 2]
    label = mechanism.release(totals[index], noise).label
    rest = order[labels // 2 :]
    if strategy != STRATEGIES[0]:
        rest = rest[choose_order(strategy, _scores(plan, dataset, strategy, index, label, seed)[rest])]
    rest = rest[: labels - labels // 2]
    label = np.concatenate([label, mechanism.release(totals[rest], noise).label])
    index = np.concatenate([index, rest])
    truth = dataset.public_labels
    student = _supervised(plan, dataset, index, label, seed)
    return Asked(
        strategy=strategy,
        labels=labels,
        seed=seed,
        epsilon=epsilon_of(mechanism.cost_asked(RECORD) * labels, DELTA),
        labels_wrong=float(np.mean(label != truth[index])),
        accuracy=float(np.mean(student.predict(dataset.public_images[TRAINED:]) == truth[TRAINED:])),
    )


def _scores(
    plan: Reproduction, dataset: Dataset, strategy: str, index: Ints, label: Ints, seed: int
) -> Floats:
    from pate_fed.learning import expert_scores

    pool = dataset.public_images[:TRAINED]
    if strategy == "binary-experts":
        classes = dataset.num_classes
        return expert_scores(pool, index=index, labels=label, num_classes=classes, seed=seed)
    said: Floats = _supervised(plan, dataset, index, label, seed).predict_proba(pool)
    return said


def _supervised(plan: Reproduction, dataset: Dataset, index: Ints, label: Ints, seed: int) -> Any:
    from pate_fed.learning.students.data import LabelledPool
    from pate_fed.learning.students.train import train_student

    pool = LabelledPool(
        images=dataset.public_images[:TRAINED],
        labelled_index=index,
        labels=label,
        num_classes=dataset.num_classes,
    )
    settings = StudentSettings(name="supervised", epochs=EPOCHS, ema_decay=0.98, test_every=EPOCHS)
    return train_student(pool, settings, seed=seed, device=plan.device)


def _distillation(plan: Reproduction, dataset: Dataset, say: Callable[[str], None]) -> list[Distilled]:
    path = plan.out_dir / f"{NAME}-distilled-not-private.csv"
    bind_rows(path, inputs_of(plan, dataset, {}))
    runs = read_rows(path, Distilled)
    done = {(run.target, run.samples, run.seed) for run in runs}
    names = [PLURALITY, *(f"T = {each:g}" for each in TEMPERATURES)]
    wanted = [(seed, samples) for seed in range(plan.seeds) for samples in SAMPLES]
    if all((name, samples, seed) in done for name in names for seed, samples in wanted):
        return [run for run in runs if run.seed < plan.seeds]
    say(f"probabilities of {TEACHERS} teachers")
    shares = _teachers_shares(dataset, plan.device)
    for seed, samples in wanted:
        index = np.random.default_rng(seed).permutation(TRAINED)[:samples].astype(np.int64)
        for name in names:
            if (name, samples, seed) not in done:
                said = _distil(dataset, index, shares[name][index])
                right = said[TRAINED:].argmax(axis=1) == dataset.public_labels[TRAINED:]
                runs.append(
                    Distilled(target=name, samples=samples, seed=seed, accuracy=float(np.mean(right)))
                )
                append_row(path, runs[-1])
        say(f"distillation, {samples} samples, seed {seed}")
    return [run for run in runs if run.seed < plan.seeds]


def _teachers_shares(dataset: Dataset, device: str) -> dict[str, Floats]:
    """What a student may be given of each public input: float32 (n, classes) each, rows sum to 1."""
    from pate_fed.reproduce.distilling import shares_of_heads

    parts = partition(dataset.private_labels, num_parties=TEACHERS, scheme="iid", seed=0)
    found = shares_of_heads(
        dataset.private_images,
        dataset.private_labels,
        parts,
        public=dataset.public_images[:TRAINED],
        num_classes=dataset.num_classes,
        temperatures=TEMPERATURES,
        device=device,
    )
    names = [PLURALITY, *(f"T = {each:g}" for each in TEMPERATURES)]
    return dict(zip(names, found, strict=True))


def _distil(dataset: Dataset, index: Ints, targets: Floats) -> Floats:
    from pate_fed.reproduce.distilling import fit_soft

    return fit_soft(dataset.public_images[:TRAINED], index, targets, asked=dataset.public_images)


def _strategy_lines(runs: list[Asked]) -> Iterator[str]:
    yield (
        f"{'strategy':<16} {'labels':>6} {'ε':>5} {'wrong, %':>9} {'student, %':>10} {'± sd':>5} {'gain':>5}"
        f" {'seeds':>5}"
    )
    for labels in LABELS:
        base = [run for run in runs if (run.strategy, run.labels) == (STRATEGIES[0], labels)]
        for strategy in STRATEGIES:
            some = [run for run in runs if (run.strategy, run.labels) == (strategy, labels)]
            if some:
                mean, sd = accuracy_of(some)
                wrong = 100 * np.mean([run.labels_wrong for run in some])
                yield (
                    f"{strategy:<16} {labels:>6} {some[0].epsilon:>5.2f} {wrong:>9.1f} {mean:>10.1f}"
                    f" {shown_sd(sd):>5} {mean - accuracy_of(base)[0]:>+5.1f} {len(some):>5}"
                )
    yield "published, on SVHN: least confident +4 to +10 points, binary experts +1.5 to +2.5"
    yield f"ε is data-independent, at δ {DELTA:g}; not private: seeded noise, on public data"


def _distilled_lines(runs: list[Distilled]) -> Iterator[str]:
    yield "Distillation: NOT PRIVATE, no noise at all; student, %, by samples"
    yield f"{'given':<16} " + " ".join(f"{samples:>12,}" for samples in SAMPLES)
    for target in dict.fromkeys(run.target for run in runs):
        cells = []
        for samples in SAMPLES:
            some = [run for run in runs if (run.target, run.samples) == (target, samples)]
            mean, sd = accuracy_of(some) if some else (0.0, 0.0)
            cells.append(f"{mean:>6.1f} ± {shown_sd(sd):>3}" if some else "-")
        yield f"{target:<16} " + " ".join(f"{each:>12}" for each in cells)


def _draw(plan: Reproduction, asked: list[Asked], distilled: list[Distilled]) -> None:
    def draw(axes: Any) -> None:
        for strategy, colour in zip(STRATEGIES, COLOURS, strict=False):
            some = {n: [r for r in asked if (r.strategy, r.labels) == (strategy, n)] for n in LABELS}
            _line(axes[0], some, strategy, colour)
        targets = list(dict.fromkeys(run.target for run in distilled))
        for target, colour in zip(targets, COLOURS, strict=False):
            given = {n: [r for r in distilled if (r.target, r.samples) == (target, n)] for n in SAMPLES}
            _line(axes[1], given, target, colour)

    titles = [
        ("Which inputs are asked about", "labels", "supervised student, %"),
        ("Distillation: NOT PRIVATE", "samples", "student in closed form, %"),
    ]
    draw_panels(plan.out_dir / f"{NAME}.png", titles, draw)


def _line(axes: Any, cells: dict[int, list[Any]], label: str, colour: str) -> None:
    cells = {count: some for count, some in cells.items() if some}
    means = [accuracy_of(some) for some in cells.values()]
    axes.errorbar(
        list(cells),
        [mean for mean, _ in means],
        yerr=[np.nan_to_num(sd) for _, sd in means],
        marker="o",
        markersize=4,
        capsize=2,
        color=colour,
        label=label,
    )
    axes.set_xscale("log")
    axes.set_xticks(list(cells), [f"{count:,}" for count in cells], minor=False)
    axes.set_xticks([], minor=True)
    axes.legend(fontsize=8)

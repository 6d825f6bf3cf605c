"""MNIST from the votes of 250 teachers that the authors of PATE published in 2018; no teacher is trained.

P18 (Papernot et al., arXiv 1802.08908, Table 1): Confident-GNMax with T 200, σ1 150, σ2 40 answers 286
queries at a data-dependent ε of 1.97 (δ 1e-5), and the student reaches 98.5 % on the last 1,000 test images.
The number of labels is fixed beforehand, never by the data-dependent ε: a stop on it would leak.

Beside a quick student stand the GAN of P18 and the students of PATE++; they take a minute or two each, so
they come after it, seed by seed, and what there is can be looked at after each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, load_dataset
from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings
from pate_fed.reproduce.measures import accuracy_of, shown_sd, train_and_test
from pate_fed.reproduce.pictures import COLOURS, draw_panels
from pate_fed.reproduce.plan import Reproduction
from pate_fed.reproduce.rows import append_row, bind_rows, read_rows, write_rows
from pate_fed.reproduce.votes import TRAINED, inputs_of, read_totals
from pate_fed.reproduce.workers import as_ready

__all__ = ["reproduce_mnist"]

FILE = "pate_votes/mnist_250_teachers.npy"
THRESHOLD, SIGMA1, SIGMA2, DELTA = 200.0, 150.0, 40.0, 1e-5
EPOCHS = 10  # of each stage of a student
LABELS = (286, 100)
CLASSES = 10
PAPER = {286: (1.97, 98.5)}  # ε and % of P18
QUICK_STUDENTS = ("encoder-head",)
SLOW_STUDENTS = ("co-teaching", "gan", "pate+", "pate++")


@dataclass(frozen=True, slots=True, kw_only=True)
class MnistRun:
    """One student. The first ε comes from the votes and is for study on public data only."""

    student: str
    labels: int
    seed: int
    asked: int
    labels_wrong: float
    epsilon_do_not_publish: float
    epsilon_data_independent: float
    accuracy: float


def reproduce_mnist(plan: Reproduction, say: Callable[[str], None]) -> list[str]:
    """Train the students, write mnist-votes.txt, .csv and .png, and give the text's lines.

    Raises:
        InputError: the images or the votes are not there, or the rows there were made from others.
    """
    dataset = load_dataset("mnist", data_dir=plan.data_dir)
    totals = _votes(plan)
    path = plan.out_dir / "mnist-votes-runs.csv"
    bind_rows(path, inputs_of(plan, dataset, {"totals": totals}))
    runs = read_rows(path, MnistRun)
    done = {(run.student, run.labels, run.seed) for run in runs}
    todo = [task for task in _tasks(plan.seeds) if task not in done]
    for run in as_ready(partial(_train, plan, dataset, totals), todo, workers=plan.workers):
        runs.append(run)
        append_row(path, run)
        say(f"{run.student}, {run.labels} labels, seed {run.seed}: {100 * run.accuracy:.1f} %")
        if run.student in SLOW_STUDENTS:
            _write(plan, runs)
    return _write(plan, runs)


def _write(plan: Reproduction, runs: list[MnistRun]) -> list[str]:
    runs = [run for run in runs if run.seed < plan.seeds]
    lines = list(_lines(runs))
    (plan.out_dir / "mnist-votes.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    names = ["student", "labels", "mean", "sd", "seeds"]
    write_rows(plan.out_dir / "mnist-votes.csv", names, [row[:5] for row in _summary(runs)])
    _draw(plan.out_dir / "mnist-votes.png", runs)
    return lines


def _tasks(seeds: int) -> Iterator[tuple[str, int, int]]:
    """Student, labels and seed: the quick student for all seeds, then the slow ones, seeds outermost."""
    for students in (QUICK_STUDENTS, SLOW_STUDENTS):
        for seed in range(seeds):
            for student in students:
                for labels in LABELS:
                    yield student, labels, seed


def _votes(plan: Reproduction) -> NDArray[np.int64]:
    path = plan.totals or (plan.data_dir / FILE if plan.data_dir is not None else None)
    if path is None or not path.exists():
        raise InputError(
            f"--totals is {path}: the file mnist_250_teachers.npy of the authors' votes is meant"
        )
    return read_totals(path, rows=TRAINED, classes=CLASSES)


def _train(
    plan: Reproduction, dataset: Dataset, totals: NDArray[np.int64], task: tuple[str, int, int]
) -> MnistRun:
    student, labels, seed = task
    from pate_fed.privacy import (
        ConfidentGNMax,
        SeededNoise,
        data_dependent_epsilon_do_not_publish,
        epsilon_of,
    )

    mechanism = ConfidentGNMax(
        num_teachers=int(totals[0].sum()),
        num_classes=totals.shape[1],
        threshold=THRESHOLD,
        sigma1=SIGMA1,
        sigma2=SIGMA2,
    )
    order = np.random.default_rng(seed).permutation(len(totals)).astype(np.int64)
    release = mechanism.release(totals[order], SeededNoise(seed), max_answers=labels)
    asked, answered = order[: len(release.answered)], release.answered
    index, label = asked[answered], release.label[answered]
    _, accuracy = train_and_test(
        dataset,
        index,
        label,
        classes=totals.shape[1],
        settings=StudentSettings(name=student, epochs=EPOCHS),
        seed=seed,
        device=plan.device,
        tested=slice(TRAINED, None),
    )
    spent = data_dependent_epsilon_do_not_publish(mechanism, totals[asked], answered, delta=DELTA)
    return MnistRun(
        student=student,
        labels=labels,
        seed=seed,
        asked=len(asked),
        labels_wrong=float(np.mean(label != dataset.public_labels[index])),
        epsilon_do_not_publish=spent.epsilon,
        epsilon_data_independent=epsilon_of(release.event.cost(), DELTA),
        accuracy=accuracy,
    )


def _summary(runs: list[MnistRun]) -> Iterator[tuple[str, int, float, float, int, list[MnistRun]]]:
    for labels in LABELS:
        for student in (*QUICK_STUDENTS, *SLOW_STUDENTS):
            found = [run for run in runs if (run.student, run.labels) == (student, labels)]
            if found:
                mean, spread = accuracy_of(found)
                yield student, labels, round(mean, 2), round(spread, 2), len(found), found


def _lines(runs: list[MnistRun]) -> Iterator[str]:
    yield (
        f"{'student':<14} {'labels':>6} {'paper, %':>9} {'ours, %':>8} {'± sd':>5} {'seeds':>6} "
        f"{'wrong, %':>9}"
    )
    for student, labels, mean, spread, seeds, found in _summary(runs):
        published = f"{PAPER[labels][1]:.1f}" if labels in PAPER else ""
        wrong = 100 * np.mean([run.labels_wrong for run in found])
        yield (
            f"{student:<14} {labels:>6} {published:>9} {mean:>8.1f} {shown_sd(spread):>5} {seeds:>6} "
            f"{wrong:>9.1f}"
        )
    for labels in LABELS:
        some = [run for run in runs if run.labels == labels]
        if some:
            worst = max(run.epsilon_do_not_publish for run in some)
            flat = max(run.epsilon_data_independent for run in some)
            yield (
                f"{labels} labels, T {THRESHOLD:g}, σ1 {SIGMA1:g}, σ2 {SIGMA2:g}, δ {DELTA:g}: "
                f"data-independent ε {flat:.2f}; data-dependent at most {worst:.2f} "
                "(do not publish; P18: 1.97 for 286)"
            )
    yield "not private: seeded noise, on public votes"


def _draw(path: Path, runs: list[MnistRun]) -> None:
    """A panel for each number of labels: a point for each student, and the paper's figure as a line."""

    def draw(panels: list[Any]) -> None:
        for axes, labels in zip(panels, LABELS, strict=True):
            cells = [row for row in _summary(runs) if row[1] == labels]
            for place, (_, _, mean, spread, *_) in enumerate(cells):
                bar = float(np.nan_to_num(spread))
                axes.errorbar([place], [mean], yerr=[bar], marker="o", capsize=3, color=COLOURS[1])
            axes.set_xticks(range(len(cells)), [row[0] for row in cells], rotation=20, fontsize=8)
            if labels in PAPER:
                figure = PAPER[labels][1]
                axes.axhline(figure, linestyle="--", color=COLOURS[0], label=f"P18: {figure:g} %")
                axes.legend(fontsize=8)

    up = "accuracy on the last 1,000 test images, %"
    draw_panels(path, [(f"MNIST, {labels} labels of the authors' votes", "", up) for labels in LABELS], draw)

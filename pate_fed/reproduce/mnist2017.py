"""PATE 2017 on MNIST (Papernot et al., arXiv 1610.05755): Figures 2, 3 and 4, from our teachers and theirs.

Figure 2 is the accuracy of noisy aggregation against γ for ensembles of 10, 100 and 250 teachers, Figure 3
the gap between the two classes with most votes, Figure 4 the student, a semi-supervised GAN on 100, 500 and
1,000 labels. Our teachers are heads on a public encoder, which learn in seconds and are better than the
paper's CNNs; theirs are the votes and the noisy labels that the authors published. Students take the first
9,000 test images and are tested on the last 1,000, as in the paper; the GAN has two quicker ones beside it.
Quick, the GAN takes 40 epochs on the improved GAN's dense network, some five minutes of one core each and
thirty times for five seeds; the others take 20 on a small network, or none. `--paper` takes 300 epochs, and
the seven-layer network for the student beside the GAN, on a GPU.

LNMax's ε comes from the votes (moments accountant, Theorem 3), so it reveals something about them; beside it
stands the ε that does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset
from pate_fed.format import delta_text
from pate_fed.learning import StudentSettings
from pate_fed.privacy import RECORD, LNMax, SeededNoise, epsilon_of
from pate_fed.privacy.bounds.gnmax import lnmax_log_moments, moments_epsilon
from pate_fed.reproduce.columns import EPSILON, Column, cells_of, student_table
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables
from pate_fed.reproduce.measures import COLOURS, StudentRow, draw_panels, release_labels, train_and_test
from pate_fed.reproduce.votes import authors_totals, ensemble_size, ensemble_totals, inputs_of

NAME = "pate-2017-mnist"
ENSEMBLES = (10, 100, 250)
GAMMAS = tuple(round(float(each), 4) for each in np.geomspace(0.01, 1, 13))
DRAWS = 5
SCALE, DELTA = 20.0, 1e-5  # of the noise; the paper's text says 20, its ε are those of 10
MOMENTS = np.arange(1.0, 9.0)
LABELS = (100, 500, 1000)
PAPER = {100: (2.04, 98.0), 1000: (8.03, 98.1)}
SOURCES = ("authors", "ours")
STUDENTS = ("encoder-head", "vat", "gan")  # the quick ones first; the last is the paper's
_PLACES = "mnist_250_teachers_100_indices_used_by_student.npy"
_NOISY = "mnist_250_student_labels_lap_20.npy"

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MnistStudent(StudentRow):
    """One student. The ε with "do_not_publish" come from the votes."""

    student: str
    source: str
    labels: int
    seed: int
    _: KW_ONLY
    epsilon_scale_10_do_not_publish: float
    epsilon_scale_20_do_not_publish: float
    epsilon_data_independent: float


def reproduce_mnist_2017(plan: Reproduction, log: Log) -> list[str]:
    """Train the students and write pate-2017-mnist-*.txt and .png."""
    dataset = plan.load("mnist")
    theirs = authors_totals(plan, dataset)
    ours = {count: ensemble_totals(plan, dataset, count, log) for count in ENSEMBLES}
    ensembles = {f"{count} of ours": ours[count] for count in ENSEMBLES} | {"250 of the authors": theirs}
    arrays = {f"totals of {name}": totals for name, totals in ensembles.items()}
    arrays |= {file: np.load(plan.published(file)) for file in (_PLACES, _NOISY)}
    figures = cache(lambda: list(_ensembles(plan, ensembles, dataset.public_labels[: len(theirs)])))
    tasks = product(STUDENTS, SOURCES, LABELS, range(plan.seeds))
    table = Table(
        path=plan.file(f"{NAME}-runs", "csv"),
        row=MnistStudent,
        tasks=sorted(tasks, key=lambda task: (STUDENTS.index(task[0]), task[3], task[2])),
        make=partial(_train, plan, dataset, {"authors": theirs, "ours": ours[250]}),
        inputs=inputs_of(plan, [dataset], arrays),
        lines=lambda rows: _lines(figures(), rows),
    )
    return run_tables(plan, [table], text=plan.file(NAME, "txt"), log=log)


def noisy_accuracy(totals: Ints, truth: Ints, gamma: float, *, draws: int = DRAWS) -> float:
    """The share of noisy labels that are right, over a few draws; totals (n, classes), truth (n,)."""
    mechanism = LNMax(**ensemble_size(totals), scale=1 / gamma)
    found = [mechanism.release(totals, SeededNoise(draw)).label for draw in range(draws)]
    return float(np.mean(np.stack(found) == truth))


def gaps(totals: Ints) -> NDArray[np.float64]:
    """Votes between the first and the second class, as a share of all votes: (n, classes) to (n,)."""
    ranked = np.sort(totals, axis=1)
    shares: NDArray[np.float64] = (ranked[:, -1] - ranked[:, -2]) / totals.sum(axis=1)
    return shares


def _ensembles(plan: Reproduction, ensembles: dict[str, Ints], truth: Ints) -> Iterator[str]:
    """Figures 2 and 3: their numbers as lines, and both as one picture."""
    curves = {
        name: [100 * noisy_accuracy(each, truth, g) for g in GAMMAS] for name, each in ensembles.items()
    }
    yield "Figure 2: noisy labels that are right, %, by γ"
    yield f"{'teachers':<20} " + " ".join(f"{gamma:>6g}" for gamma in GAMMAS)
    for name, curve in curves.items():
        yield f"{name:<20} " + " ".join(f"{value:>6.1f}" for value in curve)
    yield "published: 93.18 % for 250 teachers at γ 0.05"
    yield "Figure 3: gap between the first and the second class, share of the teachers"
    for name, each in ensembles.items():
        found, right = gaps(each), each.argmax(axis=1) == truth
        alone = each[np.arange(len(truth)), truth].sum() / each.sum()
        yield (
            f"{name:<20} mean {100 * found.mean():.1f} %, below 20 % on {100 * np.mean(found < 0.2):.1f} % "
            f"of the inputs; one teacher right {100 * alone:.1f} %, plurality {100 * right.mean():.1f} %"
        )
    yield "published: above 60 % on average; one of 250 teachers 83.86 % right"
    draw_panels(
        plan.out_dir / f"{NAME}-figures-2-3.png",
        [
            ("Figure 2: how much noise", "γ (Laplace scale 1/γ votes)", "noisy labels that are right, %"),
            ("Figure 3: how certain", "gap, share of the teachers", "share of the inputs, %"),
        ],
        lambda axes: _draw(axes, curves, {name: gaps(each) for name, each in ensembles.items()}),
    )


def _draw(axes: Any, curves: dict[str, list[float]], found: dict[str, NDArray[np.float64]]) -> None:
    for (name, curve), shares, colour in zip(curves.items(), found.values(), COLOURS, strict=False):
        axes[0].plot(GAMMAS, curve, marker="o", markersize=3, color=colour, label=name)
        counts, edges = np.histogram(shares, np.linspace(0, 1, 21))
        axes[1].stairs(100 * counts / len(shares), edges, color=colour, label=name)
        axes[1].axvline(float(shares.mean()), color=colour, linewidth=0.8, linestyle=":")
    axes[0].set_xscale("log")
    axes[1].set_yscale("log")
    axes[1].legend(fontsize=8, title="dotted: mean", title_fontsize=8, loc="upper left")


def _train(
    plan: Reproduction, dataset: Dataset, totals_of: dict[str, Ints], task: tuple[str, str, int, int]
) -> MnistStudent:
    student, source, labels, seed = task
    totals = totals_of[source]
    index, label = _labels(plan, totals, source, labels, seed)
    settings = _settings(student, paper=plan.paper)
    _, figures = train_and_test(plan, dataset, index, label, settings, seed=seed)
    mechanism = LNMax(**ensemble_size(totals), scale=SCALE)
    return MnistStudent(
        *task,
        epsilon_scale_10_do_not_publish=_moments(totals[index], 10.0),
        epsilon_scale_20_do_not_publish=_moments(totals[index], SCALE),
        epsilon_data_independent=epsilon_of(mechanism.cost_asked(RECORD) * labels, DELTA),
        **figures,
    )


def _settings(student: str, *, paper: bool) -> StudentSettings:
    """The GAN is on the dense network of the recipe that the paper follows; it names none itself.

    Quick it has half the batch: chosen on images 7,000 to 8,999 with 100 true labels among the first 7,000,
    where it got 97.5 % after 40 epochs, 96.1 with the whole batch, and the small network 84.2 after 20.
    """
    if student == "gan":
        if paper:
            return StudentSettings(name=student, as_published=True)
        return StudentSettings(name=student, network="dense", epochs=40, batch_size=50)
    epochs, network = (300, "deep-cnn") if paper else (20, "small-cnn")
    return StudentSettings(name=student, network=network, epochs=epochs)


def _labels(plan: Reproduction, totals: Ints, source: str, labels: int, seed: int) -> tuple[Ints, Ints]:
    """Which inputs are labelled, and how.

    The authors published 100 places and one noisy label for every input; of the 500 and 1,000 they did not
    name the places, so the first are taken. Ours are drawn anew for each seed.
    """
    if source == "ours":
        mechanism = LNMax(**ensemble_size(totals), scale=SCALE)
        given = release_labels(mechanism, totals, seed=seed, labels=labels)
        return given.index, given.label
    index = np.arange(labels, dtype=np.int64)
    if labels == 100:
        index = np.load(plan.published(_PLACES)).astype(np.int64)
    every = np.load(plan.published(_NOISY))
    return index, every[index].astype(np.int64)


def _moments(totals: Ints, scale: float) -> float:
    return moments_epsilon(lnmax_log_moments(totals, scale, MOMENTS).sum(axis=0), DELTA, MOMENTS).epsilon


def _lines(figures: list[str], rows: list[MnistStudent]) -> Iterator[str]:
    columns = (
        Column("student", lambda cell: cell.task[0]),
        Column("labels from", lambda cell: cell.task[1]),
        Column("labels", lambda cell: cell.task[2], "d"),
        Column("paper, %", lambda cell: PAPER.get(cell.task[2], (None, None))[1], ".1f"),
    )
    charged = (
        Column("ε paper*", lambda cell: PAPER.get(cell.task[2], (None, None))[0], ".2f"),
        Column("ε 1/10*", lambda cell: cell.mean("epsilon_scale_10_do_not_publish"), ".2f"),
        Column("ε 1/20*", lambda cell: cell.mean("epsilon_scale_20_do_not_publish"), ".2f"),
        Column("ε", lambda cell: cell.rows[0].epsilon_data_independent, EPSILON),
    )
    yield from figures
    delta = delta_text(DELTA)
    yield f"Figure 4: the student, noise of scale {SCALE:g} votes, δ {delta}; the paper's is the GAN"
    cells = cells_of(rows, product(reversed(STUDENTS), SOURCES, LABELS))
    yield from student_table(columns, cells, after=charged)
    yield "* data-dependent (moments accountant, 8 moments, γ 1/10 and 1/20): DO NOT PUBLISH; the last"
    yield "  ε holds whatever the votes are, at γ 1/20. The paper's text says γ 1/20, its ε are of γ 1/10."
    yield "not private: seeded noise, on public data"

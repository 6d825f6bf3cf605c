"""Accuracy on Fashion-MNIST against a data-independent ε, for kinds of teachers and students, in one picture.

250 teachers of 240 images, no threshold, σ2 from the ledger's own accounting of integer noise (Rényi, with
the improved conversion) at δ 1e-5. How many labels an ε buys was chosen on inputs 7,000 to 8,999 with
students of the first 7,000; students are tested on the last 1,000. Beside ours stand PATE++'s points (arXiv
2211.01628) and central DP-SGD (Tramèr and Boneh, "Differentially private learning needs better features",
ICLR 2021), which needs all data in one place.

Teachers are the three kinds that 250 of can be trained on a CPU within an hour. PATE++'s own network,
deep-cnn, is not among them: 250 of it are hours of a GPU; `pate++-fashion-mnist --paper` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, load_dataset
from pate_fed.learning import StudentSettings
from pate_fed.reproduce.measures import accuracy_of, least_noise, shown_sd, train_and_test
from pate_fed.reproduce.pictures import draw_panels
from pate_fed.reproduce.plan import Reproduction
from pate_fed.reproduce.rows import append_row, bind_rows, read_rows
from pate_fed.reproduce.votes import TRAINED, inputs_of, teachers_totals
from pate_fed.reproduce.workers import as_ready

__all__ = ["LABELS", "FrontierRun", "reproduce_frontier", "sigma_for"]

DELTA = 1e-5
EPOCHS = 10  # of each stage of a student
LABELS = {0.5: 500, 1.0: 800, 2.0: 1000, 3.0: 1300, 4.05: 1500, 5.04: 2000, 6.0: 2200}
TEACHERS = ("small-cnn", "hog-linear", "encoder-head")
SLOW_EPSILONS = (4.05, 2.0, 5.04, 1.0, 0.5, 3.0, 6.0)  # in this order, for students that take a minute each
SLOW_STUDENTS = ("supervised", "gan", "co-teaching", "pate+", "pate++", "vat", "fixmatch")
MARKS = {
    "encoder-head": ("o", "#1b6f8a"),
    "supervised": ("s", "#9e9e9e"),
    "gan": ("D", "#b5651d"),
    "co-teaching": ("^", "#7a9a01"),
    "pate+": ("<", "#d4a017"),
    "pate++": ("v", "#8a1b5c"),
    "vat": ("p", "#4b5fa8"),
    "fixmatch": ("h", "#2e8b57"),
}
TICKS = (0, 20, 40, 50, 60, 70, 75, 80, 85, 88, 90)
OTHERS = {
    "PATE++, published": {4.05: 79.6, 5.04: 82.9},
    "central DP-SGD, ScatterNet": {3.0: 89.7},
    "central DP-SGD, CNN": {3.0: 86.0},
}


Curve = tuple[str, str, list[tuple[float, list["FrontierRun"]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierRun:
    """One student; shares in [0, 1]."""

    teacher: str
    student: str
    epsilon: float
    seed: int
    labels: int
    sigma2: float
    labels_wrong: float
    accuracy: float


@cache
def sigma_for(*, labels: int, epsilon: float) -> float:
    """The least σ2 (to 0.1 votes) at which `labels` answers without a threshold cost at most `epsilon`."""
    from pate_fed.privacy import RECORD, GNMax, epsilon_of

    def cost(sigma: float) -> float:
        mechanism = GNMax(num_teachers=250, num_classes=10, sigma=sigma)
        return epsilon_of(mechanism.cost_asked(RECORD) * labels, DELTA)

    return least_noise(cost, epsilon=epsilon)


def reproduce_frontier(plan: Reproduction, say: Callable[[str], None]) -> list[str]:
    """Train what is missing, write frontier.txt and .png, and give the text's lines.

    Raises:
        InputError: the data is not there, or the rows there were made from other data or totals.
    """
    dataset = load_dataset("fashion-mnist", data_dir=plan.data_dir)
    path = plan.out_dir / "frontier-runs.csv"
    kept = {teacher: plan.out_dir / f"totals-{teacher}.npz" for teacher in TEACHERS}

    def totals_of(teacher: str) -> NDArray[np.int64]:
        return teachers_totals(
            dataset, path=kept[teacher], teacher=teacher, device=plan.device, say=say, workers=plan.workers
        )

    totals = {each: totals_of(each) for each in TEACHERS if kept[each].exists()}
    _bind(path, plan, dataset, totals)
    runs = read_rows(path, FrontierRun)
    done = {(run.teacher, run.student, run.epsilon, run.seed) for run in runs}
    todo = [task for task in _tasks(plan.seeds) if task not in done]
    totals |= {each: totals_of(each) for each in sorted({task[0] for task in todo} - set(totals))}
    _bind(path, plan, dataset, totals)
    for run in as_ready(partial(_train, plan, dataset, totals), todo, workers=plan.workers):
        runs.append(run)
        append_row(path, run)
        say(f"{run.teacher}, {run.student}, ε {run.epsilon:g}, seed {run.seed}: {100 * run.accuracy:.1f} %")
        if run.student in SLOW_STUDENTS:
            _write(plan, runs)  # the whole takes hours: what there is can be looked at
    return _write(plan, runs)


def _bind(path: Path, plan: Reproduction, dataset: Dataset, totals: Mapping[str, NDArray[np.int64]]) -> None:
    known = {f"totals of {teacher}": of_teacher for teacher, of_teacher in totals.items()}
    bind_rows(path, inputs_of(plan, dataset, known))


def _write(plan: Reproduction, runs: list[FrontierRun]) -> list[str]:
    runs = [run for run in runs if run.seed < plan.seeds]
    lines = list(_lines(runs))
    (plan.out_dir / "frontier.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _draw(plan.out_dir / "frontier.png", runs)
    return lines


def _tasks(seeds: int) -> Iterator[tuple[str, str, float, int]]:
    """The quick student first, for all seeds; then the slow ones, seeds outermost."""
    for seed in range(seeds):
        for teacher in reversed(TEACHERS):
            for epsilon in LABELS:
                yield teacher, "encoder-head", epsilon, seed
    for seed in range(seeds):
        for epsilon in SLOW_EPSILONS:
            for teacher in reversed(TEACHERS):
                for student in SLOW_STUDENTS:
                    yield teacher, student, epsilon, seed


def _train(
    plan: Reproduction,
    dataset: Dataset,
    of_teachers: Mapping[str, NDArray[np.int64]],
    task: tuple[str, str, float, int],
) -> FrontierRun:
    from pate_fed.privacy import GNMax, SeededNoise

    teacher, student, epsilon, seed = task
    totals = of_teachers[teacher]
    labels = min(LABELS[epsilon], len(totals))
    sigma = sigma_for(labels=labels, epsilon=epsilon)
    mechanism = GNMax(num_teachers=int(totals[0].sum()), num_classes=totals.shape[1], sigma=sigma)
    index = np.random.default_rng(seed).permutation(len(totals))[:labels].astype(np.int64)
    label = mechanism.release(totals[index], SeededNoise(seed)).label
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
    return FrontierRun(
        teacher=teacher,
        student=student,
        epsilon=epsilon,
        seed=seed,
        labels=labels,
        sigma2=sigma,
        labels_wrong=float(np.mean(label != dataset.public_labels[index])),
        accuracy=accuracy,
    )


def _curves(runs: list[FrontierRun]) -> Iterator[Curve]:
    """Teacher, student, and the runs at each ε."""
    for teacher in TEACHERS:
        for student in ("encoder-head", *SLOW_STUDENTS):
            mine = [run for run in runs if (run.teacher, run.student) == (teacher, student)]
            points = sorted({run.epsilon for run in mine})
            if points:
                yield teacher, student, [(e, [run for run in mine if run.epsilon == e]) for e in points]


def _lines(runs: list[FrontierRun]) -> Iterator[str]:
    yield (
        f"{'teacher':<13} {'student':<13} {'ε':>5} {'labels':>6} {'σ2':>6} {'wrong, %':>9} {'ours, %':>8} "
        f"{'± sd':>5} {'seeds':>6}"
    )
    for teacher, student, points in _curves(runs):
        for epsilon, some in points:
            mean, sd = accuracy_of(some)
            wrong = 100 * np.mean([run.labels_wrong for run in some])
            yield (
                f"{teacher:<13} {student:<13} {epsilon:>5g} {some[0].labels:>6} {some[0].sigma2:>6.1f} "
                f"{wrong:>9.1f} {mean:>8.1f} {shown_sd(sd):>5} {len(some):>6}"
            )
    for name, figures in OTHERS.items():
        yield f"{name}: " + ", ".join(f"{value:.1f} % at ε {epsilon:g}" for epsilon, value in figures.items())
    yield f"ε is data-independent, at δ {DELTA:g}; not private: seeded noise, on a public data set"


def _draw(path: Path, runs: list[FrontierRun]) -> None:
    """A panel for each kind of teacher, on one scale, with what others published in each."""
    curves = list(_curves(runs))
    teachers = [teacher for teacher in TEACHERS if any(curve[0] == teacher for curve in curves)]
    across, up = "data-independent ε at δ 1e-5", "accuracy on the last 1,000 test images, %"
    draw_panels(
        path,
        [(f"teachers {teacher}", across, "" if place else up) for place, teacher in enumerate(teachers)],
        lambda panels: _draw_curves(dict(zip(teachers, panels, strict=True)), curves),
        size=(4.0, 5.2),
    )


def _draw_curves(panels: dict[str, Any], curves: list[Curve]) -> None:
    for teacher, student, points in curves:
        means, sds = zip(*(accuracy_of(some) for _, some in points), strict=True)
        panels[teacher].errorbar(
            [epsilon for epsilon, _ in points],
            means,
            yerr=np.nan_to_num(sds),
            marker=MARKS[student][0],
            color=MARKS[student][1],
            linewidth=2 if student == "encoder-head" else 0.9,
            markersize=5,
            capsize=2,
            label=f"student {student}",
        )
    lowest = min([min(accuracy_of(some)[0] for _, some in points) for *_, points in curves], default=70.0)
    for axes in panels.values():
        for (name, figures), mark in zip(OTHERS.items(), ("*", "P", "X"), strict=True):
            there = list(figures), list(figures.values())
            axes.plot(*there, mark, color="#333333", markersize=8, label=name, zorder=3)
        axes.set_xlim(0, 6.3)
        # Even steps are equal factors of the error, or all that is good would lie on one line.
        axes.set_yscale("function", functions=(_by_error, _of_error))
        axes.set_ylim(max(0.0, lowest - 3), 92)
        axes.set_yticks([tick for tick in TICKS if tick > lowest - 3])
    _share_legend(list(panels.values()))


def _by_error(accuracy: Any) -> Any:
    return -np.log(100 - np.minimum(accuracy, 99.9))


def _of_error(height: Any) -> Any:
    return 100 - np.exp(-height)


def _share_legend(panels: list[Any]) -> None:
    """One legend below all panels, where it hides no point."""
    named: dict[str, Any] = {}
    for axes in panels:
        lines, names = axes.get_legend_handles_labels()
        named |= dict(zip(names, lines, strict=True))
    for axes in panels[:1]:
        axes.figure.legend(named.values(), named.keys(), fontsize=7, ncols=4, loc="outside lower center")

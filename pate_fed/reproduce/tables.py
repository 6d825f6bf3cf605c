"""PATE++ (arXiv 2211.01628), Tables I to III on Fashion-MNIST, ours beside the published figures.

250 teachers of 240 images, 2,200 labels at ε 4.05 and 5.04, students trained on the first 9,000 test images
and tested on the last 1,000. The paper states neither σ1, σ2 nor T; here every query is answered and σ2
follows from Proposition 2, which gives about its share of wrong labels. It names neither dropout nor averaged
weights, so the discriminators have neither here: with both, one network alone stands these labels, and
nothing is left for the others to gain. The learning rate and the epochs of `--quick` were chosen on inputs
7,000 to 8,999, with students of the first 7,000; the last 1,000 were not looked at.

Table 4 is not in the paper: what a public encoder makes of Table I, at the same noise, number of labels and
epochs. Its labels are those of light teachers on the encoder, unless totals are given, and the students'
networks are on it, with their own dropout. PATE++ is there with τ = β, too, which was best on the inputs that
things were chosen on.

Each trained student is a row of runs-quick.csv or runs-paper.csv as soon as it is done; a call that was
stopped goes on from there. All PATE++ of one seed share their first stage, which is that seed's PATE+.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, load_dataset
from pate_fed.disk import write_arrays
from pate_fed.learning import StudentSettings
from pate_fed.reproduce.measures import mean_and_sd, shown_sd, train_and_test
from pate_fed.reproduce.plan import Reproduction
from pate_fed.reproduce.rows import append_row, bind_rows, read_rows, write_rows
from pate_fed.reproduce.votes import TRAINED, inputs_of, teachers_totals
from pate_fed.reproduce.workers import as_ready

if TYPE_CHECKING:
    from pate_fed.learning.students.student import Student

__all__ = ["PAPER", "proposition2_epsilon", "proposition2_sigma", "reproduce_tables"]

LABELS, CLASSES, DELTA = 2200, 10, 1e-5
BETA, TAU = 0.2, 0.318
ON_ENCODER = " on the encoder"
CLOSED_FORM = "encoder-head"  # Table 4's teachers
SECOND = 1000  # added to the seed for PATE++'s second stage, so that it starts from other weights

# Published test accuracy in %, by ε, student, β and τ (tables I to III); None where a student has none.
PAPER: dict[tuple[float, str, float | None, float | None], float] = {
    (4.05, "gan", None, None): 74.8,
    (4.05, "co-teaching", 0.2, None): 77.3,
    (4.05, "pate+", 0.2, None): 76.5,
    (4.05, "pate++", 0.2, 0.318): 79.6,
    (5.04, "gan", None, None): 82.1,
    (5.04, "co-teaching", 0.2, None): 82.5,
    (5.04, "pate+", 0.2, None): 82.7,
    (5.04, "pate++", 0.2, 0.318): 82.9,
    (4.05, "co-teaching", 0.1, None): 76.2,
    (4.05, "co-teaching", 0.3, None): 77.0,
    (4.05, "co-teaching", 0.4, None): 76.2,
    (4.05, "pate+", 0.1, None): 76.4,
    (4.05, "pate+", 0.3, None): 77.3,
    (4.05, "pate+", 0.4, None): 77.4,
    (4.05, "pate++", 0.2, 0.091): 78.1,
    (4.05, "pate++", 0.2, 0.182): 78.6,
    (4.05, "pate++", 0.2, 0.227): 79.0,
    (4.05, "pate++", 0.2, 0.273): 79.5,
    (4.05, "pate++", 0.2, 0.364): 78.2,
}


Cell = tuple[float, str, float | None, float | None]
Task = tuple[float, str, float | None, float | None, int]  # a cell and its seed


def _of_table() -> dict[int, list[Cell]]:
    one = [cell for cell in PAPER if cell[2] in (None, BETA) and cell[3] in (None, TAU)]
    return {
        1: one,
        2: [cell for cell in PAPER if cell not in one and cell[3] is None],
        3: [cell for cell in PAPER if cell[3] not in (None, TAU)],
        4: [(epsilon, student + ON_ENCODER, beta, tau) for epsilon, student, beta, tau in one]
        + [(epsilon, "pate++" + ON_ENCODER, BETA, BETA) for epsilon in (4.05, 5.04)],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentRun:
    """One trained student. Shares in [0, 1]; `removed_wrong` is the share of wrong ones among `removed`."""

    epsilon: float
    student: str
    beta: float | None
    tau: float | None
    seed: int
    labels_wrong: float
    accuracy: float
    removed: int | None = None
    removed_wrong: float | None = None


def proposition2_epsilon(
    *, asked: int, answered: int, sigma1: float | None, sigma2: float, delta: float
) -> float:
    """ε = λ·c + ln(1/δ)/(λ - 1) at its best λ, with c = asked/(2σ1²) + answered/σ2² (PATE++, Proposition 2).

    `sigma1` None stands for no threshold check. The least value over λ > 1 is c + 2·√(c·ln(1/δ)).
    """
    c = (0.0 if sigma1 is None else asked / (2 * sigma1**2)) + answered / sigma2**2
    return c + 2 * math.sqrt(c * math.log(1 / delta))


def proposition2_sigma(*, answered: int, epsilon: float, delta: float) -> float:
    """The σ2 at which `answered` labels without a threshold check cost `epsilon`."""
    log = math.log(1 / delta)
    return math.sqrt(answered) / (math.sqrt(log + epsilon) - math.sqrt(log))


def reproduce_tables(plan: Reproduction, say: Callable[[str], None]) -> list[str]:
    """Fill the tables and write them as text, CSV and picture; gives the text's lines.

    `out_dir` gets tables-quick.txt, .csv and .png, runs-quick.csv and totals-quick.npz, or -paper's.

    Raises:
        InputError: the data or the folder is not there, or a file there is not this command's or was made
            from other data or totals.
    """
    dataset = load_dataset("fashion-mnist", data_dir=plan.data_dir)
    path, wanted = plan.file("runs", "csv"), list(_tasks(plan))
    totals = _totals(plan, dataset, {_teacher(plan, task[1]) for task in wanted}, say)
    bind_rows(path, inputs_of(plan, dataset, {_bound_as(plan, each): totals[each] for each in totals}))
    runs = read_rows(path, StudentRun)
    done = {_task(run) for run in runs}
    todo = [task for task in wanted if task not in done]
    # PATE++ starts from what its PATE+ has counted.
    waves = [[task for task in todo if (task[3] is None) == first] for first in (True, False)]
    train, number = partial(_train, plan, dataset, totals), 0
    for run in chain.from_iterable(as_ready(train, wave, workers=plan.workers) for wave in waves):
        number += 1
        runs.append(run)
        append_row(path, run)
        say(f"student {number} of {len(todo)}: {_title(_task(run)[:4])}, {100 * run.accuracy:.1f} %")
    runs = [run for run in runs if _task(run) in set(wanted)]
    lines = _lines(runs)
    plan.file("tables", "txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    names = ["epsilon", "student", "beta", "tau", "paper", "mean", "sd", "seeds"]
    summary = [
        [*cell, published, f"{mean:.2f}", f"{sd:.2f}", n] for cell, published, mean, sd, n in _summary(runs)
    ]
    write_rows(plan.file("tables", "csv"), names, summary)
    _draw(plan.file("tables", "png"), runs)
    return lines


def _task(run: StudentRun) -> Task:
    return run.epsilon, run.student, run.beta, run.tau, run.seed


def _tasks(plan: Reproduction) -> Iterator[Task]:
    """ε, student, β, τ and seed of every student that the wanted tables need, seeds outermost."""
    of_table = _of_table()
    for seed in range(plan.seeds):
        for table in plan.tables or (1, 2, 3):
            for epsilon, student, beta, tau in of_table[table]:
                yield epsilon, student, beta, tau, seed


def released_labels(
    totals: NDArray[np.int64], *, epsilon: float, seed: int, labels: int = LABELS
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which inputs were asked and the labels they got, at Proposition 2's noise for `epsilon`."""
    from pate_fed.privacy import GNMax, SeededNoise

    sigma = proposition2_sigma(answered=labels, epsilon=epsilon, delta=DELTA)
    mechanism = GNMax(num_teachers=int(totals[0].sum()), num_classes=totals.shape[1], sigma=sigma)
    index = np.random.default_rng(seed).permutation(len(totals))[:labels].astype(np.int64)
    return index, mechanism.release(totals[index], SeededNoise(seed)).label


def _teacher(plan: Reproduction, student: str) -> str:
    """Whose votes a student learns from; empty where totals are given."""
    if plan.totals is not None:
        return ""
    if student.endswith(ON_ENCODER):
        return CLOSED_FORM
    return "deep-cnn" if plan.paper else "small-cnn"


def _bound_as(plan: Reproduction, teacher: str) -> str:
    return f"totals of {teacher}" if teacher == CLOSED_FORM else "totals"


def _totals(
    plan: Reproduction, dataset: Dataset, teachers: set[str], say: Callable[[str], None]
) -> dict[str, NDArray[np.int64]]:
    """Each kind of teachers' totals, from the file that is given or kept."""

    def kept(teacher: str) -> Path:
        light = plan.out_dir / f"totals-{CLOSED_FORM}.npz"  # the frontier's, too
        return plan.totals or (light if teacher == CLOSED_FORM else plan.file("totals", "npz"))

    return {
        teacher: teachers_totals(
            dataset, path=kept(teacher), teacher=teacher, device=plan.device, say=say, workers=plan.workers
        )
        for teacher in sorted(teachers)
    }


def _train(
    plan: Reproduction, dataset: Dataset, totals: Mapping[str, NDArray[np.int64]], task: Task
) -> StudentRun:
    epsilon, student, beta, tau, seed = task
    index, label = released_labels(totals[_teacher(plan, student)], epsilon=epsilon, seed=seed)
    wrong = label != dataset.public_labels[index]
    removed: NDArray[np.bool_] | None = None
    start = seed
    if tau is not None:
        removed, start = _removed(_counts(plan, dataset, task, index, label), tau), seed + SECOND
        index, label = index[~removed], label[~removed]
    trained, accuracy = _fit(plan, dataset, task, index, label, start)
    if trained.counts is not None and tau is None:
        write_arrays(_counts_file(plan, task), counts=trained.counts, index=index, label=label)
    return StudentRun(
        epsilon=epsilon,
        student=student,
        beta=beta,
        tau=tau,
        seed=seed,
        labels_wrong=float(wrong.mean()),
        accuracy=accuracy,
        removed=None if removed is None else int(removed.sum()),
        removed_wrong=float(wrong[removed].mean()) if removed is not None and removed.any() else None,
    )


def _fit(
    plan: Reproduction,
    dataset: Dataset,
    task: Task,
    index: NDArray[np.int64],
    label: NDArray[np.int64],
    seed: int,
) -> tuple[Student, float]:
    """Train one stage and test it."""
    return train_and_test(
        dataset,
        index,
        label,
        classes=CLASSES,
        settings=_student_settings(plan, _one_stage(task[1]), task[2]),
        seed=seed,
        device=plan.device,
        tested=slice(TRAINED, None),
    )


def _counts(
    plan: Reproduction,
    dataset: Dataset,
    task: Task,
    index: NDArray[np.int64],
    label: NDArray[np.int64],
) -> NDArray[np.float32]:
    """How often a PATE++'s first stage suspected each label, float32 (labels,); kept by its PATE+, if any."""
    path = _counts_file(plan, task)
    if path.exists():
        with np.load(path, allow_pickle=False) as kept:
            if np.array_equal(kept["index"], index) and np.array_equal(kept["label"], label):
                return np.asarray(kept["counts"], dtype=np.float32)
    trained, _ = _fit(plan, dataset, task, index, label, task[4])
    assert trained.counts is not None
    write_arrays(path, counts=trained.counts, index=index, label=label)
    return np.asarray(trained.counts, dtype=np.float32)


def _counts_file(plan: Reproduction, task: Task) -> Path:
    """Where the counts of a PATE+, or of a PATE++'s first stage, are kept."""
    epsilon, student, beta, _, seed = task
    name = f"counts-{_one_stage(student).replace(' ', '-')}-{epsilon:g}-{beta:g}-{seed}"
    return plan.file(name, "npz")


def _one_stage(student: str) -> str:
    """The student that is either stage of a PATE++."""
    return student.replace("pate++", "pate+")


def _removed(counts: NDArray[np.float32], tau: float) -> NDArray[np.bool_]:
    """Step 2 of Algorithm 3."""
    import torch

    from pate_fed.learning.students.gan import most_suspected

    chosen = most_suspected(torch.from_numpy(counts), share=tau)
    return np.asarray(chosen.numpy(), dtype=np.bool_)


def _student_settings(plan: Reproduction, student: str, beta: float | None) -> StudentSettings:
    chosen: dict[str, Any] = {"learning_rate": 6e-3, "epochs": 20, "dropout": 0.0, "input_noise": 0.15}
    if student.endswith(ON_ENCODER):
        chosen |= {"network": "encoder", "dropout": None, "input_noise": None}
    elif plan.paper:
        chosen |= {"learning_rate": 0.01, "epochs": 400, "network": "deep-cnn"}
    name = student.removesuffix(ON_ENCODER)
    return StudentSettings(name=name, noise_rate=beta, ema_decay=0.0, **chosen)


def _title(cell: Cell) -> str:
    epsilon, student, beta, tau = cell
    options = [f"{name} {value:g}" for name, value in (("β", beta), ("τ", tau)) if value is not None]
    return f"ε {epsilon:g}, {student}" + (f" ({', '.join(options)})" if options else "")


def _summary(runs: list[StudentRun]) -> Iterator[tuple[Cell, float | None, float, float, int]]:
    """A cell, the paper's % if any, our mean % and standard deviation, and the seeds; the paper's order."""
    for cell in [*PAPER, *_of_table()[4]]:
        found = [100 * r.accuracy for r in runs if _task(r)[:4] == cell]
        if found:
            yield cell, PAPER.get(cell), *mean_and_sd(found), len(found)


def _lines(runs: list[StudentRun]) -> list[str]:
    from pate_fed.privacy.bounds.gaussian import confident_mu, gaussian_dp_epsilon

    rows = list(_summary(runs))
    width = max((len(_title(row[0])) for row in rows), default=0)
    lines = [f"{'':<{width}} {'paper, %':>9} {'ours, %':>9} {'± sd':>6} {'seeds':>6}"]
    for cell, published, mean, spread, seeds in rows:
        theirs = "-" if published is None else f"{published:.1f}"
        lines.append(f"{_title(cell):<{width}} {theirs:>9} {mean:>9.1f} {shown_sd(spread):>6} {seeds:>6}")
    for epsilon in sorted({run.epsilon for run in runs}):
        sigma = proposition2_sigma(answered=LABELS, epsilon=epsilon, delta=DELTA)
        exact = gaussian_dp_epsilon(confident_mu(LABELS, LABELS, sigma1=None, sigma2=sigma), DELTA)
        lines.append(
            f"ε {epsilon:g} at δ {DELTA:g} by Proposition 2, data-independent ({exact:.2f} by exact Gaussian "
            f"accounting): {LABELS} labels, σ2 {sigma:.1f} votes, no threshold; {_wrong(runs, epsilon)}"
        )
    lines += _cleansed(runs)
    lines.append("not private: seeded noise, on a public data set")
    return lines


def _wrong(runs: list[StudentRun], epsilon: float) -> str:
    shares: dict[str, list[float]] = {"": [], ON_ENCODER: []}
    for run in runs:
        if run.epsilon == epsilon:
            shares[ON_ENCODER if run.student.endswith(ON_ENCODER) else ""].append(run.labels_wrong)
    parts = [
        f"{100 * np.mean(found):.1f} % of the labels{' of students' if where else ''}{where} are wrong"
        for where, found in shares.items()
        if found
    ]
    return ", ".join(parts)


def _cleansed(runs: list[StudentRun]) -> Iterator[str]:
    for epsilon in sorted({run.epsilon for run in runs}):
        for where in ("", ON_ENCODER):
            cell = epsilon, f"pate++{where}", BETA, TAU
            found = [r for r in runs if _task(r)[:4] == cell and r.removed_wrong is not None]
            if found:
                count = np.mean([run.removed or 0 for run in found])
                right = 100 * np.mean([asdict(run)["removed_wrong"] for run in found])
                yield (
                    f"cleansing{where} at ε {epsilon:g}, β {BETA:g}, τ {TAU:g}: {right:.1f} % of the "
                    f"{count:.0f} removed labels are wrong"
                )


def _draw(path: Path, runs: list[StudentRun]) -> None:
    """Dots with the seeds' standard deviation, and the paper's figure as a diamond."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cells = list(_summary(runs))
    figure = Figure(figsize=(8, 0.34 * len(cells) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rows = np.arange(len(cells))[::-1]
    spread = [0.0 if math.isnan(cell[3]) else cell[3] for cell in cells]
    # No bars: their length would be read, and the axis does not begin at 0.
    axes.errorbar(
        [cell[2] for cell in cells],
        rows,
        xerr=spread,
        fmt="o",
        color="#1b6f8a",
        capsize=3,
        label="ours, ± sd",
    )
    theirs = [(cell[1], row) for cell, row in zip(cells, rows, strict=True) if cell[1] is not None]
    if theirs:
        axes.plot(*zip(*theirs, strict=True), "D", color="#333333", label="paper")
    axes.set_yticks(rows, [_title(cell[0]) for cell in cells])
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("accuracy on the last 1,000 test images, %")
    figure.legend(loc="outside upper right", ncols=2)  # where it hides no dot
    figure.savefig(path, dpi=120)

"""`pate-fed reproduce NAME`: a paper's tables, ours beside the published figures.

PATE++ (arXiv 2211.01628) on Fashion-MNIST: 250 teachers of 240 images, 2,200 labels at ε 4.05 and 5.04,
students trained on the first 9,000 test images and tested on the last 1,000. The paper states neither σ1, σ2
nor T; here every query is answered and σ2 follows from Proposition 2, which gives about its share of wrong
labels. Each trained student is a row of runs-quick.csv or runs-paper.csv as soon as it is done; a call that
was stopped goes on from there.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, load_dataset, partition
from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings, TeacherSettings

__all__ = ["REPRODUCTIONS", "Reproduction", "proposition2_epsilon", "proposition2_sigma", "reproduce"]

REPRODUCTIONS: tuple[str, ...] = ("pate++-fashion-mnist",)

TEACHERS, LABELS, TRAINED, CLASSES, DELTA = 250, 2200, 9000, 10, 1e-5
STUDENTS = ("gan", "co-teaching", "pate+", "pate++")
BETA, TAU = 0.2, 0.318

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """How it is done: `paper` takes the paper's networks and 400 epochs, else the small ones and 10.

    `tables` are those to fill, of 1, 2 and 3; `totals` names a .npz with ready totals (9000, 10).
    """

    data_dir: Path
    out_dir: Path
    paper: bool = False
    seeds: int = 5
    tables: tuple[int, ...] = (1, 2, 3)
    device: str = "cpu"
    totals: Path | None = None

    def file(self, name: str, kind: str) -> Path:
        """A file of the output, apart for each scale."""
        return self.out_dir / f"{name}-{'paper' if self.paper else 'quick'}.{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One trained student. Accuracies in [0, 1]; `labels_wrong` is the share of its released labels."""

    epsilon: float
    student: str
    beta: float | None
    tau: float | None
    seed: int
    labels_wrong: float
    accuracy: float


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


def reproduce(
    name: str, plan: Reproduction, *, on_progress: Callable[[str], None] | None = None
) -> list[str]:
    """Fill the tables of `name` and write them as text, CSV and picture; gives the text's lines.

    `out_dir` gets tables-quick.txt, .csv and .png, runs-quick.csv and totals-quick.npz, or -paper's.

    Raises:
        InputError: no such reproduction, or the data or the folder is not there.
    """
    if name not in REPRODUCTIONS:
        raise InputError(f"reproduce is {name!r}: one of {', '.join(REPRODUCTIONS)} is meant")
    say = on_progress or (lambda line: None)
    plan.out_dir.mkdir(parents=True, exist_ok=True)
    dataset = load_dataset("fashion-mnist", data_dir=plan.data_dir)
    totals = _totals(plan, dataset, say)
    runs = _read_runs(plan.file("runs", "csv"))
    done = {(run.epsilon, run.student, run.beta, run.tau, run.seed) for run in runs}
    todo = [cell for cell in _cells(plan) if cell not in done]
    for number, cell in enumerate(todo, start=1):
        runs.append(_train(plan, dataset, totals, cell))
        _append_run(plan.file("runs", "csv"), runs[-1])
        say(f"student {number} of {len(todo)}: {_title(cell[:4])}, {100 * runs[-1].accuracy:.1f} %")
    wanted = set(_cells(plan))
    runs = [r for r in runs if (r.epsilon, r.student, r.beta, r.tau, r.seed) in wanted]
    lines = _lines(runs)
    plan.file("tables", "txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_summary(plan.file("tables", "csv"), runs)
    _draw(plan.file("tables", "png"), runs)
    return lines


Cell = tuple[float, str, float | None, float | None]


def _cells(plan: Reproduction) -> Iterator[tuple[float, str, float | None, float | None, int]]:
    """ε, student, β, τ and seed of every student that the wanted tables need, seeds outermost."""
    table_one = [cell for cell in PAPER if cell[2] in (None, BETA) and cell[3] in (None, TAU)]
    of_table = {
        1: table_one,
        2: [cell for cell in PAPER if cell not in table_one and cell[3] is None],
        3: [cell for cell in PAPER if cell[3] not in (None, TAU)],
    }
    for seed in range(plan.seeds):
        for table in plan.tables:
            for epsilon, student, beta, tau in of_table[table]:
                yield epsilon, student, beta, tau, seed


def _totals(plan: Reproduction, dataset: Dataset, say: Callable[[str], None]) -> NDArray[np.int64]:
    """Votes of all teachers on the first 9,000 public images, int64 (9000, 10); kept for the next call."""
    path = plan.totals or plan.file("totals", "npz")
    if path.exists():
        with np.load(path) as kept:
            return np.asarray(kept["totals"], dtype=np.int64)
    from pate_fed.learning import train_teacher

    totals = np.zeros((TRAINED, CLASSES), dtype=np.int64)
    settings = TeacherSettings(name="deep-cnn" if plan.paper else "small-cnn")
    parts = partition(dataset.private_labels, num_parties=TEACHERS, scheme="iid", seed=0)
    for number, part in enumerate(parts):
        teacher = train_teacher(
            dataset.private_images[part],
            dataset.private_labels[part],
            num_classes=CLASSES,
            settings=settings,
            seed=number,
            device=plan.device,
        )
        totals[np.arange(TRAINED), teacher.predict(dataset.public_images[:TRAINED])] += 1
        say(f"teacher {number + 1} of {TEACHERS}")
    np.savez_compressed(path, totals=totals.astype(np.uint8))
    return totals


def _train(
    plan: Reproduction,
    dataset: Dataset,
    totals: NDArray[np.int64],
    cell: tuple[float, str, float | None, float | None, int],
) -> Run:
    from pate_fed.learning import train_student
    from pate_fed.privacy import GNMax, SeededNoise

    epsilon, student, beta, tau, seed = cell
    sigma = proposition2_sigma(answered=LABELS, epsilon=epsilon, delta=DELTA)
    mechanism = GNMax(num_teachers=int(totals[0].sum()), num_classes=CLASSES, sigma=sigma)
    index = np.random.default_rng(seed).permutation(TRAINED)[:LABELS].astype(np.int64)
    label = mechanism.release(totals[index], SeededNoise(seed)).label
    trained = train_student(
        dataset.public_images[:TRAINED],
        labelled_index=index,
        labels=label,
        num_classes=CLASSES,
        settings=_student_settings(plan, student, beta, tau),
        seed=seed,
        device=plan.device,
    )
    right = trained.predict(dataset.public_images[TRAINED:]) == dataset.public_labels[TRAINED:]
    return Run(
        epsilon=epsilon,
        student=student,
        beta=beta,
        tau=tau,
        seed=seed,
        labels_wrong=float(np.mean(label != dataset.public_labels[index])),
        accuracy=float(right.mean()),
    )


def _student_settings(
    plan: Reproduction, student: str, beta: float | None, tau: float | None
) -> StudentSettings:
    if not plan.paper:
        return StudentSettings(name=student, noise_rate=beta, removal=tau, learning_rate=1e-3, epochs=10)
    return StudentSettings(
        name=student, network="deep-cnn", noise_rate=beta, removal=tau, learning_rate=0.01, epochs=400
    )


def _read_runs(path: Path) -> list[Run]:
    """The rows of an earlier call; nothing where there is none.

    Raises:
        InputError: the file is not one that this command wrote.
    """
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [
                Run(
                    epsilon=float(row["epsilon"]),
                    student=row["student"],
                    beta=float(row["beta"]) if row["beta"] else None,
                    tau=float(row["tau"]) if row["tau"] else None,
                    seed=int(row["seed"]),
                    labels_wrong=float(row["labels_wrong"]),
                    accuracy=float(row["accuracy"]),
                )
                for row in csv.DictReader(file)
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: not the rows that this command writes; remove it to start again"
        ) from error


def _append_run(path: Path, run: Run) -> None:
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [entry.name for entry in fields(Run)])
        if new:
            writer.writeheader()
        writer.writerow(asdict(run))
        file.flush()
        os.fsync(file.fileno())


def _title(cell: Cell) -> str:
    epsilon, student, beta, tau = cell
    options = [f"{name} {value:g}" for name, value in (("β", beta), ("τ", tau)) if value is not None]
    return f"ε {epsilon:g}, {student}" + (f" ({', '.join(options)})" if options else "")


def _summary(runs: list[Run]) -> Iterator[tuple[Cell, float, float, float, int]]:
    """A cell, the paper's %, our mean % and standard deviation, and the seeds, in the paper's order."""
    for cell, published in PAPER.items():
        found = [100 * r.accuracy for r in runs if (r.epsilon, r.student, r.beta, r.tau) == cell]
        if found:
            spread = float(np.std(found, ddof=1)) if len(found) > 1 else math.nan
            yield cell, published, float(np.mean(found)), spread, len(found)


def _lines(runs: list[Run]) -> list[str]:
    lines = [f"{'':<34} {'paper, %':>9} {'ours, %':>9} {'± sd':>6} {'seeds':>6}"]
    for cell, published, mean, spread, seeds in _summary(runs):
        lines.append(f"{_title(cell):<34} {published:>9.1f} {mean:>9.1f} {spread:>6.1f} {seeds:>6}")
    for epsilon in sorted({run.epsilon for run in runs}):
        sigma = proposition2_sigma(answered=LABELS, epsilon=epsilon, delta=DELTA)
        wrong = np.mean([run.labels_wrong for run in runs if run.epsilon == epsilon])
        lines.append(
            f"ε {epsilon:g} at δ {DELTA:g} (Proposition 2, data-independent): {LABELS} labels, "
            f"σ2 {sigma:.1f} votes, no threshold; {100 * wrong:.1f} % of the labels are wrong"
        )
    lines.append("not private: seeded noise, on a public data set")
    return lines


def _write_summary(path: Path, runs: list[Run]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epsilon", "student", "beta", "tau", "paper", "mean", "sd", "seeds"])
        for cell, published, mean, spread, seeds in _summary(runs):
            writer.writerow([*cell, published, f"{mean:.2f}", f"{spread:.2f}", seeds])


def _draw(path: Path, runs: list[Run]) -> None:
    """Bars with the seeds' standard deviation, and the paper's figure as a diamond."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cells = list(_summary(runs))
    figure = Figure(figsize=(8, 0.34 * len(cells) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    rows = np.arange(len(cells))[::-1]
    spread = [0.0 if math.isnan(cell[3]) else cell[3] for cell in cells]
    axes.barh(rows, [cell[2] for cell in cells], xerr=spread, color="#9ec1cf", label="ours, ± sd")
    axes.plot([cell[1] for cell in cells], rows, "D", color="#333333", label="paper")
    axes.set_yticks(rows, [_title(cell[0]) for cell in cells])
    lowest = min([cell[2] for cell in cells] + [cell[1] for cell in cells], default=70.0)
    axes.set_xlim(left=max(0.0, lowest - 5))
    axes.set_xlabel("accuracy on the last 1,000 test images, %")
    axes.legend(loc="lower left")
    figure.savefig(path, dpi=120)

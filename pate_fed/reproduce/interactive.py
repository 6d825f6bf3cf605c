"""Interactive-GNMax against Confident-GNMax at one budget (P18, arXiv 1802.08908, Algorithms 1 and 2).

Both ask about public inputs in one random order until a data-independent budget is used up, with the same
T, σ1 and σ2, so that a query and a label cost the same. Confident-GNMax answers wherever teachers agree. The
interactive study does so for half of the budget; then a student of these labels is the reference, and only
what the teachers contradict is answered. What they do not contradict, and the student is sure of, is its own
label, which costs nothing; students with and without those labels are shown. Fashion-MNIST takes totals of
250 heads on a public encoder (or `--totals`), MNIST the votes that the authors of PATE published. The quick
student takes 20 minutes for five seeds on two idle cores, co-teaching an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, load_dataset
from pate_fed.errors import InputError
from pate_fed.learning import StudentSettings
from pate_fed.privacy import (
    BudgetFilter,
    ConfidentGNMax,
    InteractiveGNMax,
    PrivacyEvent,
    Release,
    SeededNoise,
    epsilon_of,
    total_cost,
)
from pate_fed.reproduce.measures import accuracy_of, mean_and_sd, shown_sd
from pate_fed.reproduce.pictures import COLOURS, draw_panels
from pate_fed.reproduce.plan import Reproduction
from pate_fed.reproduce.rows import append_row, bind_rows, read_rows
from pate_fed.reproduce.votes import TRAINED, ensemble_totals, inputs_of, read_totals

__all__ = ["InteractiveRun", "reproduce_interactive"]

NAME = "interactive-gnmax"
DELTA, CONFIDENCE = 1e-5, 0.9
NOISE: dict[str, Any] = {"threshold": 200.0, "sigma1": 150.0, "sigma2": 40.0}
BUDGETS = {"fashion-mnist": (4.05, 3.6, 2.7), "mnist": (2.0, 1.75, 1.3)}
SHARE, BLOCK = 0.5, 20  # the first round's part of the budget; queries that are asked at once
STUDENTS = ("encoder-head", "co-teaching")
KINDS = ("confident", "interactive", "interactive, confirmed labels too")

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractiveRun:
    """One student; shares in [0, 1]. `confirmed` are the labels that cost nothing, where it had them."""

    dataset: str
    kind: str
    student: str
    budget: float
    seed: int
    epsilon: float
    asked: int
    answered: int
    confirmed: int
    labels_wrong: float
    accuracy: float


@dataclass(slots=True)
class _Labels:
    """What was released so far, in the order in which it was."""

    events: list[PrivacyEvent] = field(default_factory=list)
    index: list[Ints] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])
    label: list[Ints] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])
    confirmed_index: list[Ints] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])
    confirmed: list[Ints] = field(default_factory=lambda: [np.empty(0, dtype=np.int64)])

    @property
    def asked(self) -> int:
        return sum(event.asked for event in self.events)

    def keep(self, index: Ints, release: Release) -> None:
        self.events.append(release.event)
        sure = release.reinforced >= 0
        self.index.append(index[release.answered])
        self.label.append(release.label[release.answered])
        self.confirmed_index.append(index[sure])
        self.confirmed.append(release.reinforced[sure])


def reproduce_interactive(plan: Reproduction, say: Callable[[str], None]) -> list[str]:
    """Train what is missing, write interactive-gnmax.txt, .csv and .png, and give the text's lines.

    Raises:
        InputError: the images or the votes are not there, or the rows there were made from others.
    """
    path = plan.out_dir / f"{NAME}-runs.csv"
    loaded = {name: _load(plan, name, say) for name in BUDGETS}
    inputs: dict[str, str] = {}
    for name, (dataset, totals) in loaded.items():
        inputs |= inputs_of(plan, dataset, {f"{name} totals": totals}, name=name)
    bind_rows(path, inputs)
    runs = read_rows(path, InteractiveRun)
    done = {(run.dataset, run.kind, run.student, run.budget, run.seed) for run in runs}
    for name, student, budget, seed in _tasks(plan.seeds):
        wanted = [kind for kind in KINDS if (name, kind, student, budget, seed) not in done]
        if not wanted:
            continue
        for run in _study(plan, *loaded[name], name, student, budget, seed):
            if run.kind in wanted:
                runs.append(run)
                append_row(path, run)
                say(f"{name}, {student}, ε {budget:g}, seed {seed}, {run.kind}: {100 * run.accuracy:.1f} %")
    runs = [run for run in runs if run.seed < plan.seeds]
    lines = list(_lines(runs))
    (plan.out_dir / f"{NAME}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _draw(plan.out_dir / f"{NAME}.png", runs)
    return lines


def _tasks(seeds: int) -> Iterator[tuple[str, str, float, int]]:
    """The quick student for every budget; the slow one for the first two."""
    for student in STUDENTS:
        for seed in range(seeds):
            for name, budgets in BUDGETS.items():
                for budget in budgets if student == "encoder-head" else budgets[:2]:
                    yield name, student, budget, seed


def _load(plan: Reproduction, name: str, say: Callable[[str], None]) -> tuple[Dataset, Ints]:
    dataset = load_dataset(name, data_dir=plan.data_dir)
    if name == "mnist":
        path = None if plan.data_dir is None else plan.data_dir / "pate_votes" / "mnist_250_teachers.npy"
        if path is None:
            raise InputError("--data-dir: give the folder that holds pate_votes/mnist_250_teachers.npy")
        return dataset, read_totals(path, rows=TRAINED, classes=dataset.num_classes)
    kept = plan.totals or plan.out_dir / f"totals-{name}-250.npz"
    return dataset, ensemble_totals(dataset, path=kept, count=250, device=plan.device, say=say)


def _study(
    plan: Reproduction, dataset: Dataset, totals: Ints, name: str, student: str, budget: float, seed: int
) -> Iterator[InteractiveRun]:
    """All three kinds at one budget and one order of the inputs."""
    size: dict[str, Any] = {"num_teachers": int(totals[0].sum()), "num_classes": totals.shape[1]}
    order = np.random.default_rng(seed).permutation(len(totals)).astype(np.int64)
    filter_, confident = BudgetFilter(budget, DELTA), ConfidentGNMax(**size, **NOISE)
    against = InteractiveGNMax(**size, **NOISE, confidence=CONFIDENCE)

    def ask(labels: _Labels, noise: SeededNoise, until: float, said: NDArray[np.float32] | None) -> None:
        while filter_.share_spent(labels.events) < until:
            left = min(BLOCK, len(order) - labels.asked)
            some = filter_.affordable(confident, events=labels.events, queries=left)
            index = order[labels.asked : labels.asked + some]
            if not some:
                return
            if said is None:
                labels.keep(index, confident.release(totals[index], noise))
            else:
                labels.keep(index, against.release(totals[index], noise, predictions=said[index]))

    def finish(kind: str, labels: _Labels, *, more: bool) -> InteractiveRun:
        extra = labels.confirmed_index if more else []
        index = np.concatenate([*labels.index, *extra])
        label = np.concatenate([*labels.label, *(labels.confirmed if more else [])])
        said = _learn(plan, dataset, index, label, student, seed)
        truth = dataset.public_labels
        return InteractiveRun(
            dataset=name,
            kind=kind,
            student=student,
            budget=budget,
            seed=seed,
            epsilon=epsilon_of(total_cost(labels.events), DELTA),
            asked=labels.asked,
            answered=sum(event.answered for event in labels.events),
            confirmed=sum(len(part) for part in extra),
            labels_wrong=float(np.mean(label != truth[index])),
            accuracy=float(np.mean(said[TRAINED:].argmax(axis=1) == truth[TRAINED:])),
        )

    labels = _Labels()
    ask(labels, SeededNoise(seed), 1.0, None)
    yield finish(KINDS[0], labels, more=False)
    labels, noise = _Labels(), SeededNoise(seed)
    ask(labels, noise, SHARE, None)
    said = _learn(plan, dataset, np.concatenate(labels.index), np.concatenate(labels.label), student, seed)
    ask(labels, noise, 1.0, said)
    yield finish(KINDS[1], labels, more=False)
    yield finish(KINDS[2], labels, more=True)


def _learn(
    plan: Reproduction, dataset: Dataset, index: Ints, label: Ints, student: str, seed: int
) -> NDArray[np.float32]:
    """What a student of these labels says of all public images: (n, classes)."""
    from pate_fed.learning.students.data import LabelledPool
    from pate_fed.learning.students.train import train_student

    pool = LabelledPool(
        images=dataset.public_images[:TRAINED],
        labelled_index=index,
        labels=label,
        num_classes=dataset.num_classes,
    )
    settings = StudentSettings(name=student, test_every=100)
    made = train_student(pool, settings, seed=seed, device=plan.device)
    return made.predict_proba(dataset.public_images)


def _cells(runs: list[InteractiveRun]) -> Iterator[tuple[str, str, str, float, list[InteractiveRun]]]:
    for name, budgets in BUDGETS.items():
        for student in STUDENTS:
            for kind in KINDS:
                for budget in budgets:
                    key = (name, student, kind, budget)
                    some = [run for run in runs if (run.dataset, run.student, run.kind, run.budget) == key]
                    if some:
                        yield *key, some


def _lines(runs: list[InteractiveRun]) -> Iterator[str]:
    yield (
        f"{'data':<14} {'student':<13} {'kind':<34} {'budget':>6} {'ε':>5} {'asked':>6} {'labels':>6}"
        f" {'free':>5} {'wrong, %':>8} {'student, %':>10} {'± sd':>5} {'seeds':>5}"
    )
    for name, student, kind, budget, some in _cells(runs):
        mean, sd = accuracy_of(some)
        figures = (np.mean([getattr(run, key) for run in some]) for key in ("epsilon", "asked", "answered"))
        epsilon, asked, answered = figures
        confirmed = np.mean([run.confirmed for run in some])
        wrong = 100 * np.mean([run.labels_wrong for run in some])
        yield (
            f"{name:<14} {student:<13} {kind:<34} {budget:>6g} {epsilon:>5.2f} {asked:>6.0f} {answered:>6.0f}"
            f" {confirmed:>5.0f} {wrong:>8.1f} {mean:>10.1f} {shown_sd(sd):>5} {len(some):>5}"
        )
    yield from _verdicts(runs)
    yield (
        f"T {NOISE['threshold']:g}, σ1 {NOISE['sigma1']:g}, σ2 {NOISE['sigma2']:g} votes of 250, half of the "
        f"budget for the first round; ε is data-independent, at δ {DELTA:g}"
    )
    yield "not private: seeded noise, on public data"


def _verdicts(runs: list[InteractiveRun]) -> Iterator[str]:
    """Interactive at the smaller budgets against Confident at the first, seed by seed."""
    for name, budgets in BUDGETS.items():
        for student in STUDENTS:
            base = {
                run.seed: run
                for run in runs
                if (run.dataset, run.student, run.kind, run.budget) == (name, student, KINDS[0], budgets[0])
            }
            for kind in KINDS[1:]:
                for budget in budgets:
                    key = (name, student, kind, budget)
                    some = [run for run in runs if (run.dataset, run.student, run.kind, run.budget) == key]
                    pairs = [(run, base[run.seed]) for run in some if run.seed in base]
                    if pairs:
                        yield _verdict(kind, name, student, pairs)


def _verdict(kind: str, name: str, student: str, pairs: list[tuple[InteractiveRun, InteractiveRun]]) -> str:
    gain, sd = mean_and_sd([100 * (one.accuracy - other.accuracy) for one, other in pairs])
    ours, theirs = (np.mean([pair[each].epsilon for pair in pairs]) for each in (0, 1))
    saved = 100 * (1 - ours / theirs)
    error = sd / len(pairs) ** 0.5
    return (
        f"{name}, {student}: {kind}, ε {saved:.0f} % lower than Confident at {pairs[0][1].budget:g}: "
        f"student {gain:+.1f} ± {error:.1f} points (mean ± standard error of {len(pairs)} pairs)"
    )


def _draw(path: Path, runs: list[InteractiveRun]) -> None:
    titles = [(name, "data-independent ε spent, δ 1e-5", "student, %") for name in BUDGETS]

    def draw(axes) -> None:  # type: ignore[no-untyped-def]
        for each, name in zip(axes, BUDGETS, strict=True):
            for student, line in zip(STUDENTS, ("-", "--"), strict=False):
                for kind, colour in zip(KINDS, COLOURS, strict=False):
                    cells = [c for c in _cells(runs) if c[:3] == (name, student, kind)]
                    cells.sort(key=lambda cell: cell[3])
                    if not cells:
                        continue
                    means, sds = zip(*(accuracy_of(cell[4]) for cell in cells), strict=True)
                    spent = [float(np.mean([run.epsilon for run in cell[4]])) for cell in cells]
                    bars = {"yerr": np.nan_to_num(sds), "capsize": 2, "marker": "o", "markersize": 4}
                    each.errorbar(
                        spent, means, color=colour, linestyle=line, label=f"{kind}, {student}", **bars
                    )
        axes[0].legend(fontsize=7)

    draw_panels(path, titles, draw)

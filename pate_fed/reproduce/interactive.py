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
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate_fed import privacy
from pate_fed.data import Dataset
from pate_fed.format import delta_text
from pate_fed.learning import StudentSettings
from pate_fed.reproduce.columns import EPSILON, Column, cells_of, mean_and_sd, student_table, task_of
from pate_fed.reproduce.driver import Log, Reproduction, Table, run_tables
from pate_fed.reproduce.measures import StudentRow, train_and_test
from pate_fed.reproduce.votes import authors_totals, ensemble_size, ensemble_totals, inputs_of

if TYPE_CHECKING:
    from pate_fed.learning import Student

NAME = "interactive-gnmax"
DELTA, CONFIDENCE = 1e-5, 0.9
NOISE: dict[str, Any] = {"threshold": 200.0, "sigma1": 150.0, "sigma2": 40.0}
BUDGETS = {"fashion-mnist": (4.05, 3.6, 2.7), "mnist": (2.0, 1.75, 1.3)}
SHARE, BLOCK = 0.5, 20  # the first round's part of the budget; queries that are asked at once
STUDENTS = ("encoder-head", "co-teaching")
KINDS = ("confident", "interactive", "interactive, confirmed labels too")

Ints = NDArray[np.int64]
Data = dict[str, tuple[Dataset, Ints]]
Learn = Callable[..., tuple["Student", dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class InteractiveRun(StudentRow):
    """One student. `confirmed` are the labels that cost nothing, where it had them."""

    dataset: str
    kind: str
    student: str
    budget: float
    seed: int
    _: KW_ONLY
    epsilon: float
    asked: int
    answered: int
    confirmed: int


class _Released:
    """What was released so far at a budget, batch by batch, of inputs in one random order for each seed."""

    def __init__(self, totals: Ints, budget: float, seed: int) -> None:
        self.totals, self.noise = totals, privacy.SeededNoise(seed)
        self.batches: list[tuple[Ints, privacy.Release]] = []
        self._order = np.random.default_rng(seed).permutation(len(totals)).astype(np.int64)
        self._budget = privacy.BudgetFilter(budget, DELTA)

    @property
    def events(self) -> list[privacy.PrivacyEvent]:
        return [release.event for _, release in self.batches]

    @property
    def asked(self) -> int:
        return sum(event.asked for event in self.events)

    def ask(self, release: Callable[[Ints], privacy.Release], *, until: float) -> None:
        """Go on until a share of the budget is spent, all inputs were asked about, or none is affordable."""
        mechanism = privacy.ConfidentGNMax(
            **ensemble_size(self.totals), **NOISE
        )  # Interactive-GNMax costs the same
        while self._budget.share_spent(self.events) < until:
            left = min(BLOCK, len(self._order) - self.asked)
            some = self._budget.affordable(mechanism, events=self.events, queries=left)
            if not some:
                return
            index = self._order[self.asked : self.asked + some]
            self.batches.append((index, release(index)))

    def labels(self, *, confirmed: bool) -> tuple[Ints, Ints]:
        """Labelled inputs and their labels; then, if wanted, those of the student that were confirmed."""
        found = [(index[made.answered], made.label[made.answered]) for index, made in self.batches]
        if confirmed:
            sure = [(index, made.reinforced, made.reinforced >= 0) for index, made in self.batches]
            found += [(index[mask], label[mask]) for index, label, mask in sure]
        return np.concatenate([index for index, _ in found]), np.concatenate([label for _, label in found])


def reproduce_interactive(plan: Reproduction, log: Log) -> list[str]:
    """Train the students and write interactive-gnmax.txt."""
    data: Data = {}
    for name in BUDGETS:
        dataset = plan.load(name)
        published = name == "mnist"
        totals = authors_totals(plan, dataset) if published else ensemble_totals(plan, dataset, 250, log)
        data[name] = dataset, totals
    learn = partial(_learn, plan, data)
    release = lru_cache(maxsize=1)(partial(_release, learn, data))  # both interactive kinds share one
    table = Table(
        path=plan.out_dir / f"{NAME}-runs.csv",
        row=InteractiveRun,
        tasks=list(_tasks(plan.seeds)),
        make=partial(_train, learn, release),
        inputs=inputs_of(
            plan,
            [dataset for dataset, _ in data.values()],
            {f"{name} totals": totals for name, (_, totals) in data.items()},
        ),
        lines=_lines,
    )
    return run_tables(plan, [table], text=plan.out_dir / f"{NAME}.txt", log=log)


def _tasks(seeds: int) -> Iterator[tuple[str, str, str, float, int]]:
    """The quick student for every budget; the slow one for the first two."""
    for student, seed, name in product(STUDENTS, range(seeds), BUDGETS):
        for budget in BUDGETS[name] if student == "encoder-head" else BUDGETS[name][:2]:
            for kind in KINDS:
                yield name, kind, student, budget, seed


def _train(
    learn: Learn, release: Callable[..., _Released], task: tuple[str, str, str, float, int]
) -> InteractiveRun:
    name, kind, student, budget, seed = task
    released = release(name, student if kind != KINDS[0] else None, budget, seed)
    index, label = released.labels(confirmed=kind == KINDS[2])
    _, figures = learn(name, index, label, student, seed)
    answered = sum(event.answered for event in released.events)
    return InteractiveRun(
        *task,
        epsilon=privacy.epsilon_of(privacy.total_cost(released.events), DELTA),
        asked=released.asked,
        answered=answered,
        confirmed=len(index) - answered,
        **figures,
    )


def _learn(
    plan: Reproduction, data: Data, name: str, index: Ints, label: Ints, student: str, seed: int
) -> tuple[Student, dict[str, Any]]:
    return train_and_test(plan, data[name][0], index, label, StudentSettings(name=student), seed=seed)


def _release(learn: Learn, data: Data, name: str, student: str | None, budget: float, seed: int) -> _Released:
    """All from Confident-GNMax, or where there is a student the second half from Interactive-GNMax."""
    dataset, totals = data[name]
    size, released = ensemble_size(totals), _Released(totals, budget, seed)
    confident = privacy.ConfidentGNMax(**size, **NOISE)
    first = 1.0 if student is None else SHARE
    released.ask(lambda index: confident.release(totals[index], released.noise), until=first)
    if student is not None:
        reference, _ = learn(name, *released.labels(confirmed=False), student, seed)
        said = reference.predict_proba(dataset.public_images[: len(totals)])
        against = privacy.InteractiveGNMax(**size, **NOISE, confidence=CONFIDENCE)
        released.ask(
            lambda index: against.release(totals[index], released.noise, predictions=said[index]), until=1.0
        )
    return released


def _lines(rows: list[InteractiveRun]) -> Iterator[str]:
    columns = (
        Column("data", lambda cell: cell.task[0]),
        Column("student", lambda cell: cell.task[2]),
        Column("kind", lambda cell: cell.task[1]),
        Column("budget", lambda cell: cell.task[3], "g"),
        Column("ε", lambda cell: cell.mean("epsilon"), EPSILON),
        Column("asked", lambda cell: cell.mean("asked"), ".0f"),
        Column("labels", lambda cell: cell.mean("answered"), ".0f"),
        Column("free", lambda cell: cell.mean("confirmed"), ".0f"),
    )
    order = [
        (name, kind, student, budget)
        for name, student, kind in product(BUDGETS, STUDENTS, KINDS)
        for budget in BUDGETS[name]
    ]
    yield from student_table(columns, cells_of(rows, order), pairs=True)
    yield from _verdicts(rows)
    yield (
        f"T {NOISE['threshold']:g}, σ1 {NOISE['sigma1']:g}, σ2 {NOISE['sigma2']:g} votes of 250, half of the "
        f"budget for the first round; ε is data-independent, at δ {delta_text(DELTA)}"
    )
    yield "not private: seeded noise, on public data"


def _verdicts(rows: list[InteractiveRun]) -> Iterator[str]:
    """Interactive at every budget against Confident at the first, seed by seed."""
    found = {task_of(row): row for row in rows}
    for name, student, kind in product(BUDGETS, STUDENTS, KINDS[1:]):
        for budget in BUDGETS[name]:
            pairs = [
                (row, base)
                for row in rows
                if task_of(row)[:4] == (name, kind, student, budget)
                and (base := found.get((name, KINDS[0], student, BUDGETS[name][0], row.seed)))
            ]
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

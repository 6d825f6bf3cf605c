"""The methods, and the grid of tasks, methods, ε and seeds: each cell is a process and a file of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.bench import labels
from pate_fed.bench.ours import run_ours
from pate_fed.bench.protocol import (
    Ledger,
    Method,
    NotApplicableError,
    Task,
    check_ledger,
    check_predictions,
    measured,
)
from pate_fed.bench.tasks import TASKS, all_digits, load_task
from pate_fed.disk import read_json, write_result
from pate_fed.errors import InputError, PateFedError, naming_refusal
from pate_fed.reproduce.driver import commit_of_source, machine_text
from pate_fed.runtime.workers import end_with_the_call
from pate_fed.structure import to_plain
from pate_fed.structure.faults import telling
from pate_fed.structure.parts import load_part, part_identity, search_folder

KIND = "benchmark method"
PUBLISHED = "published"
"""In a task's place: a figure of a method that its authors published."""
DONE, NOT, FAILED = "done", "does not apply", "failed"
EPSILONS, SEEDS, LIMIT_S = (0.3, 1.0, 3.0), 5, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A figure of a method's authors on digits, and how it is made here: of a task, the truth and a seed."""

    text: str
    figure: float
    spread: float
    make: Callable[[Task, NDArray[Any], int], float]

    def agrees(self, found: float) -> bool:
        """Whether it is within two deviations."""
        return abs(found - self.figure) <= 2 * self.spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A method of ours; `seconds` of a cell on a quiet core: small tables, large ones, 60,000 images."""

    title: str
    run: Method
    seconds: tuple[float, float, float]
    private: bool = True
    published: Published | None = None
    ours: bool = False


def _gradients(name: str) -> Method:
    def run(task: Task, epsilon: float, seed: int) -> tuple[NDArray[Any], Ledger]:
        from pate_fed.bench import gradients

        found: tuple[NDArray[Any], Ledger] = getattr(gradients, name)(task, epsilon, seed)
        return found

    return run


def _opacus(task: Task, truth: NDArray[Any], seed: int) -> float:
    from pate_fed.bench.gradients import opacus_example

    return float((opacus_example(task, seed).argmax(axis=1) == truth).mean())


def _kept(task: Task, truth: NDArray[Any], seed: int) -> float:
    found = labels.randomised(task.labels, 1.0, task.num_classes, np.random.default_rng(seed))
    return float((found == task.labels).mean())


_OPACUS = Published(
    text="Opacus's example of MNIST at (1.19, 1e-5), 10 runs", figure=0.9463, spread=0.0034, make=_opacus
)
_KEPT = Published(
    text="right labels of RandRes at ε 1, 10 classes (Tang et al. 2022, Table 2)",
    figure=0.232,
    spread=0.002,
    make=_kept,
)
METHODS: dict[str, Built] = {
    "pate-fed": Built(title="this package, by default", run=run_ours, seconds=(4, 40, 90), ours=True),
    "dp-sgd": Built(
        title="DP-SGD, all records in one place",
        run=_gradients("run_dp_sgd"),
        seconds=(4, 15, 600),
        published=_OPACUS,
    ),
    "dp-fedavg": Built(
        title="DP-FedAvg, a record", run=_gradients("run_fedavg_records"), seconds=(4, 20, 700)
    ),
    "dp-fedavg-hospital": Built(
        title="DP-FedAvg, a whole hospital", run=_gradients("run_fedavg_hospitals"), seconds=(3, 10, 120)
    ),
    "fedkt": Built(title="FedKT, a record", run=labels.run_fedkt, seconds=(5, 10, 60)),
    "private-knn": Built(
        title="private kNN, all records in one place", run=labels.run_neighbours, seconds=(3, 30, 60)
    ),
    "randomised-labels": Built(
        title="randomised labels (the label alone is private)",
        run=labels.run_randomised,
        seconds=(1, 5, 30),
        published=_KEPT,
    ),
    "central": Built(
        title="all records, no privacy", run=labels.run_central, seconds=(1, 5, 30), private=False, ours=True
    ),
    "alone": Built(
        title="one hospital alone, no privacy",
        run=labels.run_alone,
        seconds=(1, 3, 10),
        private=False,
        ours=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One result; `epsilon` is 0 where there is no privacy, `value` None unless it is done.

    `claimed` is the method's ε, `recomputed` that of its ledger's rows. `source` is the digest of a task's
    arrays and of a foreign method's code.
    """

    task: str
    method: str
    epsilon: float
    seed: int
    _: KW_ONLY
    status: str
    reason: str = ""
    value: float | None = None
    claimed: float | None = None
    recomputed: float | None = None
    unit: str = ""
    seconds: float = 0.0
    source: str = ""
    commit: str | None = None
    machine: str = ""
    date: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is run, and where its results lie; a method of one's own is `module:attribute`, or an entry point.

    Raises:
        InputError: an unknown task, ε or seeds that are none, or a method's code is not there.
    """

    run_dir: Path
    data_dir: Path | None = None
    tasks: tuple[str, ...] = (PUBLISHED, *TASKS)
    methods: tuple[str, ...] = tuple(METHODS)
    epsilons: tuple[float, ...] = EPSILONS
    seeds: int = SEEDS
    limit_s: float = LIMIT_S
    download: bool = False

    def __post_init__(self) -> None:
        for name in self.tasks:
            if name not in TASKS and name != PUBLISHED:
                raise InputError(f"--task {name}: one of {', '.join((*TASKS, PUBLISHED))} is meant")
        if self.seeds < 1 or not self.epsilons or min(self.epsilons) <= 0 or self.limit_s <= 0:
            raise InputError("--seeds, --epsilon and --limit: numbers above 0 are meant")
        for name in self.methods:
            method_of(name)

    def cells(self) -> Iterator[tuple[str, str, float, int]]:
        """All cells, each method's published figure first, then small tasks before large ones."""
        for name in self.methods:
            built = METHODS.get(name)
            if PUBLISHED in self.tasks and built is not None and built.published is not None:
                yield PUBLISHED, name, 0.0, 0
        for task in self.tasks:
            for name in self.methods if task != PUBLISHED else ():
                known = METHODS.get(name)
                for epsilon in self.epsilons if known is None or known.private else (0.0,):
                    yield from ((task, name, epsilon, seed) for seed in range(self.seeds))

    def path(self, key: tuple[str, str, float, int]) -> Path:
        """The file of a cell."""
        task, method, epsilon, seed = key
        name = method.replace(":", "-").replace("/", "-")
        return self.run_dir / "cells" / f"{task}--{name}--{epsilon:g}--{seed}.json"

    def done(self) -> list[Cell]:
        """The cells of this grid that are there, in order; one of other data or code is as if it were not."""
        found = []
        for key in self.cells():
            if (path := self.path(key)).is_file():
                cell = read_json(Cell, path, what="a cell of the benchmark")
                found += [cell] if cell.source == _source(key) else []
        return found

    def seconds(self, left: Sequence[tuple[str, str, float, int]]) -> float:
        """About how long these cells take on a quiet core; those of a foreign method count as nothing."""
        large = {"adult": 1, "diabetes": 1, "days": 1, "digits-4": 2, "digits-250": 2, PUBLISHED: 2}
        large |= {"garments-4": 2, "garments-250": 2}
        return sum(METHODS[name].seconds[large.get(task, 0)] for task, name, *_ in left if name in METHODS)


def method_of(name: str) -> Method:
    """A method by its name; InputError where there is none."""
    if name in METHODS:
        return METHODS[name].run
    search_folder(Path.cwd())
    found: Method = load_part(name, KIND)
    if not callable(found):
        raise InputError(f"{KIND} {name!r}: a function run(task, epsilon, seed) is meant")
    return found


def _source(key: tuple[str, str, float, int]) -> str:
    task, method = key[:2]
    code = "" if method in METHODS else part_identity(method, KIND).digest[:12]
    return f"{TASKS[task][2] if task in TASKS else ''} {code}".strip()


def run_grid(grid: Grid, log: Callable[[str], None], *, here: bool = False) -> list[Cell]:
    """Run what is missing or failed, each cell in a process that is ended after `limit_s`, or `here`."""
    with naming_refusal(f"--run-dir {grid.run_dir}: cannot be made"):
        (grid.run_dir / "cells").mkdir(parents=True, exist_ok=True)
    kept = [cell for cell in grid.done() if cell.status != FAILED]
    there = {(cell.task, cell.method, cell.epsilon, cell.seed) for cell in kept}
    left = [key for key in grid.cells() if key not in there]
    log(f"{len(there)} cells are there, {len(left)} are left: about {grid.seconds(left) / 3600:.1f} hours")
    for number, key in enumerate(left, start=1):
        (_make if here else _apart)(grid, key)
        cell = read_json(Cell, grid.path(key), what="a cell of the benchmark")
        told = cell.reason if cell.value is None else f"{cell.value:.3f}"
        log(
            f"{number} of {len(left)}: {key[0]}, {key[1]}, ε {key[2]:g}, seed {key[3]}: {cell.status}, {told}"
        )
    return grid.done()


def _apart(grid: Grid, key: tuple[str, str, float, int]) -> None:
    child = get_context("spawn").Process(target=_in_child, args=(grid, key))
    grid.path(key).unlink(missing_ok=True)
    child.start()
    try:
        child.join(grid.limit_s)
    finally:
        late = child.is_alive()
        if late:
            child.kill()
            child.join()
    if not grid.path(key).is_file():
        why = f"took longer than {grid.limit_s:g} s" if late else f"its process ended with {child.exitcode}"
        _write(grid, key, Cell(*key, status=FAILED, reason=why))


def _in_child(grid: Grid, key: tuple[str, str, float, int]) -> None:
    Thread(target=end_with_the_call, daemon=True).start()
    _make(grid, key)


def _make(grid: Grid, key: tuple[str, str, float, int]) -> None:
    started = time.perf_counter()
    try:
        cell = _published(grid, key) if key[0] == PUBLISHED else _played(grid, key)
    except PateFedError as error:
        cell = partial(Cell, *key, status=FAILED, reason=str(error))
    _write(grid, key, cell(seconds=round(time.perf_counter() - started, 1)))


def _published(grid: Grid, key: tuple[str, str, float, int]) -> Callable[..., Cell]:
    published = METHODS[key[1]].published
    assert published is not None
    task, truth = all_digits(grid.data_dir, grid.download)
    with telling(f"{key[1]}: its published figure"):
        value = published.make(task, truth, key[3])
    low, high = published.figure - 2 * published.spread, published.figure + 2 * published.spread
    kept = f"{low:.4f} to {high:.4f} is meant: {published.text}"
    return partial(Cell, *key, status=DONE, value=value, reason=kept)


def _played(grid: Grid, key: tuple[str, str, float, int]) -> Callable[..., Cell]:
    name, method, epsilon, seed = key
    task, truth = load_task(name, grid.data_dir, download=grid.download)
    run, what = method_of(method), f"method {method} on {name}"
    with telling(f"{what}: fails"):
        try:
            given: Any = run(task, epsilon, seed)
        except NotApplicableError as reason:
            return partial(Cell, *key, status=NOT, reason=str(reason))
    if not isinstance(given, tuple) or len(given) != 2:
        raise InputError(f"{what}: gives a {type(given).__name__}; (predictions, ledger) is meant")
    predictions, ledger = given
    scores = check_predictions(task, predictions, what=what)
    recomputed = check_ledger(task, ledger, epsilon or float("inf"), what=what)
    value, claimed = measured(task, scores, truth), ledger.epsilon
    return partial(
        Cell, *key, status=DONE, value=value, claimed=claimed, recomputed=recomputed, unit=ledger.unit
    )


def _write(grid: Grid, key: tuple[str, str, float, int], cell: Cell) -> None:
    values = to_plain(cell) | {
        "source": _source(key),
        "commit": commit_of_source(),
        "machine": machine_text("cpu"),
        "date": datetime.now(UTC).date().isoformat(),
    }
    write_result(grid.path(key), (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode())

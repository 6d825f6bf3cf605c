"""The methods, and the grid of tasks, methods, ε and seeds: each cell is a row, made in its own process."""

from __future__ import annotations

import math
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from numpy.typing import NDArray

from pate_fed.bench import labels, protocol
from pate_fed.bench.ours import run_ours
from pate_fed.bench.tasks import TASKS, all_digits, load_task
from pate_fed.errors import InputError, PateFedError, naming_refusal
from pate_fed.format import counted, duration_text
from pate_fed.reproduce import driver
from pate_fed.reproduce.columns import task_of
from pate_fed.runtime.run_dir import simulated_disks
from pate_fed.runtime.workers import end_with_the_call
from pate_fed.structure.faults import telling
from pate_fed.structure.parts import load_part, part_identity, search_folder

KIND = "benchmark method"
PUBLISHED = "published"
"""In a task's place: a figure of a method that its authors published."""
DONE, NOT, FAILED = "done", "does not apply", "failed"
EPSILONS = (0.3, 1.0, 3.0)
_SIZES = {"rare": 1, "adult": 2, "diabetes": 2, "days": 2, PUBLISHED: 3}
_SIZES |= {name: 3 for name in TASKS if name.startswith(("digits", "garments"))}
_END_S = 10.0  # of a process whose cell is there
Key = tuple[str, str, float, int]


@dataclass(frozen=True, slots=True)
class Built:
    """A method of ours; `seconds` of a cell: small tables, 4,400 images, large tables, 60,000 images.

    They are of two cores that did other things, by docs/results/bench-quick.json where it has the cell.
    `published` is a figure of its authors: where it stands, itself, its deviation, and how it is made of all
    digits, their truth and a seed.
    """

    title: str
    run: protocol.Method
    seconds: tuple[float, float, float, float]
    _: KW_ONLY
    private: bool = True
    published: tuple[str, float, float, Callable[[protocol.Task, NDArray[Any], int], float]] | None = None


def _gradients(name: str) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        from pate_fed.bench import gradients

        return getattr(gradients, name)(*given)

    return run


_OPACUS = "Opacus's example of MNIST at (1.19, 1e-5), 10 runs"
_TABLE_2 = "right labels of RandRes at ε 1, 10 classes (Tang et al. 2022, Table 2)"
METHODS: dict[str, Built] = {
    "pate-fed": Built("this package, by default", run_ours, (55, 92, 102, 80)),
    "dp-sgd": Built(
        "DP-SGD, all records in one place",
        _gradients("run_dp_sgd"),
        (42, 230, 104, 1263),
        published=(_OPACUS, 0.9463, 0.0034, _gradients("opacus_example")),
    ),
    "dp-fedavg": Built("DP-FedAvg, a record", _gradients("run_fedavg_records"), (98, 177, 250, 1700)),
    "dp-fedavg-hospital": Built(
        "DP-FedAvg, a whole hospital", _gradients("run_fedavg_hospitals"), (87, 70, 150, 500)
    ),
    "fedkt": Built("FedKT, a record (untuned)", labels.run_fedkt, (53, 19, 60, 60)),
    "private-knn": Built("private kNN, all records in one place", labels.run_neighbours, (29, 14, 60, 40)),
    "randomised-labels": Built(
        "randomised labels (the label alone is private)",
        labels.run_randomised,
        (17, 12, 44, 30),
        published=(_TABLE_2, 0.232, 0.002, labels.right_responses),
    ),
    "central": Built("all records, no privacy", labels.run_central, (14, 13, 44, 30), private=False),
    "alone": Built("one hospital alone, no privacy", labels.run_alone, (17, 15, 30, 20), private=False),
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
    reason: str | None = None
    value: float | None = None
    claimed: float | None = None
    recomputed: float | None = None
    unit: str | None = None
    seconds: float | None = None
    source: str | None = None
    commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid(driver.Reproduction):
    """What is run; a method of one's own is `module:attribute`, or an entry point.

    Raises:
        InputError: an unknown task, ε or seeds that are none, or a method's code is not there.
    """

    tasks: tuple[str, ...] = (PUBLISHED, *TASKS)
    methods: tuple[str, ...] = tuple(METHODS)
    epsilons: tuple[float, ...] = EPSILONS
    limit_s: float = 3600.0
    download: bool = False
    name: str = "bench"

    def __post_init__(self) -> None:
        driver.Reproduction.__post_init__(self)
        for name in self.tasks:
            if name not in TASKS and name != PUBLISHED:
                raise InputError(f"--task {name}: one of {', '.join((*TASKS, PUBLISHED))} is meant")
        if not all(0 < each < math.inf for each in (*self.epsilons, self.limit_s)):
            raise InputError("--epsilon and --limit: numbers above 0 are meant")
        for name in self.methods:
            _method_of(name)

    @property
    def command(self) -> str:
        """The command that makes the same cells."""
        quick = (self.seeds, self.epsilons) == (1, (1.0,))
        words = ["--quick"] if quick else ["--seeds", str(self.seeds)]
        for flag, chosen, every in (
            ("--task", self.tasks, (PUBLISHED, *TASKS)),
            ("--method", self.methods, tuple(METHODS)),
            ("--epsilon", self.epsilons, (1.0,) if quick else EPSILONS),
        ):
            words += [f"{word}" for each in chosen for word in (flag, each)] if chosen != every else []
        return shlex.join(["pate-fed", "bench", *words, *(["--data-dir", "DIR"] if self.data_dir else [])])

    def cells(self) -> Iterator[Key]:
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

    def seconds(self, left: Iterable[Key]) -> float:
        """About how long these cells take; a method that is not of this package counts as DP-SGD."""
        slow = METHODS["dp-sgd"]
        return sum(METHODS.get(name, slow).seconds[_SIZES.get(task, 0)] for task, name, *_ in left)


def _method_of(name: str) -> protocol.Method:
    if name in METHODS:
        return METHODS[name].run
    search_folder(Path.cwd())
    found: protocol.Method = load_part(name, KIND)
    if not callable(found):
        raise InputError(f"{KIND} {name!r}: a function run(task, epsilon, seed) is meant")
    return found


def _source(task: str, method: str) -> str | None:
    code = "" if method in METHODS else part_identity(method, KIND).digest[:12]
    return f"{TASKS[task][2] if task in TASKS else ''} {code}".strip() or None


def run_grid(
    grid: Grid,
    log: driver.Log,
    *,
    lines: Callable[[list[Cell]], Iterable[str]] = lambda cells: (),
    show: Callable[[list[Cell]], None] = lambda cells: None,
) -> list[str]:
    """Make the cells that are missing, failed, or of other data or code; `lines` and `show` tell of them."""
    with naming_refusal(f"--run-dir {grid.out_dir}: cannot be made"):
        grid.out_dir.mkdir(parents=True, exist_ok=True)
    keys = list(grid.cells())
    table = driver.Table(
        path=grid.out_dir / "cells.csv",
        row=Cell,
        tasks=keys,
        make=partial(_make, grid),
        inputs={},
        lines=lines,
        holds=lambda cell: cell.status != FAILED and cell.source == _source(cell.task, cell.method),
        told=lambda cell: cell.reason or f"{cell.value:.3f}",
    )
    kept = driver.kept_rows(table)
    left = set(keys) - {task_of(cell) for cell in kept}
    log(f"{counted(len(kept), 'cell')} there, {len(left)} left: about {duration_text(grid.seconds(left))}")
    return driver.run_tables(grid, [table], text=grid.out_dir / "bench.txt", log=log, show=show)


def _make(grid: Grid, key: Key) -> Cell:
    """A cell, whatever its method does; what that leaves in temporary files is removed."""
    started = time.perf_counter()
    with simulated_disks() as folder:
        cell = _apart(grid, key, folder)
    return replace(
        cell,
        seconds=None if cell.value is None else round(time.perf_counter() - started, 1),
        source=_source(*key[:2]),
        commit=driver.commit_of_source(),
    )


def _apart(grid: Grid, key: Key, folder: Path) -> Cell:
    """A cell of a process that is ended after `limit_s`."""
    context = get_context("spawn")
    found, given = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(given, grid, key, folder))
    child.start()
    given.close()
    try:
        if found.poll(grid.limit_s):
            cell: Cell = found.recv()
            child.join(_END_S)
            return cell
        why = f"took longer than {grid.limit_s:g} s"
    except EOFError:
        child.join()
        why = f"its process ended with {child.exitcode}"
    finally:
        child.kill()
        child.join()
    return Cell(*key, status=FAILED, reason=f"method {key[1]} on {key[0]}: {why}")


def _in_child(found: Connection, grid: Grid, key: Key, folder: Path) -> None:
    Thread(target=end_with_the_call, daemon=True).start()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    found.send(play(grid, key))


def play(grid: Grid, key: Key) -> Cell:
    """A cell in this process; what is wrong with the method is said in it."""
    try:
        return _published(grid, key) if key[0] == PUBLISHED else _played(grid, key)
    except PateFedError as error:
        return Cell(*key, status=FAILED, reason=str(error))


def _published(grid: Grid, key: Key) -> Cell:
    published = METHODS[key[1]].published
    assert published is not None
    text, figure, spread, make = published
    task, truth = all_digits(grid.data_dir, grid.download)
    with telling(f"{key[1]}: its published figure"):
        value = make(task, truth, key[3])
    told = f"{value:.4f}, published {figure:.4f} ± {spread:.4f}: {text}"
    return Cell(*key, status=DONE, value=value, reason=told)


def _played(grid: Grid, key: Key) -> Cell:
    name, method, epsilon, seed = key
    task, truth = load_task(name, grid.data_dir, download=grid.download)
    run, what = _method_of(method), f"method {method} on {name}"
    with telling(f"{what}: fails"):
        try:
            given: Any = run(task, epsilon, seed)
        except protocol.NotApplicableError as reason:
            return Cell(*key, status=NOT, reason=str(reason))
    if not isinstance(given, tuple) or len(given) != 2:
        raise InputError(f"{what}: gives a {type(given).__name__}; (predictions, ledger) is meant")
    predictions, ledger = given
    scores = protocol.check_predictions(task, predictions, what=what)
    recomputed = protocol.check_ledger(task, ledger, epsilon or math.inf, what=what)
    return Cell(
        *key,
        status=DONE,
        value=protocol.measured(task, scores, truth),
        claimed=ledger.epsilon,
        recomputed=recomputed,
        unit=ledger.unit,
    )

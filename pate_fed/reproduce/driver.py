"""The driver of every reproduction: tasks become rows on disk, rows lines and pictures; votes are kept."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from pate_fed.data import Dataset, load_dataset
from pate_fed.disk import write_result
from pate_fed.errors import InputError
from pate_fed.format import VERSION
from pate_fed.reproduce.columns import append_row, bind_rows, read_rows, task_of
from pate_fed.runtime.workers import as_ready

_SEED = "seed"
_DIGITS = 6


def store_result(
    path: Path, *, command: str, device: str, rows: Iterable[Iterable[Any]], lines: Iterable[str]
) -> None:
    """Write the figures of tables' rows and the text's `lines`, with command, commit, machine and day.

    The commit is that of the rows where they have one, none where they have several.
    """
    found = [list(each) for each in rows]
    seeds = sorted({row.seed for each in found for row in each if _SEED in row.__match_args__})
    commits = {row.commit for each in found for row in each if hasattr(row, "commit")} or {commit_of_source()}
    result = {
        "command": command,
        "commit": commits.pop() if len(commits) == 1 else None,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine_text(device),
        "version": VERSION,
        "seeds": seeds,
        "figures": [figure for each in found for figure in figures_of(each)],
        "text": list(lines),
    }
    write_result(path, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())


def figures_of(rows: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """For each task but for its seed: what it is (`of`), its `n` rows, `mean` and `spread` of each measure.

    `spread` is the sample standard deviation, null of one row. What no row knows is left out. Rows
    that name their commit give it to their figure.
    """
    cells: dict[str, list[Any]] = {}
    for row in rows:
        cells.setdefault(json.dumps(_task(row)), []).append(row)
    for same in cells.values():
        measured = {
            name: _numbers(same, name) for name in asdict(same[0]) if name not in same[0].__match_args__
        }
        known = {name: values for name, values in measured.items() if values}
        commits = sorted({row.commit for row in same if getattr(row, "commit", None)})
        yield {
            **({"commit": ", ".join(commits)} if commits else {}),
            "of": _task(same[0]),
            "n": max(map(len, known.values()), default=len(same)),
            "mean": {name: _rounded(np.mean(values)) for name, values in known.items()},
            "spread": {
                name: _rounded(np.std(values, ddof=1)) if len(values) > 1 else None
                for name, values in known.items()
            },
        }


def _task(row: Any) -> Mapping[str, Any]:
    """What tells a row apart, by name, without what it does not have."""
    named = {name: getattr(row, name) for name in row.__match_args__ if name != _SEED}
    return {name: value for name, value in named.items() if value is not None}


def _numbers(rows: list[Any], name: str) -> list[float]:
    values = [getattr(row, name) for row in rows]
    return [value for value in values if isinstance(value, int | float) and np.isfinite(value)]


def _rounded(value: Any) -> float:
    return float(f"{float(value):.{_DIGITS}g}")


def machine_text(device: str) -> str:
    """The machine in words: its GPU's name where one is used, else its cores."""
    if device != "cpu":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    return f"{os.cpu_count()} cores, {platform.machine()}, no GPU"


def commit_of_source() -> str | None:
    """The commit of the source that runs, where it is a checkout of its own; "+" where files are changed."""
    here = Path(__file__).resolve()

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here.parent), *words], capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # not a repository around an installation
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


Row = TypeVar("Row")
Task = tuple[Any, ...]  # what tells rows apart, the seed last
Log = Callable[[str], None]
SHOWN_EVERY_S = 60.0  # a long call's results so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """How it is done: `paper` takes the paper's networks and epochs, else small ones and few.

    `tables` are those of PATE++ to fill: I, II, III, steps, encoder; None is all but the last. `totals` names
    a .npz or .npy with ready totals (9000, 10); `data_dir` None stands for the environment's PATE_FED_DATA.
    `workers` are the processes that train students side by side, where a reproduction has many alike. `name`
    is the reproduction's, for the command that its result names.

    Raises:
        InputError: no seeds or workers at all, or `totals` is no file.
    """

    data_dir: Path | None
    out_dir: Path
    paper: bool = False
    seeds: int = 5
    tables: tuple[str, ...] | None = None
    device: str = "cpu"
    totals: Path | None = None
    workers: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}: a whole number of at least 1 is meant")
        if self.workers < 1:
            raise InputError(f"--workers {self.workers}: a whole number of at least 1 is meant")
        if self.totals is not None and not self.totals.is_file():
            raise InputError(f"--totals {self.totals}: no such file; a .npz or .npy with totals is meant")

    def chosen(self) -> Iterator[str]:
        """Those options that not every command takes and that are not left as they are."""
        for entry in fields(self):
            if entry.name in ("paper", "seeds", "tables", "totals", "workers"):
                if getattr(self, entry.name) != entry.default:
                    yield f"--{entry.name}"

    @property
    def command(self) -> str:
        """The command that makes the same figures."""
        tables = () if self.tables is None else ("--tables", *self.tables)
        options = (
            *(("--paper",) if self.paper else ()),
            *(("--seeds", str(self.seeds)) if self.seeds != 5 else ()),
            *tables,
            *(("--totals", self.totals.name) if self.totals is not None else ()),
            *(("--data-dir", "DIR") if self.data_dir is not None else ()),
        )
        return shlex.join(("pate-fed", "reproduce", self.name, *options))

    def file(self, name: str, kind: str) -> Path:
        """A file of the output, apart for each scale."""
        return self.out_dir / f"{name}-{'paper' if self.paper else 'quick'}.{kind}"

    def load(self, name: str) -> Dataset:
        """The data set `name`."""
        return load_dataset(name, data_dir=self.data_dir)

    def published(self, name: str) -> Path:
        """A file that the authors of PATE published with their votes on MNIST."""
        path = None if self.data_dir is None else self.data_dir / "pate_votes" / name
        if path is None or not path.exists():
            raise InputError(f"--data-dir: {path or name} is not there; the authors' votes are meant")
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[Row]):
    """Rows of one kind: how they are made, where they are kept, and how they are shown.

    A row is a frozen dataclass: its positional fields are its task, what is measured is keyword-only. `make`
    gives the row of a task, and is pickled where there are workers. `inputs` are digests of what rows are
    made from, by name. `lines` shows the rows there are, in the order of `tasks`; also none. A kept row that
    does not hold is made again. `told` is what is said of a new one.
    """

    path: Path
    row: type[Row]
    tasks: Sequence[Task]
    make: Callable[[Any], Row]
    inputs: Mapping[str, str]
    lines: Callable[[list[Row]], Iterable[str]]
    holds: Callable[[Row], bool] = lambda row: True
    told: Callable[[Any], str] = lambda row: f"{100 * row.accuracy:.1f} %"


def run_tables(
    plan: Reproduction,
    tables: Sequence[Table[Any]],
    *,
    text: Path,
    log: Log,
    show: Callable[..., None] = lambda *rows: None,
) -> list[str]:
    """Make the rows that are missing, write the tables' lines to `text`, and return them.

    `show` gets each table's rows and writes pictures and summaries. Both are written about once a minute, so
    that a call of hours can be looked at; a call that was stopped goes on with the next row. The figures of
    all rows go to NAME.json beside `text`, too (`store_result`).
    """
    found: list[list[Any]] = []
    for table in tables:
        bind_rows(table.path, table.inputs)
        found.append(kept_rows(table))

    stored = text.with_name(f"{plan.name or text.stem}{'-paper' if plan.paper else ''}.json")

    def write() -> list[str]:
        lines = [line for table, rows in zip(tables, found, strict=True) for line in table.lines(rows)]
        text.write_text("\n".join(lines) + "\n", encoding="utf-8")
        store_result(stored, command=plan.command, device=plan.device, rows=found, lines=lines)
        show(*found)
        return lines

    written = time.monotonic()
    for place, table in enumerate(tables):
        for rows in _completed(table, found[place], plan.workers, log):
            found[place] = rows
            if time.monotonic() - written > SHOWN_EVERY_S:
                write()
                written = time.monotonic()
    return write()


def _completed(table: Table[Row], rows: list[Row], workers: int, log: Log) -> Iterator[list[Row]]:
    """The table's rows after each new one."""
    done = {task_of(row) for row in rows}
    todo = [task for task in table.tasks if task not in done]
    for number, row in enumerate(as_ready(table.make, todo, workers=workers), start=1):
        append_row(table.path, row)
        rows = _in_order(table, [*rows, row])
        log(f"{number} of {len(todo)}: {_named(row)}: {table.told(row)}")
        yield rows


def kept_rows(table: Table[Row]) -> list[Row]:
    """The rows of earlier calls that are asked for and hold."""
    return [row for row in _in_order(table, read_rows(table.path, table.row)) if table.holds(row)]


def _in_order(table: Table[Row], rows: Iterable[Row]) -> list[Row]:
    """The rows that are asked for, by task."""
    by_task = {task_of(row): row for row in rows}
    return [by_task[task] for task in table.tasks if task in by_task]


def _named(row: Any) -> str:
    """A row's task."""
    named = zip(row.__match_args__, task_of(row), strict=True)
    return ", ".join(v if isinstance(v, str) else f"{name} {v:g}" for name, v in named if v is not None)

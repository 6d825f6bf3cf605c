"""`pate-fed sweep`: a study with several values of its settings, run side by side and compared."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pate_fed.cli.parser import Parser, add_command, add_option, print_lines
from pate_fed.cli.run import print_comparison
from pate_fed.config.backend import INLINE, cores
from pate_fed.config.study import Study, load_study, study_from_dict
from pate_fed.disk import write_result
from pate_fed.errors import BudgetError, InputError, IntegrityError, PateFedError, PolicyError, QuorumError
from pate_fed.format import counted, delta_text, epsilon_text
from pate_fed.runtime.console import only_tell
from pate_fed.runtime.run_dir import LOG_NAME, read_status
from pate_fed.runtime.signals import INTERRUPTED, Interrupted

if TYPE_CHECKING:
    from pate_fed.report.comparison import RunToCompare
    from pate_fed.report.result import RunResult


# Runs of a sweep as processes side by side, as many at once as there are cores and memory for.


_MEMORY = 3 * 2**29  # bytes of a run; a default study takes half of that
CHILD = "pate_fed.cli.sweep_child"
_POLL_S = 0.1
_GRACE_S = 30.0  # until a run that was asked to stop has written what it spent
_ERRORS = (InputError, BudgetError, QuorumError, PolicyError, IntegrityError)


def most_at_once(studies: Sequence[Study]) -> int:
    """How many may run at once: one on a GPU or with Ray, which takes all cores, else one a core."""
    import psutil

    if any(study.engine.backend != INLINE for study in studies) or _on_gpu(studies):
        return 1
    return max(1, min(len(studies), cores(), psutil.virtual_memory().available // _MEMORY))


def _on_gpu(studies: Sequence[Study]) -> bool:
    devices = {study.engine.device for study in studies} - {"cpu"}
    if not devices or importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def run_side_by_side(
    jobs: Mapping[Path, Study],
    *,
    at_once: int,
    begin: Callable[[Path], None],
    end: Callable[[Path, PateFedError | None], None],
) -> None:
    """Run each study in its new folder, and tell when it begins and ended; an interruption ends them all."""
    waiting, running = list(jobs), dict[Path, subprocess.Popen[str]]()
    with tempfile.TemporaryDirectory(prefix="pate-fed-sweep-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    place = waiting.pop(0)
                    begin(place)
                    running[place] = _start(jobs[place], place, Path(folder))
                time.sleep(_POLL_S)
                for place in [place for place, process in running.items() if process.poll() is not None]:
                    end(place, _error(running.pop(place)))
        finally:
            _stop(list(running.values()))


def _start(study: Study, place: Path, folder: Path) -> subprocess.Popen[str]:
    """The run as a child; one core is its share, so its libraries take one thread."""
    config = folder / f"{place.name}.toml"
    config.write_text(study.to_toml(), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-m", CHILD, str(config), str(place), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C is for the sweep, which asks each run to stop once
    )


def _error(process: subprocess.Popen[str]) -> PateFedError | None:
    """What ended a run before its time; None where it came to its end."""
    _, told = process.communicate()
    if not process.returncode:
        return None
    if process.returncode == INTERRUPTED:
        raise Interrupted
    told = told.strip() or f"ended with code {process.returncode}"
    for kind in _ERRORS:
        if kind.exit_code == process.returncode:
            return kind(told.splitlines()[-1])
    return PateFedError(told)  # a fault of the program, with its traceback


def _stop(processes: Collection[subprocess.Popen[str]]) -> None:
    """Ask all to stop, so that each writes what it spent, and wait until they have."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


_DESCRIPTION = """\
Simulate a study once for each combination of the values that --set gives, each in a folder of its own, as
many at once as there are cores and memory for. An interrupted sweep goes on with the same command:
finished runs are not repeated. In the end compare.html shows the students' accuracy against ε."""

_EPILOG = """\
With --seeds the noise is seeded, so nothing is private: right for choosing settings on data that is public.
Without it every run spends its own ε on the same private records, and together they cost the sum.
Example: pate-fed sweep study.toml --set aggregation.sigma2=20,40,80 --seeds 5"""

_MOST_RUNS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """A resolved study of the sweep; `group` names its values, `folder` also its seed."""

    study: Study
    group: str
    folder: str


def add_sweep_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `sweep`."""
    sweep = add_command(
        commands, "sweep", "a study with several settings, compared", description=_DESCRIPTION, epilog=_EPILOG
    )
    sweep.add_argument("study", metavar="STUDY", help="a study.toml")
    values = "a key of study.toml and its values; several --set give every combination"
    add_option(sweep, "--set KEY=VALUE,…", values, action="append", required=True, dest="changes")
    add_option(sweep, "--seeds N", "repeat each combination with N seeds; the noise is then NOT private")
    add_option(sweep, "--run-dir DIR", "where the runs' folders go", default="runs/sweep")
    sweep.set_defaults(run=_sweep)


def _sweep(arguments: argparse.Namespace) -> int:
    only_tell()
    path, folder = Path(arguments.study), Path(arguments.run_dir)
    combinations = combine(load_study(path), arguments.changes, seeds=arguments.seeds, where=str(path))
    # Everything that would stop a run halfway is found before the first one.
    done = [_is_done(folder / each.folder, each.study) for each in combinations]
    print_lines(_announce(combinations, done), indent=2)
    errors = _run_all(combinations, done, folder)
    _compare(combinations, folder)
    return errors[0].exit_code if errors else 0


def _run_all(combinations: Sequence[Combination], done: Sequence[bool], folder: Path) -> list[PateFedError]:
    """Run those that are not done; a run that fails stops no other. What went wrong, as it went wrong."""
    heads, left, errors = dict[Path, str](), dict[Path, Study](), list[PateFedError]()
    for number, (each, finished) in enumerate(zip(combinations, done, strict=True), 1):
        place = folder / each.folder
        heads[place] = f"{number}/{len(combinations)} {each.folder}"
        if finished:
            print(f"{heads[place]}: finished before", flush=True)
        else:
            left[place] = each.study
    at_once = most_at_once([*left.values()])

    def begin(place: Path) -> None:
        _set_aside(place)
        print(f"{heads[place]}: runs", flush=True)

    def end(place: Path, error: PateFedError | None) -> None:
        if error is not None:
            errors.append(error)
            print(f"error: {place.name}: {error}", file=sys.stderr, flush=True)
        elif at_once > 1:
            print(f"{heads[place]}: done", flush=True)

    if at_once > 1:
        print(f"{at_once} run at once, each on one core", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        run_side_by_side(left, at_once=at_once, begin=begin, end=end)
        return errors
    for place, study in left.items():
        begin(place)
        end(place, _run(study, place))
    return errors


def combine(
    values: dict[str, Any], changes: Sequence[str], *, seeds: int | None, where: str
) -> list[Combination]:
    """Every combination of the changed settings, each checked and with all its values filled in."""
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds {seeds}: 1 or more is meant")
    axes = [_axis(change) for change in changes]
    keys = [key for key, _ in axes]
    if len(set(keys)) < len(keys):
        raise InputError(f"--set {keys[-1]}: a key is given twice; list its values after one --set")
    if seeds is not None and "study.seed" in keys:
        raise InputError("--seeds with --set study.seed=…: give one of the two")
    repeats: Sequence[int | None] = (None,) if seeds is None else range(seeds)
    options = [[(key, value) for value in chosen] for key, chosen in axes]
    count = len(repeats) * math.prod(map(len, options))
    if count > _MOST_RUNS:
        raise InputError(f"--set and --seeds give {count:,} runs; at most {_MOST_RUNS:,} are meant")
    found: list[Combination] = []
    for chosen in itertools.product(*options):
        for seed in repeats:
            changed = deepcopy(values)
            for key, value in chosen:
                _put(changed, key, value)
            if seed is not None:
                _put(changed, "study.seed", seed)
            group = _slug(chosen)
            study = study_from_dict(changed, where=where)
            study.require_private()
            study = study.resolve()
            name = group if seed is None else f"{group}-seed-{seed}"
            found.append(Combination(study=study, group=group, folder=name))
    if len({each.folder for each in found}) < len(found):
        raise InputError("--set: two values have the same name; give each value once")
    return found


def _axis(change: str) -> tuple[str, list[Any]]:
    key, equals, text = change.partition("=")
    key = key.strip()
    if not equals or not re.fullmatch(r"\w+(\.\w+)+", key) or not text.strip():
        raise InputError(
            f"--set {change}: KEY=VALUE,VALUE is meant, such as aggregation.sigma2=20,40,80; keys are "
            "those of study.toml"
        )
    return key, _read(text)


def _read(text: str) -> list[Any]:
    """The values: as TOML has them where each is such a value, else words."""
    try:
        found: list[Any] = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        found = [_read_one(part.strip()) for part in text.split(",")]
    return found


def _read_one(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for name in above:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise InputError(f"--set {key}: {name} is no section of study.toml")
        values = inner
    values[last] = value


def _slug(chosen: Sequence[tuple[str, Any]]) -> str:
    words = (f"{key.rpartition('.')[2]}-{value}" for key, value in chosen)
    return re.sub(r"[^\w.-]+", "-", "-".join(words)).strip("-.")


def _is_done(folder: Path, study: Study) -> bool:
    """Whether the very study has run to its end there."""
    held = folder / "study.toml"
    if not held.is_file():
        return False
    if held.read_text(encoding="utf-8") != study.to_toml():
        raise InputError(
            f"--run-dir {folder.parent}: {folder.name} there is of another study; give another DIR"
        )
    return read_status(folder) in ("success", "failed")


def _announce(combinations: Sequence[Combination], done: Sequence[bool]) -> list[str]:
    """How many runs there are, and what they do to privacy, before the first begins."""
    lines = [f"{counted(len(combinations), 'run')}, {sum(done)} of them finished before"]
    real = sum(each.study.seed is None for each in combinations)
    if real > 1:
        lines.append(
            f"warning: {real} runs are not seeded. Each spends its own ε on the same private records, and "
            "together they cost up to the sum of their ε, at the sum of their δ. A choice made by looking at "
            "several runs costs all of them. To choose settings without that, sweep on public data with "
            "--seeds."
        )
    if real < len(combinations):
        lines.append("warning: seeded noise can be repeated, so these runs protect nobody")
    return lines


def _run(study: Study, folder: Path) -> PateFedError | None:
    """Run one study here, with its bars; what ended it before its time."""
    from pate_fed.cli.simulate import simulate

    try:
        simulate(study, run_dir=folder, quiet=not sys.stderr.isatty())
    except PateFedError as error:
        return error
    return None


def _set_aside(folder: Path) -> None:
    """Keep what a run left that was cut off: its ledger says what it spent."""
    if not folder.exists():
        return
    places = (folder.with_name(f"{folder.name}.cut-off-{number}") for number in itertools.count(1))
    folder.rename(next(place for place in places if not place.exists()))


def _compare(combinations: Sequence[Combination], folder: Path) -> None:
    """Print all runs side by side, and write compare.html."""
    from pate_fed.report.comparison import Comparison, load_run, render_comparison

    runs = [
        load_run(folder / each.folder, name=each.folder, group=each.group)
        for each in combinations
        if (folder / each.folder / "log.jsonl").is_file()
    ]
    if not runs:
        return
    comparison = Comparison(runs=tuple(runs), more=_total(runs, folder))
    print()
    print_comparison(comparison)
    page = folder / "compare.html"
    write_result(page, render_comparison(comparison, title=folder.resolve().name).encode())
    print(f"wrote {page}")


def _total(runs: Sequence[RunToCompare], folder: Path) -> tuple[str, ...]:
    """What the runs that are not seeded cost together, also those that were cut off and kept aside."""
    results = [*(run.result for run in runs), *_set_aside_before(folder)]
    real = [result for result in results if result.study.noise_private]
    if len(real) < 2:
        return ()
    costs = [result.outcome.privacy.student for result in real]
    known = [cost for cost in costs if cost is not None]
    total = epsilon_text(_sum(known)) if len(known) == len(costs) else "unbounded"
    delta = delta_text(_sum([result.study.terms.delta for result in real]))
    claimed = " Some of it is claimed, not proven." if any(each.study.assumptions for each in real) else ""
    return (f"Together these {len(real)} runs cost at most ε = {total} at δ = {delta} (the sums).{claimed}",)


def _set_aside_before(folder: Path) -> Iterator[RunResult]:
    """Runs that were cut off, but for those that had not even begun."""
    from pate_fed.report.log import read_log, read_result
    from pate_fed.report.result import LabelStudyRecord, StudyRecord

    for log in sorted(folder.glob(f"*.cut-off-*/{LOG_NAME}")):
        if any(isinstance(event, StudyRecord | LabelStudyRecord) for _, event in read_log(log)):
            yield read_result(log.parent)


def _sum(costs: Sequence[float]) -> float:
    """The sum as a float that is not below it."""
    exact = sum(Decimal(repr(cost)) for cost in costs)
    total = float(exact)
    return total if Decimal(repr(total)) >= exact else math.nextafter(total, math.inf)

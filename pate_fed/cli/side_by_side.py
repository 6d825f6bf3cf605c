"""Runs of a sweep as processes side by side, as many at once as there are cores and memory for."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.errors import (
    BudgetError,
    InputError,
    IntegrityError,
    PateFedError,
    PolicyError,
    QuorumError,
)
from pate_fed.runtime.signals import INTERRUPTED, Interrupted

if TYPE_CHECKING:
    from pate_fed.config.study import Study

_MEMORY = 3 * 2**29  # bytes of a run; a default study takes half of that
CHILD = "pate_fed.cli.sweep_child"
_POLL_S = 0.1
_GRACE_S = 30.0  # until a run that was asked to stop has written what it spent
_ERRORS = (InputError, BudgetError, QuorumError, PolicyError, IntegrityError)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A study that is to run, and its new folder."""

    study: Study
    folder: Path


def most_at_once(studies: Sequence[Study]) -> int:
    """How many may run at once: one on a GPU or with Ray, which takes all cores, else one a core."""
    import psutil

    from pate_fed.config.backend import INLINE, cores

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
    jobs: Sequence[Job],
    *,
    at_once: int,
    begin: Callable[[Job], None],
    end: Callable[[Job, PateFedError | None], None],
) -> None:
    """Run all, and tell of each when it begins and when it ended; whoever interrupts this ends them all.

    Raises:
        Interrupted: a run was interrupted on its own.
    """
    waiting, running = list(jobs), dict[Job, subprocess.Popen[str]]()
    with tempfile.TemporaryDirectory(prefix="pate-fed-sweep-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    job = waiting.pop(0)
                    begin(job)
                    running[job] = _start(job, Path(folder))
                time.sleep(_POLL_S)
                for job in [job for job, process in running.items() if process.poll() is not None]:
                    end(job, _error(running.pop(job)))
        finally:
            _stop(list(running.values()))


def _start(job: Job, folder: Path) -> subprocess.Popen[str]:
    """The run as a child; one core is its share, so its libraries take one thread."""
    study = folder / f"{job.folder.name}.toml"
    study.write_text(job.study.to_toml(), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-m", CHILD, str(study), str(job.folder), str(os.getpid())],
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

"""What the commands that run a study share: the run directory, stopping on a signal, an empty outcome."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pate_fed.config.study import Study, read_study
from pate_fed.errors import InputError, PateFedError

__all__ = [
    "INTERRUPTED",
    "Interrupted",
    "check_writable",
    "fresh_run_dir",
    "interruptible",
    "nothing_spent",
    "raise_if",
    "simulated_disks",
    "terminating",
    "unfinished_run",
]

INTERRUPTED = 130
_PATIENCE_S = 2.0
_FOLDER = "pate-fed-"


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end.

    A class of its own: CPython ends a process as if SIGINT had killed it when a plain KeyboardInterrupt came
    out of code that was compiled on the way, as dataclasses are, even where it was caught afterwards.
    """


@contextmanager
def interruptible(stop: threading.Event, *, kept: str = "the ledger keeps what was spent") -> Iterator[None]:
    """Ctrl-C or a termination signal asks the coordinator to stop; a later one ends at once.

    `kept` tells the user what becomes of what was done.

    Raises:
        Interrupted: `stop` was set before.
    """
    asked_at = math.inf

    def handle(number: int, _: object) -> None:
        nonlocal asked_at
        if stop.is_set():
            # One Ctrl-C may arrive twice, from the terminal and from a wrapper such as `timeout`.
            if time.monotonic() > asked_at + _PATIENCE_S:
                os._exit(INTERRUPTED)
            return
        asked_at = time.monotonic()
        stop.set()
        print(f"\nstopping: {kept} (again to end at once)", file=sys.stderr)

    with _handled_by(handle):
        if asked_at == math.inf:
            raise_if(stop)
        yield


@contextmanager
def terminating(asked: threading.Event) -> Iterator[None]:
    """Ctrl-C or a termination signal interrupts what is done here, so that children are ended in either case.

    Libraries may swallow that exception, as a bare `except` in a module that is being imported does, or make
    another of it, as pydantic does. So `asked` is set as well, for who waits (`raise_if`), and whatever ends
    the work after that is the interruption.

    Raises:
        Interrupted: on a signal.
    """

    def handle(number: int, _: object) -> None:
        asked.set()
        raise Interrupted

    with _handled_by(handle):
        try:
            yield
        except PateFedError:
            raise
        except Exception as error:
            if asked.is_set():
                raise Interrupted from error
            raise


def raise_if(asked: threading.Event) -> None:
    """Interrupt where that was asked for.

    Raises:
        Interrupted: `asked` is set.
    """
    if asked.is_set():
        raise Interrupted


@contextmanager
def _handled_by(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def fresh_run_dir(given: str | None, study: Study) -> Path:
    """The run directory, checked but not yet made.

    Raises:
        InputError: it holds a run already, is not a directory, or cannot be written.
    """
    path = Path(given) if given else _free_path(study.name)
    if path.exists() and not path.is_dir():
        raise InputError(f"--run-dir {path}: a file of that name exists; give a directory")
    held = [name for name in ("ledger.sqlite", "metrics.json", "study.toml") if (path / name).exists()]
    if held:
        raise InputError(f"--run-dir {path}: already holds a run ({held[0]}); give another directory")
    check_writable(path, option="--run-dir")
    return path


def check_writable(path: Path, *, option: str) -> None:
    """Make sure that a directory can be written, or made where it is not there yet; nothing is made.

    Raises:
        InputError: it cannot.
    """
    existing = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path}: {existing} cannot be written; give another directory")


def unfinished_run(path: Path, study: Study) -> bool:
    """Whether the directory holds this very study, begun and not brought to its end.

    Raises:
        InputError: it holds another study, or one that is finished.
    """
    if not (path / "study.toml").exists():
        return False
    if read_study(path / "study.toml") != study:
        raise InputError(f"--run-dir {path}: holds a run of another study; give another directory")
    metrics = path / "metrics.json"
    if metrics.exists() and json.loads(metrics.read_text(encoding="utf-8")).get("status") == "success":
        raise InputError(f"--run-dir {path}: holds a run that is finished; give another directory")
    return True


@contextmanager
def simulated_disks() -> Iterator[Path]:
    """A folder for the simulated parties' own disks: readable by this user alone, gone after the run.

    A killed run cannot take its folder away, so the next one does: a lock tells which are still in use.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*/lock"):
        _remove_unused(left)
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    try:
        with open(folder / "lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unused(path: Path) -> None:
    try:
        with open(path, "r+", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
    except OSError:  # in use, somebody else's, or gone this moment
        return


def _free_path(name: str) -> Path:
    """runs/NAME-TIME, or the first free one after it: two runs may start in one second."""
    safe = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "study"
    path = Path("runs") / f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], others) if not each.exists())


def nothing_spent(status: str, reason: str, *, as_json: bool, begun: bool = False) -> str:
    """The outcome line of a command that ended before anything was asked; its JSON has every run's keys.

    With `begun` its run directory holds a ledger already, which says what was spent.
    """
    if as_json:
        values = {
            "status": status,
            "reason": reason,
            "epsilon": None if begun else 0.0,
            "delta": None,
            "unit": None,
            "labels": None if begun else 0,
            "accuracy": None,
            "report": None,
        }
        return json.dumps(values, ensure_ascii=False)
    none = "-" if begun else "0"
    return f"{status.upper()}  ε={none} δ=- unit=- labels={none} accuracy=- report=-"

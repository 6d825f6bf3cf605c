"""The run directory of a study, and the simulated parties' own disks."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pate_fed.config.study import Study, read_study
from pate_fed.errors import InputError

__all__ = ["check_writable", "fresh_run_dir", "simulated_disks", "unfinished_run"]

_FOLDER = "pate-fed-"


def fresh_run_dir(given: str | None, name: str) -> Path:
    """The run directory, checked but not yet made; runs/NAME-TIME where none is given.

    Raises:
        InputError: it holds a run already, is not a directory, or cannot be written.
    """
    path = Path(given) if given else _free_path(name)
    if path.exists() and not path.is_dir():
        raise InputError(f"--run-dir {path}: a file of that name exists; give a directory")
    held = [name for name in ("ledger.sqlite", "metrics.json", "study.toml") if (path / name).exists()]
    if held:
        raise InputError(f"--run-dir {path}: already holds a run ({held[0]}); give another directory")
    check_writable(path, option="--run-dir")
    return path


def check_writable(path: Path, *, option: str) -> Path:
    """Make sure that a directory can be written, or made where it is not there yet; nothing is made.

    Returns the directory itself or, where it is not there, the one in which it would be made.

    Raises:
        InputError: it cannot.
    """
    existing = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path}: {existing} cannot be written; give another directory")
    return existing


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

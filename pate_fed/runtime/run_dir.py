"""The run directory of a study, the simulated parties' own disks, and where a user's state lies."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pate_fed.disk import read_json, write_private
from pate_fed.errors import InputError


def state_home() -> Path:
    """`$XDG_STATE_HOME/pate_fed`, absolute; without the variable `~/.local/state/pate_fed`.

    A relative value of the variable counts as none (XDG Base Directory Specification, section 2): state that
    moves with the current folder would be forgotten.

    Raises:
        InputError: nothing says where it is.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():
        return named / "pate_fed"
    try:
        return Path.home() / ".local" / "state" / "pate_fed"
    except RuntimeError as error:  # a user without an entry in the system's list, as in some containers
        raise InputError(
            "this user has no home folder for its account and state: set XDG_STATE_HOME to a folder that "
            "stays"
        ) from error


_FOLDER = "pate-fed-"
_STUDY = "study.toml"
_METRICS = "metrics.json"
LEDGER_NAME = "ledger.sqlite"
LOG_NAME = "log.jsonl"
PRIVATE = "private"  # the folder in a run directory of what another coordinator process goes on from
ALL_ASKED = "all-asked"  # the note in it that hospitals are asked nothing more


def fresh_run_dir(given: str | None, name: str) -> Path:
    """The run directory, checked but not yet made; runs/NAME-TIME where none is given.

    Raises:
        InputError: it holds a run already, is not a directory, or cannot be written.
    """
    path = Path(given) if given else _free_path(name)
    if path.exists() and not path.is_dir():
        raise InputError(f"--run-dir {path}: a file of that name exists; give a directory")
    held = [name for name in ("ledger.sqlite", _METRICS, _STUDY) if (path / name).exists()]
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


def choose_run_dir(given: str | None, name: str, same: Callable[[Path], bool]) -> tuple[Path, bool]:
    """The run directory, and whether it is gone on with: it holds the very study, begun and cut off.

    `same` tells of a study.toml whether it is the study's; where none is there, it is `fresh_run_dir`'s.

    Raises:
        InputError: it holds another study or one that is finished, is not a directory, or cannot be written.
    """
    path = Path(given or "")
    if given is None or not (path / _STUDY).exists():
        return fresh_run_dir(given, name), False
    if not same(path / _STUDY):
        raise InputError(f"--run-dir {path}: holds a run of another study; give another directory")
    if read_status(path) == "success":
        raise InputError(
            f"--run-dir {path}: holds a run that is finished, with its report {path / 'report.html'}; give "
            "another directory for another study"
        )
    return path, True


def may_learn(path: Path) -> bool:
    """Whether a run directory says that all that its study asks is released, and a student not learnt yet."""
    return (path / PRIVATE / ALL_ASKED).exists()


def claim_run_dir(path: Path, study: str) -> None:
    """Make the directory and claim it by its study.toml; of two runs one can, the other has an InputError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole = path / f".{_STUDY}.{os.getpid()}"
        try:
            write_private(whole, study.encode())
            os.link(whole, path / _STUDY)  # whole, or it has claimed nothing
        finally:
            whole.unlink(missing_ok=True)
    except FileExistsError as error:
        raise InputError(f"--run-dir {path}: another run has it; give another directory") from error
    except OSError as error:
        raise InputError(f"--run-dir {path}: cannot be written ({error.strerror})") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What of a run's metrics decides whether it is gone on with."""

    status: str


def read_status(run_dir: Path) -> str | None:
    """The status that an earlier process wrote to metrics.json; None where there is no such file.

    Raises:
        InputError: the file cannot be read, or holds no metrics.
    """
    path = run_dir / _METRICS
    if not path.exists():
        return None
    what = "the metrics of a run: remove it, and the run goes on from its ledger"
    return read_json(_Told, path, what=what, aside=True).status


@contextmanager
def simulated_disks(parent: Path | None = None) -> Iterator[Path]:
    """A folder for the simulated parties' own disks: readable by this user alone, gone after the run.

    It is made in `parent`; None: where the system has temporary files. A killed run cannot take its folder
    away, so the next one does: a lock tells which are still in use.
    """
    _remove_all_unused(parent or Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=parent))
    try:
        with open(folder / "new", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(folder / "new", folder / "lock")  # where it is not held, others take it for left over
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def disk_on_node(name: str) -> Iterator[Path]:
    """The folder of that name for parties' disks on a node of a cluster, shared by all its processes.

    As `simulated_disks` it is this user's alone; the last process that leaves takes it away.

    Raises:
        InputError: another user's folder or a link has this name.
    """
    parent = Path(tempfile.gettempdir())
    folder = parent / f"{_FOLDER}{name}"
    if not folder.exists():
        _remove_all_unused(parent)
    with ExitStack() as held:
        while True:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise InputError(f"{folder}: is there already, and not this user's alone")
            with suppress(FileNotFoundError):
                lock = open(folder / "lock", "a+", encoding="ascii")
                held.enter_context(lock)
                fcntl.flock(lock, fcntl.LOCK_SH)
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(folder / "lock")):
                    break  # else another run took it for left over in between
        yield folder
    _remove_unused(folder / "lock")


def _remove_all_unused(parent: Path) -> None:
    for left in parent.glob(f"{_FOLDER}*/lock"):
        _remove_unused(left)


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

"""`flower-simulation`: a whole study on this machine, on Flower's simulation engine or in one process."""

from __future__ import annotations

import argparse
import fcntl
import importlib
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pate_fed import __version__
from pate_fed.arguments import Parser, add_study_options, study_from_arguments
from pate_fed.errors import InputError, PateFedError
from pate_fed.study import Study

__all__ = ["main"]

_DESCRIPTION = """\
Simulate a PATE federation on this machine: parties train teachers on disjoint private data and vote on public
inputs, a coordinator adds noise and keeps the privacy ledger, a student learns from what is released."""

_EPILOG = """\
Every option is also a key of study.toml (--config). A run leaves study.toml, ledger.sqlite, labels.npz,
student.pt, report.html, log.jsonl and metrics.json in --run-dir. Exit codes: 0 success, 1 fault, 2 wrong
input, 3 budget, 4 quorum, 5 refused by policy, 6 failed check, 130 interrupted."""

INTERRUPTED = 130
_PATIENCE_S = 2.0
_FOLDER = "pate-fed-"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit code."""
    started = time.perf_counter()
    as_json = False
    try:
        arguments = _parser().parse_all(argv)
        as_json = arguments.format == "json"
        return _simulate(study_from_arguments(arguments), arguments, started)
    except PateFedError as error:
        print(f"error: {error}", file=sys.stderr)
        print(_nothing_spent("failed", as_json=as_json))
        return error.exit_code
    except KeyboardInterrupt:  # before the study began; then `_interruptible` hears it
        print(_nothing_spent("aborted", as_json=as_json))
        return INTERRUPTED


def _simulate(study: Study, arguments: argparse.Namespace, started: float) -> int:
    from pate_fed.flower import prepare_environment

    prepare_environment()
    run_dir = _run_dir(arguments.run_dir, study)
    stop = threading.Event()
    if study.seed is not None:
        print("warning: with --seed the noise can be repeated, so it protects nobody", file=sys.stderr)
    # The coordinator is named, as Flower names apps: pate_fed imports neither party.
    coordinator = importlib.import_module("server.app").Coordinator(
        study, run_dir=run_dir, quiet=arguments.quiet, stop=stop, started=started
    )
    with _interruptible(stop):
        with _private_folder() as folder:
            _write_site(study, folder)
            coordinator.run(lambda server_app: _run_apps(server_app, study, folder))
        return int(coordinator.conclude(as_json=arguments.format == "json"))


def _run_apps(server_app: Any, study: Study, folder: Path) -> float:
    """Run the study; the seconds in which parties worked, per process that plays them."""
    client_app = importlib.import_module("clients.app").app
    nodes = study.parties.num_clients
    if study.engine.backend == "inline":
        from pate_fed.flower.inline import run_inline

        run_inline(server_app, client_app, num_nodes=nodes)
        return _seconds_worked(folder)
    from pate_fed.flower.engine import cores, run_on_ray

    run_on_ray(
        server_app,
        client_app,
        num_nodes=nodes,
        device=study.engine.device,
        gpus_per_client=study.engine.gpus_per_client,
    )
    return _seconds_worked(folder) / min(cores(), nodes)


def _seconds_worked(folder: Path) -> float:
    """From the simulated parties' own logs, which a real hospital never shows."""
    logs = (path.read_text(encoding="utf-8").splitlines() for path in folder.glob("party-*/log.jsonl"))
    # A killed party may leave half a line.
    events = (json.loads(line) for lines in logs for line in lines if line.endswith("}"))
    return float(sum(event["seconds"] for event in events if event["event"] == "handled"))


@contextmanager
def _private_folder() -> Iterator[Path]:
    """The simulated parties' own disks: readable by this user alone, gone after the run.

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


def _write_site(study: Study, folder: Path) -> None:
    (folder / "study.toml").write_text(study.to_toml(), encoding="utf-8")
    site = {"study": str(folder / "study.toml"), "state_dir": str(folder)}
    (folder / "site.json").write_text(json.dumps(site), encoding="utf-8")
    os.environ["PATE_FED_SITE"] = str(folder / "site.json")


@contextmanager
def _interruptible(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C or a termination signal asks the coordinator to stop; a later one ends at once."""
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
        print("\nstopping: the ledger keeps what was spent (again to end at once)", file=sys.stderr)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _run_dir(given: str | None, study: Study) -> Path:
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
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"--run-dir {path}: {existing} cannot be written; give another directory")
    return path


def _free_path(name: str) -> Path:
    """runs/NAME-TIME, or the first free one after it: two runs may start in one second."""
    safe = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "study"
    path = Path("runs") / f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], others) if not each.exists())


def _nothing_spent(status: str, *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"status": status, "epsilon": 0.0, "labels": 0, "report": None})
    return f"{status.upper()}  ε=0 δ=- unit=- labels=0 accuracy=- report=-"


def _parser() -> Parser:
    parser = Parser(
        prog="flower-simulation",
        usage="flower-simulation [--num-clients N] [OPTION ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_study_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--run-dir", metavar="DIR", help="where the run's files go (default runs/NAME-TIME)")
    output.add_argument(
        "--format", choices=("text", "json"), default="text", help="of the outcome line (default text)"
    )
    output.add_argument("--quiet", action="store_true", help="no progress, only warnings and the outcome")
    parser.add_argument("--version", action="version", version=f"pate_fed {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""`pate-fed demo hospitals DIR`: four hospitals with real records, and the commands that run their study.

The records are scikit-learn's breast cancer data (Wolberg, Street and Mangasarian, 1995; shipped with it):
569 masses, 30 measures each, 212 of them malignant. A third of them play the public pool.
"""

from __future__ import annotations

import argparse
import csv
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.cli.parser import Parser, add_command, add_option
from pate_fed.disk import write_result
from pate_fed.errors import InputError, PateFedError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "HOSPITALS",
    "Demo",
    "add_demo_command",
    "make_demo",
    "make_identities",
    "run_demo",
    "unfinished_demo",
]

HOSPITALS = ("north", "east", "south", "west")
_POOL = 189  # a third; of these all but a tenth may be asked about
_CLASSES = ("malignant", "benign")  # as the data count them

_STUDY = """\
# Four hospitals, {teachers} teachers each; scikit-learn's breast cancer data.
[study]
name = "breast-cancer"

[parties]
num_clients = 4
teachers_per_client = {teachers}
quorum = 0.75

[data]
dataset = "table"
pool = "pool.csv"

[data.table]
label = "diagnosis"
classes = ["malignant", "benign"]
patient = "patient"
[data.table.columns]
{columns}

[teacher]
name = "random-forest"
trees = {trees}

[aggregation]
aggregator = "gnmax"
sigma2 = 20.5

[queries]
labels = 170

[privacy]
epsilon = 3.0
delta = 1e-3

[student]
name = "forest"
"""

_POLICY = """\
# Nobody's records are at risk here: the demonstration's coordinator may see each hospital's votes.
plain_votes = true
"""


def add_demo_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `demo`."""
    demo = add_command(commands, "demo", "a study with real records and real processes, ready to run")
    names = demo.add_subparsers(title="demonstrations", required=True, metavar="NAME")
    hospitals = add_command(names, "hospitals", "four hospitals, breast cancer data, five commands")
    hospitals.add_argument("folder", metavar="DIR", help="where the files go; made when missing")
    add_option(hospitals, "--run", "run the five commands too", dest="execute")
    hospitals.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    found = unfinished_demo(Path(arguments.folder)) if arguments.execute else None
    made = found or make_demo(Path(arguments.folder))
    done = f"found in {made.folder}" if found else f"wrote to {made.folder}"
    print(f"{done}: four hospitals' records, a public pool and study.toml; five terminals there:")
    for line in made.lines():
        print(f"  {line}")
    return run_demo(made) if arguments.execute else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A demonstration's folder, and its commands, one a terminal; each is a list of arguments."""

    folder: Path
    server: tuple[str, ...]
    hospitals: tuple[tuple[str, ...], ...]

    def lines(self) -> list[str]:
        """The commands, to be typed in the folder."""
        return [shlex.join(("python", *command)) for command in (self.server, *self.hospitals)]


def make_demo(folder: Path, *, teachers: int = 20, trees: int = 100) -> Demo:
    """Write four hospitals' CSV files, the public pool, the study, and everyone's identity.

    Raises:
        InputError: the folder cannot be written or holds a demonstration already.
    """
    if (folder / "study.toml").exists():
        raise InputError(f"{folder}: holds a study already; give another folder")
    names, rows, labels = _records()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, part in zip(("pool", *HOSPITALS), _parts(len(rows)), strict=True):
            _write(folder / f"{name}.csv", names, rows[part], labels[part], part)
        columns = "\n".join(f'"{name}" = "number"' for name in names)
        text = _STUDY.format(columns=columns, teachers=teachers, trees=trees)
        (folder / "study.toml").write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror})") from error
    make_identities(folder)
    return _demo_in(folder)


def unfinished_demo(folder: Path) -> Demo | None:
    """A demonstration that was written to the folder and has not been run, if there is one."""
    needed = (
        "study.toml",
        "authority/study.json",
        *(f"identity-{name}/admission.json" for name in HOSPITALS),
    )
    ready = all((folder / name).is_file() for name in needed) and not (folder / "run").exists()
    return _demo_in(folder) if ready else None


def _demo_in(folder: Path) -> Demo:
    server = ("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority")
    client = ("-m", "pate_fed.client")
    return Demo(
        folder=folder,
        server=(*server, "--run-dir", "run"),
        hospitals=tuple(
            (*client, "--hospital", name, "--data", f"{name}.csv", "--tls-dir", f"identity-{name}")
            for name in HOSPITALS
        ),
    )


def make_identities(folder: Path) -> None:
    """Make and admit everyone's keys, as `study init`, `hospital request`, `study admit` and `accept` do."""
    from pate_fed.cli.terms import make_terms_of
    from pate_fed.flower.processes import free_port
    from pate_fed.identity import Authority, HospitalIdentity, make_request

    address = f"127.0.0.1:{free_port()}"
    terms = make_terms_of(folder / "study.toml")
    authority = Authority.init(folder / "authority", address=address, terms=terms, days=90)
    for name in HOSPITALS:
        own = folder / f"identity-{name}"
        admission = authority.admit(make_request(own, name), days=90)
        admission.write(own / f"{name}.admission")
        HospitalIdentity.accept(own, own / f"{name}.admission", expected=authority.fingerprint)
        write_result(own / "policy.toml", _POLICY.encode())


def run_demo(demo: Demo) -> int:
    """Run the five commands side by side and show the coordinator's output; its exit code.

    Raises:
        PateFedError: a hospital did not end as the coordinator did.
    """
    started = time.monotonic()
    hospitals = [
        _start(demo, command, f"{name}.log") for name, command in zip(HOSPITALS, demo.hospitals, strict=True)
    ]
    server = subprocess.Popen([sys.executable, *demo.server], cwd=demo.folder)
    try:
        code = server.wait()
        ended = [hospital.wait(timeout=60) for hospital in hospitals]
    except subprocess.TimeoutExpired as error:
        raise PateFedError(f"a hospital did not end; see its log in {demo.folder}") from error
    finally:
        _stop([server, *hospitals])
    print(
        f"{time.monotonic() - started:.0f} s from nothing; the run is in {demo.folder / 'run'}, the "
        f"hospitals' output in {demo.folder}/*.log"
    )
    if any(own != code for own in ended):
        raise PateFedError(f"the hospitals ended with {ended}, the coordinator with {code}")
    return code


def _start(demo: Demo, command: Sequence[str], log: str) -> subprocess.Popen[bytes]:
    # What invented hospitals agree to is no matter of this user's own accounts.
    own = {**os.environ, "XDG_STATE_HOME": str(demo.folder.absolute() / "state")}
    with open(demo.folder / log, "wb") as file:
        return subprocess.Popen(
            [sys.executable, *command], cwd=demo.folder, env=own, stdout=file, stderr=file
        )


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        process.wait()


def _records() -> tuple[list[str], np.ndarray, np.ndarray]:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    return [str(name) for name in data.feature_names], data.data, data.target


def _parts(count: int) -> list[np.ndarray]:
    """The pool's rows and each hospital's, the same on every machine."""
    import numpy as np

    order = np.argsort(np.random.Philox(key=1995).random_raw(count), kind="stable")
    return [order[:_POOL], *np.array_split(order[_POOL:], len(HOSPITALS))]


def _write(path: Path, names: list[str], rows: np.ndarray, labels: np.ndarray, numbers: np.ndarray) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", *names, "diagnosis"])
        for number, row, label in zip(numbers, rows, labels, strict=True):
            writer.writerow([f"P{number:03d}", *(f"{value:.6g}" for value in row), _CLASSES[label]])

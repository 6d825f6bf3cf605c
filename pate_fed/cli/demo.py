"""`pate-fed demo hospitals DIR`: four hospitals that see other patients each, and their study's commands.

What each hospital would get alone stands at the end beside what they get together, on the same patients of
all ages. The records are drawn, of nobody.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.cli.demo_heart import CLINICS, compared_lines, write_clinics
from pate_fed.cli.parser import Parser, add_command, add_option
from pate_fed.disk import write_result
from pate_fed.errors import InputError, PateFedError, naming_refusal
from pate_fed.flower.transport import require_transport
from pate_fed.format import accuracy_text, delta_text, epsilon_text
from pate_fed.runtime.addresses import free_port
from pate_fed.runtime.console import only_tell
from pate_fed.runtime.signals import INTERRUPTED

COLUMNS = ("age", "heart_rate", "breaths", "systolic", "temperature", "oxygen")
CLASSES = ("stable", "critical")
_CRITICAL = 0.45


@dataclass(frozen=True, slots=True)
class DemoHospital:
    """A hospital, whom it treats, and from what age to what age."""

    name: str
    treats: str
    ages: tuple[float, float]


SITES = (
    DemoHospital("north", "children", (0, 10)),
    DemoHospital("east", "the young", (10, 40)),
    DemoHospital("south", "adults", (40, 65)),
    DemoHospital("west", "the old", (65, 95)),
)


@dataclass(frozen=True, slots=True, eq=False)
class Patients:
    """Vital signs, float64 (n, 6), and classes, int64 (n,), both in the order of the constants here."""

    signs: NDArray[np.float64]
    classes: NDArray[np.int64]


def draw_patients(rng: np.random.Generator, count: int, ages: tuple[float, float]) -> Patients:
    """So many invented patients of these ages, rounded as a chart has them.

    What is usual at an age follows the form of reference charts, not their figures: a heart that beats 120
    times a minute is a healthy child's and a sick adult's. Who falls ill shows it in all signs.
    """
    age = rng.uniform(*ages, count)
    classes = (rng.random(count) < _CRITICAL).astype(np.int64)
    ill = classes * rng.gamma(4.0, 0.5, count)
    heart, breaths, pressure, warmth, oxygen = rng.normal(size=(5, count))
    child, old = np.exp(-age / 6), np.maximum(age - 40, 0)
    signs = (
        age,
        (76 + 62 * child) * (1 + 0.09 * heart + 0.13 * ill),
        (15 + 24 * child) * (1 + 0.10 * breaths + 0.16 * ill),
        (118 - 44 * child + 0.35 * np.maximum(age - 45, 0)) * (1 + 0.08 * pressure - 0.09 * ill),
        37.0 - 0.008 * np.maximum(age - 55, 0) + 0.35 * warmth + 0.35 * ill,
        np.minimum(100, 98 - 0.06 * old + oxygen - 1.4 * ill),
    )
    return Patients(np.round(np.stack(signs, axis=1), 1), classes)


HOSPITALS = tuple(site.name for site in SITES)
_RECORDS, _POOL = 1000, 1200  # at each hospital, and public in all
_LABEL, _PATIENT = "state", "patient"

_STUDY = """\
# Four hospitals, each with patients of other ages; the signs of an emergency are not the same at all ages.
# So few hospitals cannot vote: as no aggregator is named here, class sums are taken.
[study]
name = "emergency"

[parties]
num_clients = 4

[data]
dataset = "table"
pool = "pool.csv"

[data.table]
label = "{label}"
classes = {classes}
patient = "{patient}"
[data.table.columns]
{columns}

[privacy]
epsilon = 1.0
delta = 1e-5
"""


def add_demo_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `demo`."""
    demo = add_command(commands, "demo", "a study with made-up records and real processes, ready to run")
    names = demo.add_subparsers(title="demonstrations", required=True, metavar="NAME")
    hospitals = add_command(names, "hospitals", "four hospitals, patients of other ages each, five commands")
    hospitals.add_argument("folder", metavar="DIR", help="where the files go; made when missing")
    real = "four clinics' published records of heart disease in place of made-up ones, in this folder: "
    add_option(hospitals, "--real FILES", real + ", ".join(CLINICS.values()))
    add_option(hospitals, "--run", "run the five commands too", dest="execute")
    hospitals.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    require_transport("the demonstration with real processes")
    if arguments.execute:
        only_tell()
    real = None if arguments.real is None else Path(arguments.real)
    names = HOSPITALS if real is None else tuple(CLINICS)
    found = unfinished_demo(Path(arguments.folder), names) if arguments.execute else None
    made = found or make_demo(Path(arguments.folder), real)
    done = f"found in {made.folder}" if found else f"wrote to {made.folder}"
    if real is None:
        print(f"{done}: four hospitals' invented records, a public pool and study.toml")
        for site in SITES:
            low, high = site.ages
            print(f"  {site.name:<6} treats {site.treats}, {low:g} to {high:g} years")
    else:
        print(f"{done}: four clinics' published records, a fifth of them held out, and study.toml")
    print("five terminals there:")
    for line in made.lines():
        print(f"  {line}")
    return run_demo(made) if arguments.execute else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A demonstration's folder, and its commands, one a terminal; each is a list of arguments.

    `hospitals` are by their names.
    """

    folder: Path
    server: tuple[str, ...]
    hospitals: Mapping[str, tuple[str, ...]]

    def lines(self) -> list[str]:
        """The commands, to be typed in the folder."""
        return [shlex.join(("python", *command)) for command in (self.server, *self.hospitals.values())]


def make_demo(folder: Path, real: Path | None = None) -> Demo:
    """Write four hospitals' CSV files, the study, and everyone's identity; made-up records have a pool, too.

    Raises:
        InputError: the folder cannot be written or holds a demonstration already; or `real` does not hold
            the published files.
    """
    if (folder / "study.toml").exists():
        raise InputError(f"{folder}: holds a study already; give another folder")
    with naming_refusal(f"{folder}: cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        if real is None:
            _write_drawn(folder)
    if real is not None:
        write_clinics(real, folder)
    names = HOSPITALS if real is None else tuple(CLINICS)
    make_identities(folder, names)
    return demo_in(folder, names)


def _write_drawn(folder: Path) -> None:
    for name, patients in drawn_patients(seed=0).items():
        _write(folder / f"{name}.csv", patients)
    columns = "\n".join(f'{name} = "number"' for name in COLUMNS)
    text = _STUDY.format(label=_LABEL, patient=_PATIENT, classes=json.dumps(list(CLASSES)), columns=columns)
    (folder / "study.toml").write_text(text, encoding="utf-8")


def unfinished_demo(folder: Path, names: Sequence[str]) -> Demo | None:
    """A demonstration of these hospitals in the folder that has not been run, if there is one."""
    needed = ("study.toml", "authority/study.json", *(f"identity-{name}/admission.json" for name in names))
    ready = all((folder / name).is_file() for name in needed) and not (folder / "run").exists()
    return demo_in(folder, names) if ready else None


def demo_in(folder: Path, names: Sequence[str] = HOSPITALS) -> Demo:
    """The commands of a demonstration of these hospitals that was written to the folder."""
    server = ("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority")
    client = ("-m", "pate_fed.client")
    return Demo(
        folder=folder,
        server=(*server, "--run-dir", "run"),
        hospitals={
            name: (*client, "--hospital", name, "--data", f"{name}.csv", "--tls-dir", f"identity-{name}")
            for name in names
        },
    )


def make_identities(folder: Path, names: Sequence[str] = HOSPITALS, *, policy: str = "") -> None:
    """Make and admit everyone's keys, as `study init`, `hospital request`, `study admit` and `accept` do.

    Every hospital gets the same `policy`, and has confirmed the others.
    """
    from clients.policy import POLICY_FILE
    from pate_fed.cli.consent import allow_counts, confirm_in
    from pate_fed.cli.terms import make_terms_of
    from pate_fed.identity import Authority, HospitalIdentity, make_request

    address = f"127.0.0.1:{free_port()}"
    terms = make_terms_of(folder / "study.toml")
    authority = Authority.init(folder / "authority", address=address, terms=terms, days=90)
    requests = [make_request(folder / f"identity-{name}", name) for name in names]
    for admission in authority.admit_all(requests, days=90):
        own = folder / f"identity-{admission.hospital}"
        path = own / f"{admission.hospital}.admission"
        admission.write(path)
        HospitalIdentity.offered(own, path, expected=authority.words).take()
        write_result(own / POLICY_FILE, policy.encode())
        confirm_in(own / POLICY_FILE, admission.hospitals)
        allow_counts(own / POLICY_FILE, admission.study_terms)


def run_demo(demo: Demo) -> int:
    """Run the five commands side by side and show the coordinator's output; all must end with its code."""
    started = time.monotonic()
    hospitals = [_start(demo, command, f"{name}.log") for name, command in demo.hospitals.items()]
    server = subprocess.Popen([sys.executable, *demo.server], cwd=demo.folder)
    try:
        code = server.wait()
        if code == INTERRUPTED:  # the hospitals wait for it, and nobody starts it again here
            return code
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
    if code == 0:
        compared = comparison_lines if "north" in demo.hospitals else compared_lines
        for line in compared(demo.folder):
            print(line)
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


def drawn_patients(*, seed: int) -> dict[str, Patients]:
    """Each hospital's patients, and as "pool" public ones of all ages in a random order."""
    rng = np.random.default_rng(seed)
    drawn = {site.name: draw_patients(rng, _RECORDS, site.ages) for site in SITES}
    public = [draw_patients(rng, _POOL // len(SITES), site.ages) for site in SITES]
    order = rng.permutation(_POOL)
    signs = np.concatenate([each.signs for each in public])[order]
    return {**drawn, "pool": Patients(signs, np.concatenate([each.classes for each in public])[order])}


def _write(path: Path, patients: Patients) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([_PATIENT, *COLUMNS, _LABEL])
        for number, (signs, label) in enumerate(zip(patients.signs, patients.classes, strict=True)):
            writer.writerow([f"{path.stem}-{number:04d}", *(f"{value:g}" for value in signs), CLASSES[label]])


def _read(path: Path) -> Patients:
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    signs = np.array([[float(row[name]) for name in COLUMNS] for row in rows])
    return Patients(signs, np.array([CLASSES.index(row[_LABEL]) for row in rows], dtype=np.int64))


def comparison_lines(folder: Path) -> list[str]:
    """What each hospital gets alone beside what they got together, on the pool's patients, one line each."""
    metrics = json.loads((folder / "run" / "metrics.json").read_text(encoding="utf-8"))
    accuracy, privacy = metrics["accuracy"], metrics["privacy"]
    pool = _read(folder / "pool.csv")
    epsilon = epsilon_text(privacy["student"]["data_independent"])
    lines = ["", f"{'':<27}{'its own patients':<34}patients of all ages"]
    for site in SITES:
        found = alone(_read(folder / f"{site.name}.csv"), pool)
        low, high = site.ages
        home = (pool.signs[:, 0] >= low) & (pool.signs[:, 0] < high)
        here, everywhere = (
            accuracy_text(float((found[rows] == pool.classes[rows]).mean()), int(rows.sum()))
            for rows in (home, home | True)
        )
        lines.append(f"{site.name + ' alone, ' + site.treats:<27}{here:<34}{everywhere}")
    together = accuracy_text(accuracy["student"], accuracy["student_n"])
    lines += [
        f"{'together, ε=' + epsilon:<61}{together}",
        "alone: the better of a random forest and logistic regression on a hospital's own records",
        f"together: ε holds against everyone, the coordinator too, at δ={delta_text(privacy['delta'])}, for "
        f"one {privacy['unit']}",
    ]
    return lines


def alone(own: Patients, others: Patients) -> NDArray[np.int64]:
    """Classes of the others by a hospital's own model: of two usual ones the better one on the others."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    models = (
        RandomForestClassifier(100, random_state=0),
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    )
    found = [model.fit(own.signs, own.classes).predict(others.signs) for model in models]
    return max(found, key=lambda each: float((each == others.classes).mean()))

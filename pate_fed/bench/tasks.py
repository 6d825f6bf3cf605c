"""The benchmark's tasks, each with fixed parts, pool and test: seeds are of methods, never of data.

Digits are MNIST, garments Fashion-MNIST: all 60,000 training images are dealt out evenly at random, the first
9,000 test images are the pool, the last 1,000 test. Adult: adult.data at four hospitals, half of adult.test
is the pool, half tests. Diabetes130: each patient's first stay, 4,000 the pool, 8,000 test. Breast cancer:
420 records at four hospitals, the 149 others are the pool and test. A rare class: 4,400 garments 0 and 6,
12 % of them 6. Shifted hospitals: 910 drawn patients of four unlike clinics. Canaries: random labels that a
private method must not know; the measure is a lower bound on its ε.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.bench.protocol import AUC, BALANCED, LEAK, R2, Task, digest_of
from pate_fed.data import Schema, load_dataset
from pate_fed.data.infer import infer_schema
from pate_fed.data.schema import TARGET_STEPS
from pate_fed.data.table import read_table
from pate_fed.errors import InputError, IntegrityError
from pate_fed.reproduce.census import read_adult, read_diabetes

HOSPITALS = 4
CODES, _SIZES = (2, 4, 3, 3, 4), (300, 290, 200, 120)
"""How many values each code of the drawn clinics has."""
_SICK = (0.46, 0.36, 0.75, 0.8)  # share of the sick by hospital
_AGE = (0.0, -0.7, 0.7, 0.4)  # how much older its patients are, in deviations
_MISSING = (0.0, 0.15, 0.3, 0.3)  # share of the cells but the first that it lacks
_SHIFT = np.array([0.45, 0.3, 0.2, -0.9, 0.9, 0.5, 0.3, 0.8])  # of the sick, in deviations, by number
_SHIFTS = (0.6, 1.0, 0.3, 0.7, 1.1)  # the same as `_SHIFT`, of the codes
_WRONG = 0.1  # of the labels
ADULT = (
    "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,"
    "capital-gain,capital-loss,hours,country,income"
).split(",")
LEFT_OUT = {
    *("fnlwgt", "encounter_id", "weight", "payer_code", "diag_1", "diag_2", "diag_3", "medical_specialty")
}
"""Columns of Adult and Diabetes130 with too many values, too few of them, or none that tells anything."""
_POOL, _RARE, _CANARIES = 9_000, 0.12, 400
_Made = tuple[Task, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Patients:
    """Rows float64 (910, 13) with NaN for what is missing, labels and hospitals int64 (910,)."""

    rows: NDArray[np.float64]
    labels: NDArray[np.int64]
    owners: NDArray[np.int64]


def four_hospitals(seed: int) -> Patients:
    """Eight numbers and five codes, each of which tells a little of who is sick: unlike at each clinic."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for size, share, age, missing in zip(_SIZES, _SICK, _AGE, _MISSING, strict=True):
        sick = rng.random(size) < share
        numbers = rng.normal(0, 1, (size, 8)) + _SHIFT * (sick[:, None] - 0.5)
        numbers[:, 0] += age
        latent = rng.normal(0, 1, (size, 5)) + np.array(_SHIFTS) * (sick[:, None] - 0.5)
        many = np.array(CODES)
        codes = np.clip(np.floor((latent + 2) / 4 * many), 0, many - 1)
        found = np.hstack([numbers, codes])
        gone = rng.random(found.shape) < missing
        gone[:, 0] = False
        rows.append(np.where(gone, np.nan, found))
        labels.append(sick ^ (rng.random(size) < _WRONG))
    owners = np.repeat(np.arange(4), _SIZES)
    return Patients(np.concatenate(rows), np.concatenate(labels).astype(np.int64), owners)


def first_stays(path: Path) -> tuple[list[str], list[list[str]]]:
    """Diabetes130's columns but the patient's number, and each patient's first stay, of the original zip."""
    names, *rows = read_diabetes(path)
    number, stay = names.index("patient_nbr"), names.index("encounter_id")
    first: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: int(row[stay])):
        first.setdefault(row[number], row)
    return names[:number] + names[number + 1 :], [row[:number] + row[number + 1 :] for row in first.values()]


def read_cells(
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    label: str,
    target_range: tuple[float, float] | None = None,
    without: frozenset[str] = frozenset(),
) -> tuple[NDArray[Any], NDArray[Any], Schema]:
    """Inputs, labels and schema of a table's cells, by the product's own reader; numbers in their range."""
    kept = [place for place, name in enumerate(names) if name not in LEFT_OUT | without]
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "rows.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[row[place] for place in kept] for row in [names, *cells]])
        schema = infer_schema([path], label=label, target_range=target_range).schema
        found = read_table(path, schema, labelled=True)
    labels: NDArray[Any] = found.labels
    if target_range is not None:
        labels = target_range[0] + labels / TARGET_STEPS * (target_range[1] - target_range[0])
    return found.inputs, labels, schema


def _cut(inputs: NDArray[Any], labels: NDArray[Any], cuts: Sequence[Any], **rules: Any) -> _Made:
    """The parts by places: private, pool, test; records are dealt out evenly where rules name no owners."""
    own, pool, test = cuts
    count = len(labels[own])
    rules.setdefault("owners", np.random.default_rng(0).permutation(count) % HOSPITALS)
    task = Task(inputs=inputs[own], labels=labels[own], pool=inputs[pool], test=inputs[test], **rules)
    return task, labels[test]


def _whole(of: str, data: Path | None, download: bool) -> tuple[NDArray[Any], NDArray[np.int64], int]:
    """Images and labels, training ones first, and how many these are."""
    whole = load_dataset(of, data_dir=data, download=download)
    inputs = np.concatenate([whole.private_images, whole.public_images])
    return inputs, np.concatenate([whole.private_labels, whole.public_labels]), len(whole.private_labels)


def _images(
    of: str, parties: int, data: Path | None, download: bool, *, asked: int = _POOL, **rules: Any
) -> _Made:
    inputs, labels, own = _whole(of, data, download)
    owners = np.random.default_rng(0).permutation(own) % parties
    cuts = slice(own), slice(own, own + _POOL), slice(own + asked, None)
    return _cut(inputs, labels, cuts, owners=owners, num_classes=10, **rules)


def all_digits(data: Path | None, download: bool) -> _Made:
    """Digits with all 10,000 test images tested, as others publish figures of them."""
    return _images("mnist", HOSPITALS, data, download, asked=0, name="published", title="published figures")


def _rare(data: Path | None, download: bool, **rules: Any) -> _Made:
    (inputs, labels, train), rng = _whole("fashion-mnist", data, download), np.random.default_rng(0)
    usual, rare = (rng.permutation(np.flatnonzero(labels[:train] == each)) for each in (0, 6))
    own = rng.permutation(np.concatenate([usual[: round(4400 * (1 - _RARE))], rare[: round(4400 * _RARE)]]))
    public = train + np.flatnonzero(np.isin(labels[train:], (0, 6)))
    cuts = own, public[:1000], public[1000:]
    return _cut(inputs, (labels == 6).astype(np.int64), cuts, measure=BALANCED, **rules)


def _adult(data: Path | None, download: bool, **rules: Any) -> _Made:
    cells, train = read_adult(data)
    cells = [[*row[:-1], row[-1].rstrip(".")] for row in cells]
    without = frozenset({"education"})  # its number says the same
    inputs, labels, schema = read_cells(ADULT, cells, label="income", without=without)
    half = (train + len(labels)) // 2
    return _cut(inputs, labels, (slice(train), slice(train, half), slice(half, None)), schema=schema, **rules)


def _diabetes(data: Path | None, download: bool, *, days: bool, **rules: Any) -> _Made:
    if data is None:
        raise InputError("--data-dir: the folder that holds diabetes130/dataset_diabetes.zip is meant")
    names, cells = first_stays(data / "diabetes130" / "dataset_diabetes.zip")
    back = names.index("readmitted")
    cells = [[*row[:back], "no" if row[back] == "NO" else "yes", *row[back + 1 :]] for row in cells]
    if days:
        ends, without = (1.0, 14.0), frozenset({"readmitted"})
        taught: dict[str, Any] = {"label": "time_in_hospital", "target_range": ends, "without": without}
        rules |= {"measure": R2, "num_classes": 0, "target_range": ends}
    else:
        taught, rules["measure"] = {"label": "readmitted"}, AUC
    inputs, labels, schema = read_cells(names, cells, **taught)
    order = np.random.default_rng(0).permutation(len(labels))
    return _cut(inputs, labels, (order[12_000:], order[:4_000], order[4_000:12_000]), schema=schema, **rules)


def _breast_cancer(data: Path | None, download: bool, **rules: Any) -> _Made:
    from sklearn.datasets import load_breast_cancer

    rows, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    public = order[420:]
    return _cut(rows, labels.astype(np.int64), (order[:420], public, public), delta=1e-4, **rules)


def _shifted(data: Path | None, download: bool, **rules: Any) -> _Made:
    drawn = four_hospitals(0)
    codes = [drawn.rows[:, at, None] == np.arange(count) for at, count in enumerate(CODES, 8)]
    order = np.random.default_rng(0).permutation(len(drawn.labels))
    own, public = order[len(order) // 4 :], order[: len(order) // 4]
    columns: list[tuple[str, tuple[str, ...]]] = [(f"number {place}", ()) for place in range(8)]
    columns += [(f"code {place}", tuple(f"v{each}" for each in range(n))) for place, n in enumerate(CODES)]
    schema = Schema(label="disease", classes=("no", "yes"), columns=tuple(columns))
    rules |= {"owners": drawn.owners[own], "schema": schema}
    return _cut(np.hstack([drawn.rows[:, :8], *codes]), drawn.labels, (own, public, public), **rules)


def _canaries(data: Path | None, download: bool, **rules: Any) -> _Made:
    coins, every = np.random.default_rng(0).integers(0, 2, _CANARIES), slice(None)
    return _cut(np.eye(_CANARIES), coins, (every, every, every), measure=LEAK, **rules)


TASKS: dict[str, tuple[str, Callable[..., _Made], str]] = {
    "canaries": ("random labels", _canaries, "14648aa75284"),
    "breast-cancer": ("breast cancer, 4 hospitals", _breast_cancer, "dc0c6e04f817"),
    "shifted": ("4 unlike hospitals", _shifted, "268fb8c21926"),
    "rare": ("a rare class of garments, 4 hospitals", _rare, "6449ffc88b06"),
    "adult": ("Adult, 4 hospitals", _adult, "5ff02e9e8829"),
    "diabetes": ("Diabetes, readmitted, 4 hospitals", partial(_diabetes, days=False), "20393a651807"),
    "days": ("a number: days in hospital, 4 hospitals", partial(_diabetes, days=True), "7c5af8599249"),
    "digits-4": ("digits, 4 hospitals", partial(_images, "mnist", 4), "103c31776939"),
    "garments-4": ("garments, 4 hospitals", partial(_images, "fashion-mnist", 4), "3781322f7d6c"),
    "digits-250": ("digits, 250 hospitals", partial(_images, "mnist", 250), "e0c72b12c952"),
    "garments-250": ("garments, 250 hospitals", partial(_images, "fashion-mnist", 250), "500688c6a3d1"),
}
"""By name: the title, how it is made, and how the SHA-256 of its arrays begins."""


@cache
def load_task(name: str, data_dir: Path | None = None, *, download: bool = False) -> _Made:
    """A task, and the labels of what tests, which no method gets.

    Raises:
        InputError: no such task, or its data are not there.
        IntegrityError: the data are others than those that figures were made with.
    """
    if name not in TASKS:
        raise InputError(f"--task {name}: one of {', '.join(TASKS)} is meant")
    title, make, pinned = TASKS[name]
    task, truth = make(data_dir, download, name=name, title=title)
    found = digest_of(task, truth)[:12]
    if found != pinned:
        raise IntegrityError(f"task {name}: its arrays have the digest {found}, {pinned} is meant")
    return task, truth

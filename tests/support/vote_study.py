"""A study with votes of four hospitals that tests run as processes: breast cancer data, votes in the open."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from pate_fed.cli.demo import HOSPITALS, Demo, demo_in, make_identities

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


def make_vote_study(folder: Path, *, teachers: int = 3, trees: int = 5) -> Demo:
    """Write four hospitals' CSV files, the public pool, the study, and everyone's identity and policy."""
    names, rows, labels = _records()
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in zip(("pool", *HOSPITALS), _parts(len(rows)), strict=True):
        _write(folder / f"{name}.csv", names, rows[part], labels[part], part)
    columns = "\n".join(f'"{name}" = "number"' for name in names)
    text = _STUDY.format(columns=columns, teachers=teachers, trees=trees)
    (folder / "study.toml").write_text(text, encoding="utf-8")
    make_identities(folder, policy=_POLICY)
    return demo_in(folder)


def _records() -> tuple[list[str], np.ndarray, np.ndarray]:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    return [str(name) for name in data.feature_names], data.data, data.target


def _parts(count: int) -> list[np.ndarray]:
    """The pool's rows and each hospital's, the same on every machine."""
    order = np.argsort(np.random.Philox(key=1995).random_raw(count), kind="stable")
    return [order[:_POOL], *np.array_split(order[_POOL:], len(HOSPITALS))]


def _write(path: Path, names: list[str], rows: np.ndarray, labels: np.ndarray, numbers: np.ndarray) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", *names, "diagnosis"])
        for number, row, label in zip(numbers, rows, labels, strict=True):
            writer.writerow([f"P{number:03d}", *(f"{value:.6g}" for value in row), _CLASSES[label]])

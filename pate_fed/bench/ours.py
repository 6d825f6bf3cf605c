"""This package's own method: a whole study by default, `auto` at the task's hospitals, its noise seeded.

Records go by the hands that a user's would: arrays, or one CSV file a hospital where the task has a schema.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.bench.protocol import Given, Ledger, Task
from pate_fed.data import Schema


def run_ours(task: Task, epsilon: float, seed: int) -> Given:
    """Scores of a study's published student, and the ledger of its run."""
    from pate_fed import simulate

    folder = Path(tempfile.mkdtemp(prefix="pate_fed-bench-"))  # its ledger is read by who checks
    study: dict[str, dict[str, Any]] = {
        "study": {"seed": seed},
        "parties": {"num_clients": task.parties, "records": len(task.labels) // task.parties},
        "aggregation": {"aggregator": "auto"},
        "privacy": {"epsilon": epsilon, "delta": task.delta},
    }
    if task.schema is None:
        given: Any = {
            "private_images": task.inputs,
            "private_labels": task.labels,
            "public_images": task.pool,
            "owners": task.owners,
            "class_names": [str(each) for each in range(task.num_classes)],
            "num_queries": len(task.pool),
        }
        run = simulate(study, dataset=given, quiet=True, run_dir=folder / "run")
    else:
        study["data"] = _files(task, task.schema, folder)
        run = simulate(study, quiet=True, run_dir=folder / "run")
    scores = np.asarray(run.student.predict_proba(task.test), dtype=np.float64)
    if task.target_range is not None:
        low, high = task.target_range
        scores = low + (high - low) * scores[:, 1]
    return scores, Ledger(epsilon=run.epsilon, delta=run.delta, run_dir=run.path)


def _files(task: Task, schema: Schema, folder: Path) -> dict[str, Any]:
    """The study's data: each hospital's records and the pool as CSV files, and what their columns mean."""
    taught = [str(label) if task.target_range else schema.classes[label] for label in task.labels.tolist()]
    private = [str(folder / f"{own}.csv") for own in range(task.parties)]
    for own, path in enumerate(private):
        rows = np.flatnonzero(task.owners == own)
        _write(path, schema, task.inputs[rows], [[taught[row]] for row in rows])
    _write(pool := str(folder / "pool.csv"), schema, task.pool, None)
    table: dict[str, Any] = {"label": schema.label}
    table |= {"target_range": task.target_range} if task.target_range else {"classes": schema.classes}
    table["columns"] = {name: values or "number" for name, values in schema.columns}
    return {"dataset": "table", "pool": pool, "private": private, "table": table}


def _write(path: str, schema: Schema, rows: NDArray[Any], labels: list[list[str]] | None) -> None:
    """A number, or the value whose column is 1; nothing where it is missing."""
    columns, at = [], 0
    for _, values in schema.columns:
        part = rows[:, at : (at := at + max(1, len(values)))].tolist()
        if values:
            columns.append([values[row.index(1)] if 1 in row else "" for row in part])
        else:
            columns.append(["" if value != value else repr(value) for (value,) in part])
    cells = [[name for name, _ in schema.columns], *map(list, zip(*columns, strict=True))]
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        ends = [[]] * len(cells) if labels is None else [[schema.label], *labels]
        csv.writer(file).writerows([*row, *end] for row, end in zip(cells, ends, strict=True))

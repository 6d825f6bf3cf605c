"""Ours plays a task by the hands that a user has: arrays, or CSV files that hold the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pate_fed.bench.ours import _files, run_ours
from pate_fed.bench.protocol import R2, Task, check_ledger, check_predictions, measured
from pate_fed.bench.tasks import load_task
from pate_fed.data import Schema
from pate_fed.data.table import read_table


def test_files_hold_the_rows_of_the_task(tmp_path: Path) -> None:
    task, _ = load_task("shifted")
    assert task.schema is not None
    data = _files(task, task.schema, tmp_path)
    for own, path in enumerate(data["private"]):
        found, mine = read_table(Path(path), task.schema, labelled=True), task.owners == own
        assert np.array_equal(found.inputs, task.inputs[mine], equal_nan=True)
        assert np.array_equal(found.labels, task.labels[mine])
    pool = read_table(Path(data["pool"]), task.schema, labelled=False)
    assert np.array_equal(pool.inputs, task.pool, equal_nan=True) and (pool.labels == -1).all()


def test_a_number_is_learnt_and_its_own_ledger_is_checked() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2400, 2))
    numbers = np.clip(5 + 2 * rows[:, 0], 0, 10)
    task = Task(
        name="t",
        title="t",
        inputs=rows[:2000],
        labels=numbers[:2000],
        owners=np.arange(2000) % 4,
        pool=rows[2000:2200],
        test=rows[2200:],
        num_classes=0,
        target_range=(0.0, 10.0),
        schema=Schema(label="y", target_range=(0.0, 10.0), columns=(("a", ()), ("b", ()))),
        measure=R2,
    )
    predictions, ledger = run_ours(task, 4.0, 0)
    found = check_ledger(task, ledger, 4.0, what="ours")
    assert found is not None and 3.9 < found <= 4.0
    assert measured(task, check_predictions(task, predictions, what="ours"), numbers[2200:]) > 0.6

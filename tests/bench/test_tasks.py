"""The benchmark's tasks are what their digests say, and nobody's records test them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.bench.protocol import Task
from pate_fed.bench.tasks import TASKS, all_digits, load_task
from pate_fed.errors import InputError, IntegrityError


def _check(task: Task, truth: np.ndarray) -> None:
    assert len(task.inputs) == len(task.labels) == len(task.owners) and len(truth) == len(task.test)
    assert np.unique(task.owners).tolist() == list(range(task.parties))
    tested = {row.tobytes() for row in np.nan_to_num(task.test)}
    own = [row.tobytes() in tested for row in np.nan_to_num(task.inputs)]
    assert task.name == "canaries" or task.schema is not None or np.mean(own) < 0.01  # rows may be equal


@pytest.mark.parametrize("name", ["canaries", "breast-cancer", "shifted"])
def test_what_is_drawn_or_shipped_has_its_digest(name: str) -> None:
    _check(*load_task(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TASKS])
def test_all_have_their_digest(name: str, shared: Path) -> None:
    _check(*load_task(name, shared / "data"))


@pytest.mark.slow
def test_published_figures_are_of_all_tested_digits(shared: Path) -> None:
    task, truth = all_digits(shared / "data", False)
    assert len(task.test) == len(truth) == 10_000 and len(task.labels) == 60_000


def test_other_data_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    title, make, _ = TASKS["shifted"]
    monkeypatch.setitem(TASKS, "other", (title, make, "0" * 12))
    with pytest.raises(IntegrityError, match=r"task other: its arrays .*, 000000000000 is meant"):
        load_task("other")
    with pytest.raises(InputError, match="--task digit: one of canaries, "):
        load_task("digit")
    for name, says in (("adult", "adult"), ("days", "not the original archive")):
        with pytest.raises(InputError, match=says):
            load_task(name, tmp_path)
    with pytest.raises(InputError, match="--data-dir"):
        load_task("diabetes", None)

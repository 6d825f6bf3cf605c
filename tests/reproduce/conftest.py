"""A small data set of ten easy classes, teachers' totals of it, and every reproduction made small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.data import Dataset
from pate_fed.reproduce import (
    Reproduction,
    driver,
    interactive,
    mnist,
    mnist2017,
    questions,
    tables,
    votes,
)

MakeData = Callable[..., Dataset]


@pytest.fixture(autouse=True)
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture that is there already is drawn, and not rendered again."""
    from matplotlib.figure import Figure

    whole = Figure.savefig

    def save(figure: Figure, path: Path, **options: Any) -> None:
        if not path.exists():
            whole(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", save)


@pytest.fixture
def make_data() -> MakeData:
    """Ten classes that the bright row tells, 260 images, of which 200 are queries."""

    def make(name: str = "fashion-mnist", *, seed: int = 1) -> Dataset:
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 10, 260)
        images = rng.integers(0, 60, (260, 12, 12, 1))
        images[np.arange(260), labels] += 160
        pixels = images.astype(np.uint8)
        return Dataset(
            name=name,
            num_classes=10,
            class_names=(),
            private_images=pixels,
            private_labels=labels,
            public_images=pixels,
            public_labels=labels,
            num_queries=200,
            pool_digest="",
        )

    return make


@pytest.fixture
def loaded(make_data: MakeData, monkeypatch: pytest.MonkeyPatch) -> dict[str, Dataset]:
    """What reproductions load by name; a test may put other data there."""
    data = {name: make_data(name) for name in ("fashion-mnist", "mnist")}
    monkeypatch.setattr(driver, "load_dataset", lambda name, data_dir: data[name])
    return data


@pytest.fixture
def small(tmp_path: Path, loaded: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch) -> Reproduction:
    """One seed, few labels and quick students; `data_dir` has the authors' votes, a.npy and b.npy."""
    changes: dict[object, dict[str, object]] = {
        votes: {"TEACHERS": 5},
        mnist: {"LABELS": (20,), "SLOW_STUDENTS": ()},
        mnist2017: {"ENSEMBLES": (4, 250), "GAMMAS": (0.05,), "LABELS": (20,), "STUDENTS": ("encoder-head",)},
        questions: {"LABELS": (20,), "STRATEGIES": ("random",), "EPOCHS": 1},
        interactive: {"BUDGETS": {"fashion-mnist": (1.5,), "mnist": (1.5,)}, "STUDENTS": ("encoder-head",)},
        tables: {"LABELS": 40, "PAPER": {(4.05, "supervised", None, None): 74.8}},
    }
    for room, values in changes.items():
        for name, value in values.items():
            monkeypatch.setattr(room, name, value)
    truth = loaded["mnist"].public_labels[:200]
    folder = tmp_path / "pate_votes"
    folder.mkdir()
    for name, right in (("pate_votes/mnist_250_teachers.npy", 240), ("a.npy", 240), ("b.npy", 230)):
        totals = np.zeros((200, 10), dtype=np.int64)
        totals[np.arange(200), truth] = right
        totals[np.arange(200), (truth + 1) % 10] = 250 - right
        np.save(tmp_path / name, totals)
    np.save(folder / "mnist_250_student_labels_lap_20.npy", truth)
    np.save(folder / "mnist_250_teachers_100_indices_used_by_student.npy", np.arange(100, 200))
    return Reproduction(data_dir=tmp_path, out_dir=tmp_path / "out", seeds=1)

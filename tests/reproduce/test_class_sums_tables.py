"""The results page's class sums of four hospitals, at a small scale."""

from __future__ import annotations

import re
from pathlib import Path

import class_sums_tables as class_sums
import numpy as np
import pytest

from pate_fed.data import Dataset
from pate_fed.errors import InputError
from pate_fed.reproduce import Reproduction
from pate_fed.reproduce.census import table_of


def test_images_go_on_where_they_were_stopped(
    small: Reproduction, loaded: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_sums, "EPSILONS", (1e3, 2e3))
    said: list[str] = []
    small.out_dir.mkdir()
    bench = class_sums.Bench(name="images", data_dir=small.data_dir, out_dir=small.out_dir, seeds=1)
    lines = class_sums.reproduce_sums_of_images(bench, said.append)
    assert [line.split()[:3] for line in lines[2:4]] == [
        ["fashion-mnist", "kernel", "1000"],
        ["fashion-mnist", "kernel", "2000"],
    ]
    assert float(lines[3].split()[3]) > 60  # ten easy classes, next to no noise
    assert len(said) == 4  # each of two ε by the kernel at once, and in rounds
    assert class_sums.reproduce_sums_of_images(bench, said.append) == lines and len(said) == 4


def _percents(lines: list[str]) -> dict[tuple[str, ...], float]:
    """Accuracy by data set, method and ε, as the table shows it."""
    cells = [re.split(r"\s{2,}", line) for line in lines[2:-3]]
    return {(data, method, epsilon): float(ours) for data, method, epsilon, ours, *_ in cells}


def test_tables_stand_beside_what_is_had_without_privacy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 1, (900, 3))
    labels = (rows[:, 0] > 0.4).astype(np.int64)
    small = table_of("adult", rows, labels, train=600, num_queries=300, details="1 1 1")
    monkeypatch.setattr(class_sums, "_adult", lambda plan: small)
    monkeypatch.setattr(class_sums, "EPSILONS", (1.0,))
    plan = class_sums.Bench(name="tables", data_dir=None, out_dir=tmp_path, seeds=1)
    found = _percents(class_sums.reproduce_sums_of_tables(plan, print))
    assert set(found) == {
        (data, method, epsilon)
        for data in ("breast cancer", class_sums.CLINICS, "adult")
        for method, epsilon in (
            ("central, no privacy", "-"),
            ("one hospital alone", "-"),
            ("linear-and-kernel", "1"),
            ("no pool", "1"),
        )
    } | {("adult", "in rounds, by default", "1")}
    assert found["breast cancer", "linear-and-kernel", "1"] > 88
    assert min(found["adult", way, "1"] for way in ("linear-and-kernel", "in rounds, by default")) > 85
    assert found[class_sums.CLINICS, "no pool", "1"] > 65
    assert found["breast cancer", "no pool", "1"] > 85 and found["adult", "no pool", "1"] > 80
    assert found["adult", "no pool", "1"] < found["adult", "central, no privacy", "-"]


@pytest.mark.slow
def test_four_hospitals_of_adult_are_within_two_points_of_central_learning(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_sums, "EPSILONS", (1.0,))
    plan = class_sums.Bench(name="tables", data_dir=shared / "data", out_dir=tmp_path, seeds=1)
    found = _percents(class_sums.reproduce_sums_of_tables(plan, print))
    assert found["adult", "linear-and-kernel", "1"] > found["adult", "central, no privacy", "-"] - 1


@pytest.mark.slow
def test_adult_has_a_number_for_each_value_and_none_where_it_is_missing(shared: Path) -> None:
    found = class_sums._adult(class_sums.Bench(name="tables", data_dir=shared / "data", out_dir=shared))
    widths = [int(width) for width in found.details.split()]
    assert sum(widths) == found.private_images.shape[1] and len(widths) == 13
    workclass = found.private_images[:, 1 : 1 + widths[1]]
    assert set(np.unique(workclass.sum(axis=1))) == {0.0, 1.0}
    assert (found.private_images.shape[0], found.public_images.shape[0]) == (32_561, 16_281)


def test_data_that_are_not_there_are_named(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(InputError, match="adult"):
            class_sums.reproduce_sums_of_tables(
                class_sums.Bench(name="tables", data_dir=folder, out_dir=tmp_path), print
            )

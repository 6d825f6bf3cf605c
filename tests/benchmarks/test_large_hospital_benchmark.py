"""What a large hospital's records cost: light teachers, boosting, and sums of a million rows of a table.

pytest -m benchmark -s tests/benchmarks/test_large_hospital_benchmark.py
"""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from pate_fed.data.infer import infer_schema
from pate_fed.data.schema import Schema
from pate_fed.data.table import read_table
from pate_fed.learning import TeacherSettings
from pate_fed.learning.features.build import build_feature_map
from pate_fed.learning.features.feature_map import FeatureSettings
from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.teachers.forests import train_forest
from pate_fed.learning.teachers.network import train_teacher

SIZES = (1_000, 10_000, 100_000)

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize("name", ["encoder-head", "hog-linear"])
def test_ten_times_the_records_take_a_few_times_as_long(name: str) -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (SIZES[-1], 28, 28, 1), dtype=np.uint8)
    labels = rng.integers(0, 10, SIZES[-1])
    encoder, settings, seconds = fit_encoder(images[:3000]), TeacherSettings(name=name), []
    for size in SIZES:
        start = time.process_time()
        train_teacher(
            images[:size], labels[:size], num_classes=10, settings=settings, seed=0, encoder=encoder
        )
        seconds.append(time.process_time() - start)
        print(f"{name}, {size:,} records: {seconds[-1]:.1f} s of CPU")
    print(f"100,000 against 10,000: {seconds[2] / seconds[1]:.1f} times")
    assert seconds[2] < 4 * seconds[1]


def test_boosting_takes_about_as_long_as_scikit_learns_on_histograms() -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    rng, count = np.random.default_rng(0), SIZES[-1]
    rows = rng.normal(size=(count, 30))
    rows[:, 20:] = rng.integers(0, 2, (count, 10))
    labels = (rows[:, 0] + rows[:, 1] * rows[:, 20] + rng.normal(size=count) > 0).astype(np.int64)
    start = time.process_time()
    train_forest(rows, labels, num_classes=2, method="gradient-boosting", seed=0, balanced=True)
    ours = time.process_time() - start
    start = time.process_time()
    with threadpool_limits(1):
        HistGradientBoostingClassifier(early_stopping=False).fit(rows, labels)
    theirs = time.process_time() - start
    print(f"boosting, {count:,} records of 30 columns: {ours:.1f} s of CPU, {ours / theirs:.2f} times theirs")
    assert ours < 1.3 * theirs


def _write_table(path: Path, count: int, *, decimals: int = 1) -> tuple[Schema, float]:
    """20 columns of numbers and 10 of categories, patients of two records in the mean; a million are 128 MB.

    Their schema, and the seconds of CPU in which it was inferred.
    """
    rng = np.random.default_rng(0)
    with path.open("w", encoding="ascii") as file:
        names = [*(f"n{place}" for place in range(20)), *(f"c{place}" for place in range(10))]
        file.write(",".join(["patient", *names, "label"]) + "\n")
        for size in [10_000] * (count // 10_000):
            numbers = np.char.mod(f"%.{decimals}f", rng.normal(100, 20, (size, 20)))
            values = np.array(["a", "b", "no", "yes", ""])[rng.integers(0, 5, (size, 10))]
            own = [np.char.mod("P%d", rng.integers(0, count // 2, (size, 1))), numbers, values]
            rows = np.hstack([*own, np.array(["ill", "well"])[rng.integers(0, 2, (size, 1))]])
            file.writelines(",".join(row) + "\n" for row in rows.tolist())
    start = time.process_time()
    schema = infer_schema([path]).schema
    return schema, time.process_time() - start


def test_a_million_rows_are_read_and_summed_by_patient(tmp_path: Path) -> None:
    """Run alone: the peak is that of the whole process, less what it held before."""
    before = psutil.Process().memory_info().rss / 2**20
    schema, seconds = _write_table(tmp_path / "rows.csv", 1_000_000)
    print(f"1,000,000 rows of 30 columns, a schema inferred: {seconds:.0f} s of CPU")
    start = time.process_time()
    rows = read_table(tmp_path / "rows.csv", schema, labelled=True)
    read = time.process_time() - start
    columns = tuple(max(1, len(values)) for _, values in schema.columns)
    features = build_feature_map(
        FeatureSettings(name="linear-and-kernel", columns=columns), rows.inputs[:1000]
    )
    start = time.process_time()
    features.contributions(rows.inputs, rows.labels, num_classes=2, groups=rows.patients)
    summed = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    print(f"read in {read:.0f} s of CPU, summed in {summed:.0f}, at most {peak:,.0f} MiB more")
    assert peak < 1024


def test_many_decimals_cost_no_more_than_few(tmp_path: Path) -> None:
    """200,000 rows, each number with one decimal or with six: a schema inferred, and read. Run alone."""
    found = []
    for decimals in (1, 6):
        before, path = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, tmp_path / f"{decimals}.csv"
        schema, inferred = _write_table(path, 200_000, decimals=decimals)
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        start = time.process_time()
        read_table(path, schema, labelled=True)
        found.append((inferred, time.process_time() - start))
        print(
            f"{decimals} decimals: inferred in {inferred:.1f} s of CPU, {more:.0f} MiB more than before; "
            f"read in {found[-1][1]:.1f} s"
        )
    print("six against one: {:.1f} and {:.1f} times".format(*np.array(found[1]) / found[0]))
    assert found[1][0] < 2 * found[0][0]

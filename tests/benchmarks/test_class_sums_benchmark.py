"""Class sums of four hospitals against ε: the results page's figures.

    pytest -m benchmark -s tests/benchmarks/test_class_sums_benchmark.py

PATE_FED_BENCH_OUT (a folder of the test's own) keeps the rows, PATE_FED_BENCH_SEEDS (5) counts them: some
minutes for images, one or two for tables. Where it was stopped it goes on.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from class_sums_labels import reproduce_sums_of_labels
from class_sums_numbers import reproduce_sums_of_numbers
from class_sums_rare import reproduce_sums_of_rare
from class_sums_tables import Bench, reproduce_sums_of_images, reproduce_sums_of_tables
from class_sums_untouched import folder_of_sets, reproduce_untouched_sums


@pytest.mark.benchmark
def test_class_sums_of_four_hospitals(shared: Path, tmp_path: Path) -> None:
    seeds = int(os.environ.get("PATE_FED_BENCH_SEEDS", "5"))
    out = Path(os.environ.get("PATE_FED_BENCH_OUT", tmp_path))
    for name, make in (
        ("class-sums-tables", reproduce_sums_of_tables),
        ("class-sums-numbers", reproduce_sums_of_numbers),
        ("class-sums-labels", reproduce_sums_of_labels),
        ("class-sums-rare", reproduce_sums_of_rare),
        ("class-sums-fashion-mnist", reproduce_sums_of_images),
    ):
        lines = make(Bench(name=name, data_dir=shared / "data", out_dir=out, seeds=seeds), print)
        print("\n".join(lines))
        assert len(lines) > 5


@pytest.mark.benchmark
def test_class_sums_of_records_that_nothing_was_chosen_on(tmp_path: Path) -> None:
    """20 seeds; some minutes. The command is its own: -k nothing_was_chosen."""
    folder = folder_of_sets()
    if folder is None:
        pytest.skip("needs two files of a package: pip install --no-deps scikit-survival")
    out = Path(os.environ.get("PATE_FED_BENCH_OUT", tmp_path))
    plan = Bench(name="class-sums-untouched", data_dir=folder, out_dir=out, seeds=20)
    lines = reproduce_untouched_sums(plan, print)
    print("\n".join(lines))
    assert len(lines) > 5

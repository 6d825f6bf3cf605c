"""The estimate of `pate-fed plan` beside what thirty studies gave: the results page's figures.

    pytest -m benchmark -s tests/benchmarks/test_plan_truth_benchmark.py

PATE_FED_BENCH_OUT (a folder of the test's own) keeps the rows: half an hour on one core. Where it was
stopped it goes on.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plan_truth import TruthBench, reproduce_truth


@pytest.mark.benchmark
def test_thirty_settings(shared: Path, tmp_path: Path) -> None:
    out = Path(os.environ.get("PATE_FED_BENCH_OUT", tmp_path))
    lines = reproduce_truth(TruthBench(name="plan-truth", data_dir=shared / "data", out_dir=out), print)
    print("\n".join(lines))
    assert len(lines) > 5

"""The walk through Adult by place of work: the page's own commands, and each place alone on the same rows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pate_fed.cli.hospital_compare import table_model
from pate_fed.config.study import read_study
from pate_fed.data import read_pool, read_records
from pate_fed.report.accuracy import Accuracy

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "own-data.md"
MARK = "<!-- run by tests/benchmarks/test_real_places_benchmark.py -->"
FILES = ("private.csv", "government.csv", "own.csv", "unknown.csv")


@pytest.mark.benchmark
def test_four_places_of_work(shared: Path, tmp_path: Path) -> None:
    """With thousands of records each, boosting on one's own is as good; the student is near all of them."""
    for name in ("adult.data", "adult.test"):
        shutil.copy(shared / "data" / "adult" / name, tmp_path)
    [commands] = re.findall(rf"(?s){re.escape(MARK)}\n```\n(.*?)```", PAGE.read_text(encoding="utf-8"))
    bin_first = f'PATH="{Path(sys.executable).parent}:$PATH"\n'
    subprocess.run(["sh", "-euc", bin_first + commands], cwd=tmp_path, check=True)
    metrics = json.loads((tmp_path / "runs" / "adult" / "metrics.json").read_text(encoding="utf-8"))
    together, study = metrics["accuracy"], read_study(tmp_path / "adult.toml")
    spec = study.resolve().data.kind()
    public = read_pool(tmp_path / "pool.csv", spec)
    asked = len(public.labels) - together["student_n"]
    rows, truth = public.inputs[asked:], public.labels[asked:]
    alone = {}
    for name in FILES:
        own = read_records(tmp_path / name, spec)
        told = Accuracy.of_probabilities(table_model(own.inputs, own.labels, 2)(rows), truth)
        assert told.ranking is not None and told.balanced_accuracy is not None
        alone[name] = told
        print(f"{name}: {len(own.labels)} records, alone {told.student:.3f}, AUC {told.ranking.auc:.3f}")
    print(
        f"together at ε {metrics['privacy']['student']['data_independent']}: {together['student']:.3f}",
        together,
    )
    best = max(told.ranking.auc for told in alone.values() if told.ranking)
    assert best - 0.03 < together["auc"] and float(np.mean(truth == 0)) + 0.05 < together["student"]

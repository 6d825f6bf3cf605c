"""The default student's time beside that of an earlier commit, by turns, from the same labels.

git worktree add DIR 54f742a
EARLIER=DIR pytest -m benchmark -s tests/benchmarks/test_student_pair_benchmark.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from student_labels import labels_of, totals_of

from pate_fed.data import load_dataset
from pate_fed.reproduce import Reproduction

pytestmark = pytest.mark.benchmark

SEEDS, ROOT = 3, Path(__file__).resolve().parents[2]
TIMED = """
import sys, time
import numpy as np
from pate_fed.learning import StudentSettings
held, seed = np.load(sys.argv[1]), int(sys.argv[2])
try:
    from pate_fed.learning.students.trainer import LabelledPool
    from pate_fed.learning.students.train import train_student
    given, named = [LabelledPool(images=held["images"], labelled_index=held["index"], labels=held["label"],
                                 num_classes=10), StudentSettings()], {}
except ImportError:
    from pate_fed.learning.training import train_student
    given = [held["images"]]
    named = dict(labelled_index=held["index"], labels=held["label"], num_classes=10)
    named["settings"] = StudentSettings()
cpu, wall = time.process_time(), time.perf_counter()
train_student(*given, **named, seed=seed)
print(time.process_time() - cpu, time.perf_counter() - wall)
"""


def _timed(checkout: Path, *arguments: str) -> list[float]:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", TIMED, *arguments]
    done = subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True, text=True)
    return [float(each) for each in done.stdout.split()]


@pytest.mark.skipif("EARLIER" not in os.environ, reason="EARLIER names no checkout of an earlier commit")
def test_the_default_student_beside_an_earlier_one(tmp_path: Path) -> None:
    dataset = load_dataset("glyph", data_dir=None)
    totals = totals_of(Reproduction(data_dir=None, out_dir=tmp_path), dataset, lambda line: None)
    sums = {"now": np.zeros(2), "earlier": np.zeros(2)}
    for seed in range(SEEDS):
        labels = labels_of(totals, seed)
        path = tmp_path / f"{seed}.npz"
        images = dataset.public_images[: dataset.num_queries]
        np.savez(path, images=images, index=labels.index, label=labels.label)
        for name, checkout in (("now", ROOT), ("earlier", Path(os.environ["EARLIER"]))):
            spent = _timed(checkout, str(path), str(seed))
            sums[name] += spent
            print(f"\nseed {seed}, {name}: {spent[0]:.1f} s of CPU, {spent[1]:.1f} s")
    cpu, wall = sums["now"] / sums["earlier"]
    print(f"the default student in {cpu:.2f} of the earlier one's CPU, {wall:.2f} of its time, {SEEDS} seeds")
    assert min(sums["now"]) > 0

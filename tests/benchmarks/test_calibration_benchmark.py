"""How far a student's confidence is from its share of right answers, before and after it is calibrated.

    pytest -m benchmark -s tests/benchmarks/test_calibration_benchmark.py

Fashion-MNIST's public inputs and votes of 250 small CNNs, labels without a threshold at ε 4.05 and 6,
students of the first 9,000 tested on the last 1,000. The calibration error is the mean gap between confidence
and accuracy in ten bins; the best is that of the power which suits the test part most.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.data import load_dataset
from pate_fed.learning import StudentSettings
from pate_fed.learning.students.losses import sharpened
from pate_fed.learning.students.train import train_student
from pate_fed.learning.students.trainer import LabelledPool
from pate_fed.reproduce.tables import released_labels
from pate_fed.reproduce.votes import read_totals

pytestmark = pytest.mark.benchmark

TOTALS = Path(__file__).parent.parent / "files" / "fashion-mnist-totals.npz"
POOL = 9000


def _error(shares: NDArray[np.float32], truth: NDArray[np.int64]) -> float:
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == truth
    place = np.minimum((10 * sure).astype(int), 9)
    gaps = [abs(float(np.sum(sure[place == each] - right[place == each]))) for each in range(10)]
    return sum(gaps) / len(truth)


@pytest.mark.parametrize(("epsilon", "labels"), [(4.05, 2200), (6.0, 1500)])
def test_calibration(shared: Path, epsilon: float, labels: int) -> None:
    data = load_dataset("fashion-mnist", data_dir=shared / "data")
    given = released_labels(read_totals(TOTALS), epsilon=epsilon, seed=0, labels=labels)
    index, label = given.index, given.label
    images, truth = data.public_images[POOL:], data.public_labels[POOL:]
    wrong = np.mean(label != data.public_labels[index])
    pool = LabelledPool(images=data.public_images[:POOL], labelled_index=index, labels=label, num_classes=10)
    print(f"\n{labels} labels, {wrong:.1%} wrong    accuracy  plain  calibrated  best")
    for name in ("supervised", "gan", "pate++", "fixmatch"):
        student = train_student(pool, StudentSettings(name=name, epochs=5), seed=0)
        calibrated = student.predict_proba(images)
        student.sharpness = 1.0
        plain = student.predict_proba(images)
        powers = [
            sharpened(torch.from_numpy(plain), exponent).numpy()
            for exponent in np.logspace(-1, 1, 41).tolist()
        ]
        best = min(_error(each, truth) for each in powers)
        accuracy = np.mean(plain.argmax(axis=1) == truth)
        print(
            f"{name:<24} {accuracy:>8.1%} {_error(plain, truth):>6.3f} {_error(calibrated, truth):>11.3f} "
            f"{best:>5.3f}"
        )
        assert np.array_equal(plain.argmax(axis=1), calibrated.argmax(axis=1))

"""Teachers and students on real Fashion-MNIST: accuracy and CPU seconds, printed as tables.

    pytest -m benchmark -s tests/benchmarks/test_learning_benchmark.py

PATE_FED_BENCH_TEACHERS (25) sets the number of teachers of 240 records each, PATE_FED_BENCH_EPOCHS the
students' epochs (their default). Totals are scaled to 250 teachers before noise is added, so that noise of
the paper's size fits. PATE_FED_BENCH_TOTALS names a .npy file in which totals are kept between runs.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pate_fed.data import Dataset, load_dataset
from pate_fed.learning import STUDENTS, StudentSettings, TeacherSettings
from pate_fed.learning.networks.encoder import fit_encoder
from pate_fed.learning.students.train import estimate_noise_rate, train_student
from pate_fed.learning.students.trainer import LabelledPool
from pate_fed.learning.teachers.network import train_teacher

TEACHERS = int(os.environ.get("PATE_FED_BENCH_TEACHERS", "25"))
EPOCHS = int(os.environ.get("PATE_FED_BENCH_EPOCHS", StudentSettings().total_epochs))
PART = 240
SCALE = 250  # votes a query, whatever the number of teachers

pytestmark = pytest.mark.benchmark


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def fashion(shared: Path) -> Dataset:
    return load_dataset("fashion-mnist", data_dir=shared / "data")


@pytest.fixture(scope="module")
def totals(fashion: Dataset) -> NDArray[np.int64]:
    """Votes of the teachers on all public images, (10000, 10); prints what they cost and reach."""
    kept = os.environ.get("PATE_FED_BENCH_TOTALS")
    if kept and Path(kept).exists():
        return np.asarray(np.load(kept), dtype=np.int64)
    order = np.random.default_rng(0).permutation(len(fashion.private_labels))
    votes = np.zeros((len(fashion.public_labels), 10), dtype=np.int64)
    right, training, predicting = [], 0.0, 0.0
    for number in range(TEACHERS):
        part = order[number * PART : (number + 1) * PART]
        start = time.process_time()
        teacher = train_teacher(
            fashion.private_images[part],
            fashion.private_labels[part],
            num_classes=10,
            settings=TeacherSettings(name="small-cnn"),
            seed=number,
        )
        trained = time.process_time()
        predicted = teacher.predict(fashion.public_images)
        predicting += time.process_time() - trained
        training += trained - start
        votes[np.arange(len(votes)), predicted] += 1
        right.append(np.mean(predicted == fashion.public_labels))
    plurality = np.mean(votes.argmax(axis=1) == fashion.public_labels)
    print(f"\n{'teachers':>9} {'one, %':>7} {'plurality, %':>13} {'train, CPU s':>13} {'10,000, CPU s':>14}")
    print(
        f"{TEACHERS:>9} {100 * np.mean(right):>7.2f} {100 * plurality:>13.2f} "
        f"{training / TEACHERS:>13.3f} {predicting / TEACHERS:>14.3f}"
    )
    if kept:
        np.save(kept, votes)
    return votes


@dataclass(frozen=True)
class Released:
    """How labels are released: T, σ1 and σ2 in votes of 250 teachers, and how many are asked for."""

    name: str
    labels: int
    threshold: float
    sigma1: float
    sigma2: float

    def draw(self, totals: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Index and label of what Confident-GNMax answers among the first 9,000."""
        rng = np.random.default_rng(seed)
        votes = totals[:9000] * (SCALE / totals[0].sum())
        order = rng.permutation(len(votes))
        answered = votes[order].max(axis=1) + rng.normal(0, self.sigma1, len(votes)) >= self.threshold
        index = order[answered][: self.labels]
        return index, (votes[index] + rng.normal(0, self.sigma2, votes[index].shape)).argmax(axis=1)


RELEASES = (
    Released("main job's: threshold, 800 labels", 800, 200.0, 150.0, 40.0),
    Released("paper's at 4.05: 2,200 labels, a third wrong", 2200, -1e9, 1.0, 90.0),
)


def test_teachers(totals: NDArray[np.int64]) -> None:
    assert totals.sum(axis=1).min() == totals.sum(axis=1).max()


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_students(fashion: Dataset, totals: NDArray[np.int64], release: Released) -> None:
    index, labels = release.draw(totals, seed=0)
    wrong = float(np.mean(labels != fashion.public_labels[index]))
    images = fashion.public_images[:9000]
    pool = LabelledPool(images=images, labelled_index=index, labels=labels, num_classes=10)
    print(f"\n{release.name}: {len(index)} labels, {100 * wrong:.1f} % wrong, {EPOCHS} epochs")
    print(f"{'student':>12} {'last 1,000, %':>14} {'all 10,000, %':>14} {'CPU s':>7}")
    for name in STUDENTS:
        start = time.process_time()
        student = train_student(pool, StudentSettings(name=name, epochs=EPOCHS), seed=0)
        seconds = time.process_time() - start
        right = student.predict(fashion.public_images) == fashion.public_labels
        print(f"{name:>12} {100 * right[9000:].mean():>14.1f} {100 * right.mean():>14.1f} {seconds:>7.0f}")
        assert right.mean() > 0.5


def test_estimated_noise_rates(fashion: Dataset, totals: NDArray[np.int64]) -> None:
    more = (
        Released("500 behind the threshold", 500, 200.0, 150.0, 40.0),
        Released("800 behind it, twice the noise", 800, 200.0, 150.0, 80.0),
        Released("1,500 without a threshold", 1500, -1e9, 1.0, 60.0),
    )
    encoder = fit_encoder(fashion.public_images[:9000])
    print(f"\n{'labels':>46} {'seed':>5} {'wrong, %':>9} {'estimate, %':>12} {'CPU s':>6}")
    for release in (*RELEASES, *more):
        for seed in range(3):
            index, labels = release.draw(totals, seed)
            wrong = np.mean(labels != fashion.public_labels[index])
            start = time.process_time()
            found = estimate_noise_rate(fashion.public_images[index], labels, num_classes=10, encoder=encoder)
            seconds = time.process_time() - start
            print(f"{release.name:>46} {seed:>5} {100 * wrong:>9.1f} {100 * found:>12.1f} {seconds:>6.2f}")
            assert abs(found - wrong) < 0.2

"""The GAN student on 100 labels of real MNIST, on the small network and on the improved GAN's dense one.

    pytest -m benchmark -s tests/benchmarks/test_improved_gan_benchmark.py

"choosing" takes 100 true labels, ten a class, among the first 7,000 public images and is tested on the next
2,000; "final" takes the 100 noisy labels of PATE 2017's authors among the first 9,000 and is tested on the
last 1,000. PATE_FED_BENCH_EPOCHS (40) sets the dense network's epochs, PATE_FED_BENCH_SEED (0) the seed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from pate_fed.data import Dataset, load_dataset
from pate_fed.learning import EpochRecord, StudentSettings
from pate_fed.learning.students.train import train_student
from pate_fed.learning.students.trainer import LabelledPool

EPOCHS = int(os.environ.get("PATE_FED_BENCH_EPOCHS", "40"))
SEED = int(os.environ.get("PATE_FED_BENCH_SEED", "0"))
SETTINGS = {
    "small-cnn": StudentSettings(name="gan", network="small-cnn", epochs=20, test_every=5),
    "dense": StudentSettings(name="gan", network="dense", epochs=EPOCHS, batch_size=50, test_every=10),
}

pytestmark = pytest.mark.benchmark


@pytest.fixture(scope="module")
def mnist(shared: Path) -> Dataset:
    torch.set_num_threads(1)
    return load_dataset("mnist", data_dir=shared / "data")


@pytest.mark.parametrize("network", list(SETTINGS))
@pytest.mark.parametrize("part", ["choosing", "final"])
def test_a_hundred_labels(mnist: Dataset, shared: Path, part: str, network: str) -> None:
    images, truth = mnist.public_images, mnist.public_labels
    pool, end = (7000, 9000) if part == "choosing" else (9000, 10_000)
    if part == "choosing":
        chosen = np.random.default_rng(SEED).permutation(600)[:10]
        index = np.concatenate([np.flatnonzero(truth[:pool] == each)[chosen] for each in range(10)])
        labels = truth[index]
    else:
        votes = shared / "data" / "pate_votes"
        index = np.load(votes / "mnist_250_teachers_100_indices_used_by_student.npy").astype(np.int64)
        labels = np.load(votes / "mnist_250_student_labels_lap_20.npy")[index].astype(np.int64)
    wrong = int((labels != truth[index]).sum())
    print(f"\n{part}, {network}: {len(index)} labels, {wrong} wrong, seed {SEED}")
    print(f"{'epoch':>6} {'right, %':>9} {'CPU s an epoch':>15}")
    start = time.process_time()

    def tell(record: EpochRecord) -> None:
        if record.test_accuracy is not None:
            seconds = (time.process_time() - start) / record.epoch
            print(f"{record.epoch:>6} {100 * record.test_accuracy:>9.1f} {seconds:>15.1f}", flush=True)

    labelled = LabelledPool(
        images=images[:pool],
        labelled_index=index,
        labels=labels,
        num_classes=10,
        test_images=images[pool:end],
        test_labels=truth[pool:end],
    )
    train_student(labelled, SETTINGS[network], seed=SEED, on_epoch=tell)

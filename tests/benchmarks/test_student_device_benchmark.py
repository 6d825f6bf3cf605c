"""Ways to run a student's epoch faster on its device, against the plain loop in one run: seconds, accuracy.

    pytest -m benchmark -s tests/benchmarks/test_student_device_benchmark.py

PATE++'s first stage with 2,200 labels of which a quarter is wrong, on Fashion-MNIST's public inputs. The
device is a GPU where there is one; PATE_FED_BENCH_DEVICE names another, PATE_FED_BENCH_EPOCHS (4) the epochs,
PATE_FED_BENCH_NETWORK (small-cnn; deep-cnn is the paper's) the network. A way is worth its place in the
product where it is faster and no less accurate; on a card that is `graph`. On a CPU the plain loop stays,
whatever comes out: what bf16 gains there is one processor's, and a study's student would depend on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from pate_fed.data import Dataset, load_dataset
from pate_fed.learning import StudentSettings, tensors
from pate_fed.learning.students.gan import GANTrainer
from pate_fed.learning.students.trainer import LabelledPool, TrainingSets
from pate_fed.learning.tensors import image_shape, resolve_device, seeded, to_tensor

pytestmark = pytest.mark.benchmark

EPOCHS = int(os.environ.get("PATE_FED_BENCH_EPOCHS", "4"))
NETWORK = os.environ.get("PATE_FED_BENCH_NETWORK", "small-cnn")
POOL, LABELS, WRONG = 9000, 2200, 0.25


@pytest.fixture(scope="module")
def fashion(shared: Path) -> Dataset:
    return load_dataset("fashion-mnist", data_dir=shared / "data")


@contextmanager
def tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _within(way: str, device: str) -> AbstractContextManager[object]:
    if "tf32" in way:
        return tf32()
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16, cache_enabled=False) if "bf16" in way else nullcontext()


def _run(way: str, fashion: Dataset, device: str) -> tuple[float, float]:
    """Seconds an epoch after the first, and accuracy on the inputs that a student never sees."""
    settings = StudentSettings(
        name="pate+", network=NETWORK, epochs=EPOCHS, noise_rate=0.2, learning_rate=6e-3, ema_decay=0.0
    )
    rng = np.random.default_rng(0)
    index = rng.permutation(POOL)[:LABELS]
    truth = fashion.public_labels[index]
    labels = np.where(rng.random(LABELS) < WRONG, rng.integers(0, 10, LABELS), truth)
    images = fashion.public_images[:POOL]
    pool = LabelledPool(images=images, labelled_index=index, labels=labels, num_classes=10, true_labels=truth)
    sets = TrainingSets.of(pool, device)
    record = tensors.recorded if "graph" in way else lambda step, device: step
    with seeded(0, device), _within(way, device), patch.object(tensors, "recorded", record):
        pixels = to_tensor(images, device)
        trainer = GANTrainer(settings, image_shape(images), 10, pixels)
        if way == "compiled":
            for network in trainer.networks:
                network.logits = torch.compile(network.logits)  # type: ignore[method-assign]
        trainer.run_epoch(1, sets)
        start = time.perf_counter()
        for epoch in range(2, EPOCHS + 1):  # each ends with figures on the host
            trainer.run_epoch(epoch, sets)
        seconds = (time.perf_counter() - start) / (EPOCHS - 1)
        with torch.no_grad():
            test = trainer.preprocess(to_tensor(fashion.public_images[POOL:], device))
            for network in trainer.networks:
                network.eval()
            shares = torch.stack([network.logits(test).softmax(dim=1) for network in trainer.networks])
    said = shares.float().mean(dim=0).argmax(dim=1).cpu().numpy()
    return seconds, float(np.mean(said == fashion.public_labels[POOL:]))


@pytest.mark.filterwarnings("ignore")  # of the compiler's own doings
def test_ways_to_run_an_epoch(fashion: Dataset) -> None:
    torch.set_num_threads(1)
    device = resolve_device(os.environ.get("PATE_FED_BENCH_DEVICE", "auto"))
    on_gpu = device.startswith("cuda")
    ways = ["plain", *(["tf32", "graph", "graph, bf16"] if on_gpu else []), "bf16", "compiled"]
    print(
        f"\n{NETWORK} on {device}\n{'way':<10} {'s an epoch':>11} {'times as fast':>14} {'accuracy, %':>12}"
    )
    plain = 0.0
    for way in ways:
        seconds, accuracy = _run(way, fashion, device)
        plain = plain or seconds
        print(f"{way:<10} {seconds:>11.3f} {plain / seconds:>14.2f} {100 * accuracy:>9.1f}", flush=True)

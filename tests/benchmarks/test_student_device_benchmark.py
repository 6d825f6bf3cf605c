"""Ways to run a student's epoch faster on its device, against the plain loop in one run: seconds, accuracy.

    pytest -m benchmark -s tests/benchmarks/test_student_device_benchmark.py

PATE++'s first stage with 2,200 labels of which a quarter is wrong, on Fashion-MNIST's public inputs. The
device is a GPU where there is one; PATE_FED_BENCH_DEVICE names another, PATE_FED_BENCH_EPOCHS (4) the epochs,
PATE_FED_BENCH_NETWORK (small-cnn; deep-cnn is the paper's) the network. A way is worth its place in the
product where it is faster and no less accurate. On a CPU the plain loop stays, whatever comes out: what
bf16 gains there is one processor's, and a study's student would depend on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pate_fed.data import Dataset, load_dataset
from pate_fed.learning import StudentSettings
from pate_fed.learning.students.gan import GANTrainer
from pate_fed.learning.students.trainer import LabelledPool, TrainingSets
from pate_fed.learning.tensors import image_shape, resolve_device, seeded, to_tensor

pytestmark = pytest.mark.benchmark

EPOCHS = int(os.environ.get("PATE_FED_BENCH_EPOCHS", "4"))
NETWORK = os.environ.get("PATE_FED_BENCH_NETWORK", "small-cnn")
POOL, LABELS, WRONG = 9000, 2200, 0.25
WARM = 3  # steps before a graph is captured


@pytest.fixture(scope="module")
def fashion(shared: Path) -> Dataset:
    return load_dataset("fashion-mnist", data_dir=shared / "data")


class Captured(GANTrainer):
    """One CUDA graph an epoch, as its learning rate and R(e) are constants in it; then replayed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._steps, self._pool = 0, torch.cuda.graph_pool_handle()
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["capturable"] = True

    def _set_learning_rate(self, epoch: int) -> None:
        super()._set_learning_rate(epoch)
        self._graph = None

    def _learn_batch(
        self, x: Tensor, y: Tensor, u: Tensor, rate: float, opinions: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert opinions is None  # of discriminators on pixels
        self._steps += 1
        if self._steps <= WARM:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                made = super()._learn_batch(x, y, u, rate)
            torch.cuda.current_stream().wait_stream(stream)
            return made
        if self._graph is None:
            self._given = x.clone(), y.clone(), u.clone()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._made = super()._learn_batch(*self._given, rate)
            self._graph = graph
        for held, new in zip(self._given, (x, y, u), strict=True):
            held.copy_(new)
        self._graph.replay()
        figures, disagree, suspected = self._made
        return figures.clone(), disagree.clone(), suspected.clone()


@contextmanager
def tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _within(way: str, device: str) -> AbstractContextManager[object]:
    if way == "tf32":
        return tf32()
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16) if way == "bf16" else nullcontext()


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
    with seeded(0, device), _within(way, device):
        kind = Captured if way == "graph" else GANTrainer
        pixels = to_tensor(images, device)
        trainer = kind(settings, image_shape(images), 10, pixels)
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
    ways = ["plain", *(["tf32", "graph"] if on_gpu else []), "bf16", "compiled"]
    print(
        f"\n{NETWORK} on {device}\n{'way':<10} {'s an epoch':>11} {'times as fast':>14} {'accuracy, %':>12}"
    )
    plain = 0.0
    for way in ways:
        seconds, accuracy = _run(way, fashion, device)
        plain = plain or seconds
        print(f"{way:<10} {seconds:>11.3f} {plain / seconds:>14.2f} {100 * accuracy:>9.1f}", flush=True)

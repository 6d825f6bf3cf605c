"""Teaching on two nodes of a cluster of one core each, beside one such node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from ray_nodes import ray_nodes, short_folder

TOKEN = "b" * 64
ROUNDS, PARTIES, RECORDS = 8, 192, 200

STUDY = """
[study]
seed = 1
[data.glyph]
classes = 5
private = PRIVATE
public = 100
[privacy]
allow_weak = true
[parties]
num_clients = PARTIES
[teacher]
name = "small-cnn"
epochs = 60
[aggregation]
aggregator = "gnmax"
sigma2 = 2.0
[queries]
labels = 10
max_queries = 20
[student]
name = "supervised"
epochs = 1
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


def _teach(folder: Path, name: str, address: str, environment: dict[str, str]) -> tuple[float, list[int]]:
    command = [str(Path(sys.executable).parent / "flower-simulation"), "--config", str(folder / "study.toml")]
    subprocess.run(
        [*command, "--run-dir", name, "--device", "cpu", "--ray-address", address, "--quiet"],
        cwd=folder,
        env={**environment, "PATE_FED_CACHE": str(folder / "cache")},
        check=True,
        capture_output=True,
    )
    metrics = json.loads((folder / name / "metrics.json").read_text(encoding="utf-8"))
    with np.load(folder / name / "labels.npz") as held:
        return float(metrics["seconds"]["teach"]), held["label"].tolist()


@pytest.mark.benchmark
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two nodes need two cores")
def test_teaching_on_one_node_and_on_two(folder: Path) -> None:
    """By turns, each time in a cluster of its own; a machine that others use has other seconds each time."""
    study = STUDY.replace("PARTIES", str(PARTIES)).replace("PRIVATE", str(RECORDS * PARTIES))
    (folder / "study.toml").write_text(study, encoding="utf-8")
    seconds: dict[int, list[float]] = {1: [], 2: []}
    labels: list[list[int]] = []
    for number in range(ROUNDS):
        for count, found in seconds.items():
            name = f"{count}-{number}"
            with ray_nodes(folder / f"n{name}", count, token=TOKEN) as cluster:
                taught, given = _teach(folder, f"run-{name}", cluster.address, cluster.environment)
            found.append(taught)
            labels.append(given)
    pairs = [one / two for one, two in zip(*seconds.values(), strict=True)]
    one, two = map(median, seconds.values())
    print(f"\nteaching {PARTIES} small CNNs, medians of {ROUNDS}: one node {one:.1f} s, two {two:.1f} s")
    print(f"pair by pair {min(pairs):.2f} to {max(pairs):.2f} times, median {median(pairs):.2f}")
    assert labels == labels[:1] * len(labels)

"""Teaching on two nodes of a cluster of one core each, beside one such node; `-k 384` is the larger study."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ray_nodes import ray_nodes, short_folder

TOKEN = "b" * 64
ROUNDS, RECORDS = 1, 200

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
@pytest.mark.parametrize("parties", [128, 384])
def test_teaching_on_one_node_and_on_two(parties: int, folder: Path) -> None:
    """What a node does once, as to load PyTorch and draw the data, is in these seconds."""
    study = STUDY.replace("PARTIES", str(parties)).replace("PRIVATE", str(RECORDS * parties))
    (folder / "study.toml").write_text(study, encoding="utf-8")
    seconds: dict[int, list[float]] = {1: [], 2: []}
    labels: list[list[int]] = []
    for count in seconds:
        with ray_nodes(folder / f"n{count}", count, token=TOKEN) as cluster:
            for number in range(ROUNDS):
                name = f"run-{count}-{number}"
                found, given = _teach(folder, name, cluster.address, cluster.environment)
                seconds[count].append(found)
                labels.append(given)
    one, two = min(seconds[1]), min(seconds[2])
    print(f"\nteaching {parties} small CNNs: one node {one:.1f} s, two {two:.1f} s, ratio {one / two:.2f}")
    print(
        "all rounds: "
        + ", ".join(f"{n}: {[round(each, 1) for each in found]}" for n, found in seconds.items())
    )
    assert labels == labels[:1] * len(labels)

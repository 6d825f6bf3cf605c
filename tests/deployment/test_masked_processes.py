"""A study under masks with real processes: each message meets a hospital that knows only its own disk."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

STUDY = """
[study]
name = "four"
seed = 5
[parties]
num_clients = 4
[data.glyph]
classes = 3
private = 200
public = 80
[teacher]
epochs = 1
[aggregation]
aggregator = "gnmax"
sigma2 = 2.0
[queries]
labels = 40
evaluate = false
[secrecy]
secure_sum = true
[student]
name = "supervised"
epochs = 1
[engine]
device = "cpu"
"""


def _labels(run_dir: Path) -> dict[str, np.ndarray]:
    with np.load(run_dir / "labels.npz") as file:
        return {name: file[name] for name in ("index", "answered", "label")}


@pytest.mark.slow
def test_four_hospitals_sum_under_masks_as_the_simulation_does(rehearsal: Any) -> None:
    folder = rehearsal.folder
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    simulation = ("-m", "pate_fed.simulation", "--config", "study.toml", "--backend", "inline")
    rehearsal.start("simulation", *simulation, "--run-dir", "simulated").wait()
    server = rehearsal.server("--num-hospitals", "4", "--insecure")
    options = ("--config", "study.toml", "--insecure")
    hospitals = [rehearsal.hospital(f"h{i}", f"part:{i}", *options) for i in range(4)]
    assert server.wait() == 0, server.text
    assert [party.wait(30) for party in hospitals] == [0, 0, 0, 0]
    for party in hospitals:
        assert "voted under masks on 72 public inputs" in party.text
        log = (folder / f"hospital-{party.name}" / "log.jsonl").read_text(encoding="utf-8")
        assert log.count('"event": "handled"') == 6  # the terms, four steps of the sum, the end
        store = folder / f"hospital-{party.name}" / "secure_sum"
        assert stat.S_IMODE(store.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in store.iterdir()} == {0o600}
        key = (store / "identity.key").read_bytes()
        for path in (path for path in folder.rglob("*") if path.is_file() and path.parent != store):
            assert key not in path.read_bytes()
    for name, column in _labels(folder / "simulated").items():
        np.testing.assert_array_equal(_labels(folder / "run")[name], column)
    metrics = json.loads((folder / "run" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["privacy"]["coordinator"]["epsilon"] is None
    assert "masks hide each hospital's own votes" in metrics["privacy"]["coordinator"]["sees"]

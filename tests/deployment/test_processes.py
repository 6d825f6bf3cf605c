"""A study with real processes: one coordinator, hospitals, any order of starting."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import PLAIN_POLICY

from pate_fed.server import main as server_main
from pate_fed.simulation import main as simulation_main

NAMES = ("north", "east", "west")
STUDY = """
[study]
name = "three"
seed = 5
[privacy]
allow_weak = true
[parties]
num_clients = 3
teachers_per_client = 2
quorum = 0.6
[data.glyph]
classes = 3
private = 400
public = 120
[teacher]
epochs = 3
[aggregation]
aggregator = "gnmax"
sigma2 = 2.0
[queries]
labels = 60
evaluate = false
[student]
name = "supervised"
epochs = 2
[engine]
device = "cpu"
"""


def _labels(run_dir: Path) -> dict[str, np.ndarray]:
    with np.load(run_dir / "labels.npz") as file:
        return {name: file[name] for name in ("index", "answered", "label")}


@pytest.fixture
def simulate(rehearsal: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The same study simulated in this process, which has the libraries loaded."""
    monkeypatch.setenv("PATE_FED_SITE", "")  # the command sets it; the fixture takes it away again
    monkeypatch.setenv("PATE_FED_CACHE", str(rehearsal.cache))
    folder = rehearsal.folder
    study = ["--config", str(folder / "study.toml"), "--backend", "inline", "--quiet"]

    def simulate() -> None:
        assert simulation_main([*study, "--run-dir", str(folder / "simulated")]) == 0

    return simulate


Simulate = Callable[[], None]


@pytest.mark.processes
def test_hospitals_with_their_own_files_end_as_the_simulation_does(
    rehearsal: Any, simulate: Simulate
) -> None:
    """Two of them: one that waits for the coordinator, one that comes later."""
    folder, names = rehearsal.folder, NAMES[:2]
    (folder / "study.toml").write_text(rehearsal.write_tables(private=True, names=names), encoding="utf-8")
    (folder / "policy.toml").write_text(PLAIN_POLICY + "most_queries_a_day = 60\n", encoding="utf-8")
    files = {name: f"{name}.csv" for name in names}
    _compare(rehearsal, simulate, files, options=("--policy", "policy.toml"), queries=(30, 30))


@pytest.mark.slow
def test_a_rehearsal_with_images_ends_as_the_simulation_does(rehearsal: Any, simulate: Simulate) -> None:
    (rehearsal.folder / "study.toml").write_text(STUDY, encoding="utf-8")
    data = {name: f"part:{number}" for number, name in enumerate(NAMES)}
    _compare(rehearsal, simulate, data, options=("--config", "study.toml"), queries=(108,))


def _compare(
    rehearsal: Any,
    simulate: Simulate,
    data: dict[str, str],
    *,
    options: tuple[str, ...],
    queries: tuple[int, ...],
) -> None:
    """Any order of starting, an outcome line each, nothing left, and the simulation's labels and student."""
    folder = rehearsal.folder
    before = {path.name for path in folder.iterdir()}
    if "--config" in options:
        simulate()  # it draws the images that all share
    options = (*options, "--insecure")
    first, *later = data
    hospitals = [rehearsal.hospital(first, data[first], *options)]
    server = rehearsal.server("--num-hospitals", str(len(data)), "--insecure")
    hospitals += [rehearsal.hospital(name, data[name], *options) for name in later]
    if "--config" not in options:
        simulate()  # while the others come together
    if len(queries) > 1:  # forests: between two batches a hospital has loaded all that it needs
        hospitals[0].wait_for("answered: ")
        maps = Path(f"/proc/{hospitals[0].process.pid}/maps")
        assert not maps.exists() or "libtorch" not in maps.read_text(encoding="utf-8")
    assert server.wait() == 0, server.text
    assert [party.wait(90) for party in hospitals] == [0] * len(data)

    assert f"waiting for hospitals: {len(data)} of {len(data)} connected" in server.text
    assert server.last_line.startswith("SUCCESS  ε=")
    for party in hospitals:
        assert party.last_line.startswith(f"SUCCESS  hospital={party.name} ε="), party.text
        found = re.findall(r"answered: (\d+) rows", party.text)
        assert found == [str(count) for count in queries]
        events = (folder / f"hospital-{party.name}" / "log.jsonl").read_text(encoding="utf-8").splitlines()
        handled = [event for event in map(json.loads, events) if event["event"] == "handled"]
        assert len(handled) == len(queries) + 2 <= 6  # the terms with the pool, each batch, the end
    end = time.monotonic() + 30
    while rehearsal.running() and time.monotonic() < end:
        time.sleep(0.05)
    assert rehearsal.running() == []
    left = {path.name for path in folder.iterdir()} - before
    states = {f"hospital-{party.name}" for party in hospitals}
    outputs = {f"{party.name}.out" for party in (server, *hospitals)}
    if "--config" not in options:  # real records: each hospital has its account
        states.add("state")
    assert left == {"run", "simulated"} | states | outputs
    assert not [*folder.rglob("executor.secret")] and (folder / "run" / "flower" / "superlink.log").exists()
    assert not (folder / "home").exists()

    for name, column in _labels(folder / "simulated").items():
        np.testing.assert_array_equal(_labels(folder / "run")[name], column)
    results = [json.loads((folder / run / "metrics.json").read_text()) for run in ("run", "simulated")]
    assert results[0]["accuracy"] == results[1]["accuracy"]
    if "--config" not in options:  # a pool of one's own: every row of it tests the student
        assert results[0]["accuracy"]["student_n"] == 80
    assert results[0]["privacy"]["student"] == results[1]["privacy"]["student"]


def test_where_nobody_comes_the_wait_is_all(
    rehearsal: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATE_FED_SITE", "")
    study = rehearsal.folder / "study.toml"
    study.write_text(rehearsal.write_tables(private=False), encoding="utf-8")
    command = ["--config", str(study), "--address", rehearsal.address, "--insecure", "--wait", "0.2"]
    begun = time.monotonic()
    assert server_main([*command, "--run-dir", str(rehearsal.folder / "run")]) == 4
    assert time.monotonic() - begun < 90  # it waited two minutes more
    assert "none of 3 hospitals is connected; --wait" in capfd.readouterr().err

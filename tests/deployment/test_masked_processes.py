"""A study under masks with real processes: each message meets a hospital that knows only its own disk."""

from __future__ import annotations

import json
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vote_study import make_vote_study

from pate_fed.cli.demo import HOSPITALS, make_identities
from pate_fed.identity import sum_fingerprint
from pate_fed.privacy import verify

STUDY = """
[study]
name = "four"
seed = 5
[privacy]
allow_weak = true
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
    assert [party.wait(90) for party in hospitals] == [0, 0, 0, 0]
    for party in hospitals:
        assert "answered under masks: 72 rows" in party.text
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


# A hospital's own program, but for what it seals for the first two of the others.
LIAR = """
import sys
from dataclasses import replace
from pate_fed.secure_sum import dealing
honest = dealing.deal
def lie(seat, opening):
    kept, dealt = honest(seat, opening)
    sealed = bytearray(dealt.sealed)
    for other in [each for each in seat.near if each != seat.position][:2]:
        sealed[dealing.SEALED_BYTES * other] ^= 1
    return kept, replace(dealt, sealed=bytes(sealed))
dealing.deal = lie
from pate_fed.client import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_hospital_that_lies_to_two_others_is_named_and_the_rest_finish(rehearsal: Any) -> None:
    folder = rehearsal.folder
    study = STUDY.replace("num_clients = 4", "num_clients = 5\nquorum = 0.8")
    study = study.replace("labels = 40", "labels = 40\nbatch_size = 20")
    (folder / "study.toml").write_text(study, encoding="utf-8")
    server = rehearsal.server("--num-hospitals", "5", "--insecure")
    options = ("--config", "study.toml", "--insecure")
    honest = [rehearsal.hospital(f"h{i}", f"part:{i}", *options) for i in (0, 1, 3, 4)]
    base = ("--hospital", "h2", "--data", "part:2", "--server", rehearsal.address)
    liar = rehearsal.start("h2", "-c", LIAR, *base, *options)
    assert server.wait(400) == 0, server.text + liar.text
    assert [party.wait(90) for party in (*honest, liar)] == [0] * 5
    lines = (folder / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    out = [(event["party"], event["reason"]) for event in events if event["event"] == "left_out"]
    assert {party for party, _ in out} == {"h2"}
    assert any("sealed shares for" in reason and "that do not open" in reason for _, reason in out)
    assert {event["clients"] for event in events if event["event"] == "vote"} == {4}
    for party in honest:
        log = (folder / f"hospital-{party.name}" / "log.jsonl").read_text(encoding="utf-8")
        assert '"event": "shown wrong", "hospitals": "h2"' in log
    entries = verify(folder / "run" / "ledger.sqlite").chain.entries
    assert sum(entry.event.answered for entry in entries) == 40  # nothing was charged for what the lie cost
    assert len(_labels(folder / "run")["index"]) == 40


@pytest.mark.slow
def test_admitted_hospitals_sum_on_after_their_coordinators_death(rehearsal: Any) -> None:
    """TLS, keys of the admission, a policy that trusts only known fingerprints, and a kill amid a batch."""
    folder = rehearsal.folder
    make_vote_study(folder)
    study = (folder / "study.toml").read_text(encoding="utf-8")
    study = study.replace("labels = 170", "labels = 170\nbatch_size = 60").replace("epsilon = 3.0\n", "")
    (folder / "study.toml").write_text(study + "\n[secrecy]\nsecure_sum = true\n", encoding="utf-8")
    for made in [folder / "authority", *(folder / f"identity-{name}" for name in HOSPITALS)]:
        shutil.rmtree(made)
    make_identities(folder, policy="every_signature = true\nleast_hospitals = 3\nleast_confirmed = 3\n")
    prints = {name: sum_fingerprint(folder / f"identity-{name}") for name in HOSPITALS}
    hospitals = []
    for name in HOSPITALS:
        base = ("-m", "pate_fed.client", "--hospital", name, "--data", f"{name}.csv")
        options = ("--tls-dir", f"identity-{name}")
        hospitals.append(rehearsal.start(name, *base, *options))
    command = (
        "-m",
        "pate_fed.server",
        "--config",
        "study.toml",
        "--tls-dir",
        "authority",
        "--run-dir",
        "run",
    )
    server = rehearsal.start("server", *command)
    hospitals[0].wait_for("answered under masks: 60 rows", 200)
    server.process.kill()
    server.process.wait()
    time.sleep(2)  # its SuperLink notices, and frees the port
    again = rehearsal.start("again", *command)
    assert again.wait(400) == 0, again.text + hospitals[0].text
    assert [party.wait(60) for party in hospitals] == [0, 0, 0, 0]
    for party in hospitals:
        name = party.name
        store = rehearsal.state_of(name) / "secure_sum"
        roster = (store / "roster.txt").read_text(encoding="utf-8")
        assert all(print_ in roster for print_ in prints.values())
        assert not (store / "identity.key").exists()
    entries = verify(folder / "run" / "ledger.sqlite").chain.entries
    assert [entry.event.answered for entry in entries[:2]] in ([0, 60], [60, 60])  # void, or just released
    with np.load(folder / "run" / "labels.npz") as labels:
        assert len(np.unique(labels["index"])) == len(labels["index"])
    assert not (folder / "run" / "private").exists()

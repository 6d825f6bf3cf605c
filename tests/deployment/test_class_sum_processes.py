"""Class sums with real processes: admitted hospitals with their own noise, and a killed coordinator."""

from __future__ import annotations

import json
import signal
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from watched import WATCHED, kill

from pate_fed.cli.demo import HOSPITALS, make_identities
from pate_fed.learning.students.class_sums import SumsStudent
from pate_fed.privacy.ledger.report import verify_run

STUDY = """
[study]
name = "sums"
[parties]
num_clients = 4
[data]
dataset = "table"
pool = "pool.csv"
num_queries = 60
[data.table]
label = "ill"
classes = ["no", "yes"]
patient = "patient"
[data.table.columns]
age = "number"
dose = "number"
sex = ["f", "m"]
[aggregation]
aggregator = "class-sums"
[sums.cuts]
age = [20, 40, 60, 90]
dose = [-2, -1, 0, 1, 2]
[privacy]
epsilon = 3.0
[secrecy]
secure_sum = true
noise_at = "hospitals"
"""
ASKED = 60

pytestmark = pytest.mark.slow


class Study:
    """Four admitted hospitals with the default policy, and their coordinator."""

    def __init__(self, rehearsal: Any, *, joined: int = len(HOSPITALS)) -> None:
        self.rehearsal, self.folder = rehearsal, rehearsal.folder
        rehearsal.write_tables(private=False, names=HOSPITALS)
        (self.folder / "study.toml").write_text(STUDY, encoding="utf-8")
        make_identities(self.folder)
        self.hospitals = [self.join(name) for name in HOSPITALS[:joined]]

    def join(self, name: str) -> Any:
        """Start a hospital."""
        options = ("--hospital", name, "--data", f"{name}.csv", "--tls-dir", f"identity-{name}")
        return self.rehearsal.start(name, "-m", "pate_fed.client", *options)

    def coordinator(self, *, hold: str | None = None) -> Any:
        """Start it; with `hold` it stays at that moment until it is killed."""
        options = ("--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
        if hold is None:
            return self.rehearsal.start("server", "-m", "pate_fed.server", *options)
        moments = str(self.folder / "moments")
        return self.rehearsal.start("server", "-c", WATCHED, *options, f"{hold}|1", moments)

    def kill_at(self, moment: str) -> None:
        """Start a coordinator, and kill it there."""
        party, end = self.coordinator(hold=moment), time.monotonic() + 200
        moments = self.folder / "moments"
        while f"{party.process.pid} {moment}\n" not in (moments.read_text() if moments.exists() else ""):
            assert party.process.poll() is None and time.monotonic() < end, party.text
            time.sleep(0.05)
        kill(party, alone=False)

    def check(self) -> Any:
        """What holds after a success; the metrics."""
        report = verify_run(self.folder / "run")
        [entry] = report.chain.entries
        assert (entry.event.asked, entry.event.answered) == (ASKED, ASKED)
        assert entry.event.mechanism.name == "class-sums-shares"
        assert not (self.folder / "run" / "private").exists()
        for party in self.hospitals:
            assert party.wait(60) == 0, party.text
            assert party.text.count("class sums given, under masks") == 1
            assert " sums=1 " in party.last_line
            log = self._log(party.name)
            assert [event["event"] for event in log].count("summed") == 1
            assert not [event for event in log if event["event"] in ("refused", "fault")]
            assert not (self.rehearsal.state_of(party.name) / "answer.npz").exists()
        student = SumsStudent.load(self.folder / "run" / "student.npz")
        assert student.class_names == ("no", "yes")
        return json.loads((self.folder / "run" / "metrics.json").read_text(encoding="utf-8"))

    def _log(self, name: str) -> list[Any]:
        lines = (self.rehearsal.state_of(name) / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


def test_four_hospitals_sum_with_masks_and_their_own_noise(rehearsal: Any) -> None:
    study = Study(rehearsal)
    server = study.coordinator()
    assert server.wait() == 0, server.text + study.hospitals[0].text
    privacy = study.check()["privacy"]
    assert 2.9 < privacy["student"]["data_independent"] <= 3
    assert privacy["coordinator"]["epsilon"] == privacy["student"]["data_independent"]
    assert "guaranteed: ε=3 at δ=1e-5 for one record replaced" in server.text
    with np.load(study.folder / "run" / "labels.npz") as labels:
        assert labels["answered"].all() and len(labels["label"]) == ASKED
    for name in HOSPITALS:
        state = rehearsal.state_of(name)
        assert stat.S_IMODE((state / "features.bin").stat().st_mode) == 0o600
    predicted = rehearsal.start("predict", "-m", "pate_fed.cli", "predict", "run/student.npz", "north.csv")
    assert predicted.wait() == 0 and predicted.text.count("class ") == 90, predicted.text


def test_a_coordinator_that_is_killed_before_and_after_the_row_goes_on(rehearsal: Any) -> None:
    study = Study(rehearsal)
    for moment in ("before the row", "after the row"):
        study.kill_at(moment)
    last = study.coordinator()
    assert last.wait(300) == 0, last.text
    assert study.check()["status"] == "success"


def test_hospitals_wait_for_a_coordinator_that_was_interrupted(rehearsal: Any) -> None:
    study = Study(rehearsal, joined=3)
    first = study.coordinator()
    first.wait_for("3 of 4 connected")
    first.process.send_signal(signal.SIGINT)
    assert first.wait(60) == 130 and "the hospitals wait" in first.text, first.text
    for party in study.hospitals:
        party.wait_for("the coordinator was interrupted and may go on", 30)
    study.hospitals.append(study.join(HOSPITALS[3]))
    assert study.coordinator().wait(300) == 0
    assert study.check()["status"] == "success"


def test_hospitals_that_were_not_asked_for_exact_sums_refuse_them(rehearsal: Any) -> None:
    """Their default policy allows sums with their own noise alone; one that says no gives none at all."""
    folder: Path = rehearsal.folder
    rehearsal.write_tables(private=False, names=HOSPITALS)
    (folder / "study.toml").write_text(STUDY.replace('noise_at = "hospitals"\n', ""), encoding="utf-8")
    make_identities(folder)
    base = ("-m", "pate_fed.client", "--hospital", "north", "--data", "north.csv")
    north = rehearsal.start("north", *base, "--tls-dir", "identity-north")
    server = ("-m", "pate_fed.server", "--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
    coordinator = rehearsal.start("server", *server, "--wait", "20")
    assert coordinator.wait() == 4, coordinator.text
    assert north.wait(60) == 5, north.text
    assert 'class_sums = "exact"' in north.text

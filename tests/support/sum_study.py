"""Class sums with real processes: four admitted hospitals with the default policy, and their coordinator."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

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


class SumStudy:
    """Four admitted hospitals, that have confirmed each other, with the default policy, and a coordinator.

    `policy` is what each hospital's policy says beside the default, `environment` all processes' own.
    """

    text, policy, run_dir = STUDY, "", "run"
    environment: Mapping[str, str] = {}

    def __init__(self, rehearsal: Any, *, joined: int = len(HOSPITALS), text: str = "") -> None:
        self.rehearsal, self.folder = rehearsal, rehearsal.folder
        rehearsal.write_tables(private=False, names=HOSPITALS)
        (self.folder / "study.toml").write_text(text or self.text, encoding="utf-8")
        make_identities(self.folder, policy=self.policy)
        self.hospitals = [self.join(name) for name in HOSPITALS[:joined]]

    def join(self, name: str, *more: str) -> Any:
        """Start a hospital."""
        options = ("--hospital", name, "--data", f"{name}.csv", "--tls-dir", f"identity-{name}", *more)
        return self.rehearsal.start(name, "-m", "pate_fed.client", *options, **self.environment)

    def coordinator(self, *, hold: str | None = None) -> Any:
        """Start it; with `hold` it stays at that moment until it is killed."""
        options = ("--config", "study.toml", "--tls-dir", "authority", "--run-dir", self.run_dir)
        if hold is None:
            return self.rehearsal.start("server", "-m", "pate_fed.server", *options, **self.environment)
        moments = str(self.folder / "moments")
        return self.rehearsal.start("server", "-c", WATCHED, *options, hold, moments, **self.environment)

    def kill_at(self, moment: str) -> None:
        """Start a coordinator, and kill it there."""
        kill(self.hold_at(moment), alone=False)

    def hold_at(self, moment: str, nth: int = 1) -> Any:
        """Start a coordinator that comes to that moment for the n-th time, and stays there."""
        (self.folder / "moments.over").unlink(missing_ok=True)
        party, end = self.coordinator(hold=f"{moment}|{nth}"), time.monotonic() + 400
        moments = self.folder / "moments"
        line = f"{party.process.pid} {moment}\n"
        while (moments.read_text() if moments.exists() else "").count(line) < nth:
            assert party.process.poll() is None and time.monotonic() < end, party.text
            time.sleep(0.05)
        return party

    def go_on(self) -> None:
        """Let the coordinator that stays at a moment go on."""
        (self.folder / "moments.over").touch()

    def check(self, *, faults: int = 0) -> Any:
        """What holds after a success, with so many answers that failed at hospitals; the metrics."""
        report = verify_run(self.folder / self.run_dir)
        [entry] = report.chain.entries
        assert (entry.event.asked, entry.event.answered) == (ASKED, ASKED)
        assert entry.event.mechanism.name == "class-sums-shares"
        assert not (self.folder / self.run_dir / "private").exists()
        for party in self.hospitals:
            assert party.wait(60) == 0, party.text
            assert party.text.count("answered under masks: ") == 1
            [rows] = re.findall(r"answered under masks: (\d+) rows", party.text)
            assert f" answered={rows} " in party.last_line
            log = self.log(party.name)
            assert [event["event"] for event in log].count("answered") == 1
            faults -= [event["event"] for event in log].count("refused")
            assert not (self.rehearsal.state_of(party.name) / "answer.npz").exists()
        assert faults == 0
        student = SumsStudent.load(self.folder / self.run_dir / "student.npz")
        assert student.class_names == ("no", "yes")
        return json.loads((self.folder / self.run_dir / "metrics.json").read_text(encoding="utf-8"))

    def log(self, name: str) -> list[Any]:
        """A hospital's own log."""
        lines = (self.rehearsal.state_of(name) / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

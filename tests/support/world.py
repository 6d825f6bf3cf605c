"""A study's run directory and its parties' disks, which outlive every coordinator that dies."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from clients.app import app as app_of_hospitals
from clients.site import simulated_site
from pate_fed.config.study import Study
from pate_fed.errors import PateFedError
from pate_fed.flower.inline import run_inline
from pate_fed.privacy import verify
from server.app import Coordinator


class World:
    """A study's run directory and its parties' disks, which outlive every coordinator."""

    def __init__(self, study: Study, folder: Path, patch: pytest.MonkeyPatch, *, real: bool = False) -> None:
        self.study, self.run_dir, self.parties = study, folder / "run", folder / "parties"
        self.parties.mkdir()
        (self.parties / "study.toml").write_text(study.to_toml(), encoding="utf-8")
        site = {"study": str(self.parties / "study.toml"), "state_dir": str(self.parties)}
        (self.parties / "site.json").write_text(json.dumps(site), encoding="utf-8")
        patch.setenv("PATE_FED_SITE", str(self.parties / "site.json"))
        if real:  # as careful as hospitals that are no simulation
            careful = lambda *found: replace(simulated_site(*found), simulated=False)  # noqa: E731
            patch.setattr("clients.local.simulated_site", careful)

    def run(self, *, resume: bool, broken: bool = False, hospitals: int | None = None) -> int:
        coordinator = Coordinator(
            self.study,
            run_dir=self.run_dir,
            quiet=True,
            stop=threading.Event(),
            started=time.perf_counter(),
            resume=resume,
        )

        def start(app: Any) -> None:
            if broken:
                raise PateFedError("Flower's SuperLink did not start")
            count = self.study.parties.num_clients if hospitals is None else hospitals
            run_inline(app, app_of_hospitals, num_nodes=count)
            while coordinator.lost is not None:  # as a host does, who makes the link again
                run_inline(app, app_of_hospitals, num_nodes=count)

        coordinator.run(start)
        return coordinator.conclude(as_json=False)

    def events(self, name: str) -> list[dict[str, Any]]:
        logs = [path.read_text(encoding="utf-8").splitlines() for path in self.parties.glob("*/log.jsonl")]
        return [event for log in logs for event in map(json.loads, log) if event["event"] == name]

    def check(self, *, refused: int = 0) -> list[Any]:
        """What holds after every end that is a success, with so many refusals; the ledger's entries."""
        entries = list(verify(self.run_dir / "ledger.sqlite").chain.entries)
        assert len({entry.batch_digest for entry in entries}) == len(entries)
        with np.load(self.run_dir / "labels.npz") as labels:
            index = labels["index"]
        assert len(np.unique(index)) == len(index)
        log = (self.run_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()
        told = [event["asked"] for event in map(json.loads, log) if event["event"] == "release"]
        assert told == [entry.event.asked for entry in entries]
        assert len(self.events("refused")) == refused
        parties = self.study.parties
        assert len(self.events("taught")) == (0 if self.study.aggregation.sums else parties.num_teachers)
        assert not (self.run_dir / "private").exists()
        return entries

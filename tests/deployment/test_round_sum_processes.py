"""Sums in rounds with real processes: ten rounds over TLS, and a coordinator that is killed between two."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from sum_study import ASKED, STUDY, SumStudy

from pate_fed.privacy.ledger import verify_independent
from pate_fed.privacy.ledger.report import verify_run

pytestmark = pytest.mark.slow
ROUNDS = 10
IN_ROUNDS = STUDY.replace("[sums.cuts]", f"[sums]\nrounds = {ROUNDS}\n[sums.cuts]")


class RoundsStudy(SumStudy):
    """Four admitted hospitals, each asked eleven times."""

    text = IN_ROUNDS

    def check(self, *, faults: int = 0) -> Any:
        """Every round's row, and of each hospital an answer a round."""
        report = verify_run(self.folder / "run")
        counts = [(entry.event.asked, entry.event.answered) for entry in report.chain.entries]
        assert counts == [(ASKED, 0)] * ROUNDS + [(ASKED, ASKED)]
        assert report.chain.entries[-1].event.mechanism.name == "sums-in-rounds-shares"
        assert len(verify_independent.verify(self.folder / "run")) == 3
        for party in self.hospitals:
            assert party.wait(60) == 0, party.text
            assert [event["event"] for event in self.log(party.name)].count("answered") == 1 + ROUNDS
        return json.loads((self.folder / "run" / "metrics.json").read_text(encoding="utf-8"))


def test_ten_rounds_over_tls_are_one_study_with_one_epsilon(rehearsal: Any) -> None:
    study = RoundsStudy(rehearsal)
    server = study.coordinator()
    assert server.wait(300) == 0, server.text + study.hospitals[0].text
    metrics = study.check()
    assert metrics["privacy"]["coordinator"]["epsilon"] == metrics["privacy"]["student"]["data_independent"]
    assert 2.999 < metrics["privacy"]["student"]["data_independent"] <= 3
    asked = metrics["seconds"]["vote"]
    print(f"{1 + ROUNDS} questions took {asked:.1f} s", file=sys.stderr)


def test_a_coordinator_that_is_killed_between_rounds_goes_on_with_the_next(rehearsal: Any) -> None:
    study = RoundsStudy(rehearsal)
    study.kill_at("after the row")
    [first] = verify_run(study.folder / "run").chain.entries
    study.kill_at("before the row")
    last = study.coordinator()
    assert last.wait(300) == 0, last.text
    assert study.check()["status"] == "success"
    assert verify_run(study.folder / "run").chain.entries[0] == first

"""A kind of question of one's own with real processes: agreed to, refused, killed and gone on with, shown."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sum_study import STUDY, SumStudy
from watched import kill

from pate_fed.cli.demo import HOSPITALS
from pate_fed.privacy import Ledger

ROOT = Path(__file__).resolve().parents[2]
NAME = "own_kind:Median"
ASKS = f"""
[aggregation]
kind = "{NAME}"
[aggregation.parameters]
low = 20.0
high = 90.0
scale = 2.0
"""
AS_SUMS = STUDY[STUDY.index("[aggregation]") : STUDY.index("[privacy]")]


class OwnKindStudy(SumStudy):
    """The example's median of an age at four hospitals whose policy lists it, noise at each of them."""

    text = STUDY.replace(AS_SUMS, ASKS)
    policy = f'kinds = ["{NAME}"]\n'
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples")])}  # noqa: RUF012

    def command(self, *words: str, installed: bool = True) -> Any:
        """A command of ours on its run, on a machine that has the kind's code, or has not."""
        return self.rehearsal.start(
            words[0], "-m", "pate_fed.cli", *words, **self.environment if installed else {}
        )


@pytest.mark.processes
def test_it_is_killed_between_its_questions_gone_on_with_verified_and_shown(rehearsal: Any) -> None:
    study = OwnKindStudy(rehearsal)
    kill(study.hold_at("after the row"), alone=False)
    [first] = Ledger.read(study.folder / "run").chain.entries
    server = study.coordinator()
    assert server.wait(300) == 0, server.text
    assert "guaranteed: ε=2.001 at δ=1e-5 for one patient replaced" in server.text
    report = Ledger.read(study.folder / "run")
    assert report.chain.entries[0] == first and [each.event.answered for each in report.chain.entries] == [
        1,
        1,
    ]
    for party in study.hospitals:
        assert party.wait(60) == 0, party.text
        assert [event["event"] for event in study.log(party.name)].count("answered") == 2

    [(low, high)] = re.findall(r"median of number 0 lies between ([\d.]+) and ([\d.]+),", server.text)
    texts = [(study.folder / f"{name}.csv").read_text(encoding="utf-8") for name in HOSPITALS]
    ages = [float(row["age"]) for text in texts for row in csv.DictReader(text.splitlines())]
    assert abs((float(low) + float(high)) / 2 - np.median(ages)) < 20  # years: 100 records, nine deviations
    page = (study.folder / "run" / "report.html").read_text(encoding="utf-8")
    assert f"lies between {low} and {high}" in page and NAME in page

    verified = study.command("ledger", "verify", "run", "--aggregator", NAME)
    assert verified.wait() == 0 and "NOT CHECKED" not in verified.text, verified.text
    for words in (("watch", "run"), ("report", "run")):  # they run nothing of its code
        shown = study.command(*words, installed=False)
        assert shown.wait() == 0, shown.text


@pytest.mark.processes
@pytest.mark.slow
def test_a_hospital_whose_policy_lists_no_kind_never_imports_it(rehearsal: Any) -> None:
    study = OwnKindStudy(rehearsal, joined=0)
    code = "import pathlib; pathlib.Path(__file__).with_name('imported').touch()\n"
    (folder := study.folder / "other").mkdir()
    example = (ROOT / "examples" / "own_kind.py").read_text(encoding="utf-8")
    (folder / "own_kind.py").write_text(example + code, encoding="utf-8")
    (study.folder / "identity-north" / "policy.toml").unlink()
    north = rehearsal.start(
        *("north", "-m", "pate_fed.client", "--hospital", "north", "--data", "north.csv"),
        *("--tls-dir", "identity-north"),
        PYTHONPATH=os.pathsep.join([str(ROOT), str(folder)]),
    )
    options = ("--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run", "--wait", "20")
    server = rehearsal.start("server", "-m", "pate_fed.server", *options, **study.environment)
    assert server.wait() == 4, server.text
    assert north.wait(60) == 5 and f"kinds = ['{NAME}']" in north.text, north.text
    assert not (folder / "imported").exists()
    log = (rehearsal.state_of("north") / "log.jsonl").read_text(encoding="utf-8")
    assert "POLICY_KIND" in [json.loads(line).get("reason") for line in log.splitlines()]

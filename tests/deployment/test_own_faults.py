"""A fault in a teacher's code at a hospital: told with its line to the hospital alone."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from builders import PLAIN_POLICY, SMALL_STUDY
from faulty_parts import FAULT, told

SUPPORT = Path(__file__).resolve().parents[1] / "support"
OPTIONS = ("--insecure", "--policy", "policy.toml", "--config", "study.toml")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("teacher", "fault"),
    [("Teacher", "odd"), pytest.param("network", "leaving", marks=pytest.mark.slow)],
)
def test_only_a_code_leaves_the_hospital_and_its_own_people_are_told(
    rehearsal: Any, teacher: str, fault: str
) -> None:
    """The teacher raises what no Exception is, or leaves: as data that cannot be used, and as a fault."""
    folder, names = rehearsal.folder, ("north", "east", "west")
    study = SMALL_STUDY.replace("num_clients = 6", "num_clients = 3").replace(
        "hog-linear", f"faulty_parts:{teacher}"
    )
    (folder / "study.toml").write_text(study.replace('backend = "inline"', ""), encoding="utf-8")
    policy = f'{PLAIN_POLICY}teachers = ["faulty_parts:{teacher}"]\n'
    (folder / "policy.toml").write_text(policy, encoding="utf-8")
    path = os.pathsep.join([str(SUPPORT.parents[1]), str(SUPPORT)])
    own = {"PYTHONPATH": path, FAULT: fault}
    base = ("-m", "pate_fed.server", "--config", "study.toml", "--address", rehearsal.address)
    server = rehearsal.start("server", *base, "--run-dir", "run", "--num-hospitals", "3", "--insecure", **own)
    hospitals = []
    for number, name in enumerate(names):
        given = ("--hospital", name, "--data", f"part:{number}", "--server", rehearsal.address, "--quiet")
        more = (
            "--insecure",
            "--policy",
            "policy.toml",
            "--config",
            "study.toml",
            "--state-dir",
            f"hospital-{name}",
        )
        hospitals.append(rehearsal.start(name, "-m", "pate_fed.client", *given, *more, **own))
    assert server.wait() == 4, server.text
    for party in hospitals:
        party.wait()
        assert party.text.count(told(fault)) == 1 and "Traceback" not in party.text, party.text
        log = folder / f"hospital-{party.name}" / "log.jsonl"
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        [event] = [each for each in events if "place" in each]
        assert told(fault) in event["sentence"] and "Traceback" in event["error"]
    everything = server.text.encode() + b"".join(
        each.read_bytes() for each in (folder / "run").rglob("*") if each.is_file()
    )
    code = b"a fault at the hospital" if teacher == "network" else b"the hospital's own data cannot be used"
    assert code in everything
    for words in ("support/faulty_parts.py", "Odd", "SystemExit", "no text"):
        assert words.encode() not in everything

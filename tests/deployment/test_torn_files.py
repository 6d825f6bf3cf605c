"""Files that a crash cut short or filled with zeroes, read by real processes as they start.

PATE_FED_TORN_STARTS=100 pytest -m slow -s tests/deployment/test_torn_files.py

PATE_FED_TRIED names a file of those that were tried: a run that was stopped goes on after them.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sum_study import SumStudy
from tried import Tried
from watched import kill

from pate_fed.cli.demo import HOSPITALS

STARTS = int(os.environ.get("PATE_FED_TORN_STARTS", "6"))
pytestmark = pytest.mark.slow


def _tear(path: Path, stream: random.Random) -> str:
    whole = path.read_bytes()
    at, zeroes = stream.randrange(len(whole)), stream.random() < 0.5
    path.write_bytes(whole[:at] + bytes(len(whole) - at) * zeroes)
    return f"{path.name} of {len(whole)} bytes {'zeroes' if zeroes else 'cut'} from {at}"


def _start(study: SumStudy, owner: str) -> Any:
    """A coordinator or a hospital alone: it reads what it has kept, and finds nobody."""
    if owner == "run":
        options = ("--config", "study.toml", "--tls-dir", "authority", "--run-dir", "run")
        options += ("--wait", "1", "--linger", "0")
        return study.rehearsal.start("torn", "-m", "pate_fed.server", *options)
    return study.join(owner, "--wait", "1")


def test_a_torn_file_is_a_sentence_at_the_start_and_put_back_the_study_goes_on(rehearsal: Any) -> None:
    """Amid a masked sum, when two of four vectors have come: one file a time of all that is kept."""
    study = SumStudy(rehearsal)
    kill(study.hold_at("after summing", 6), alone=False)
    for party in study.hospitals:
        kill(party, alone=False)
    owners = {"run": study.folder / "run", **{name: rehearsal.state_of(name) for name in HOSPITALS}}
    kept = study.folder / "kept"
    for owner, folder in owners.items():
        shutil.copytree(folder, kept / owner)
    files = sorted(path for path in kept.rglob("*") if path.is_file() and path.stat().st_size)
    tried = Tried("torn files at a start")
    for number in range(len(tried.rows), STARTS):
        stream = random.Random(f"torn {number}")
        torn = stream.choice(files).relative_to(kept)
        owner = torn.parts[0]
        shutil.rmtree(owners[owner])
        shutil.copytree(kept / owner, owners[owner])
        what = f"{number}: {owner}/{_tear(owners[owner].joinpath(*torn.parts[1:]), stream)}"
        party = _start(study, owner)
        code = party.wait(600)
        print(f"{what}: {code}", flush=True)
        ended = code in (2, 4, 6) or "error: the coordinator was out of reach for 1 s" in party.text
        assert ended and "Traceback" not in party.text, f"{what}\n{party.text}"
        tried.add(what=what, code=code)
        shutil.rmtree(owners[owner])
        shutil.copytree(kept / owner, owners[owner])
    print(f"{STARTS} torn, exit codes {Counter(row['code'] for row in tried.rows)}", flush=True)
    study.hospitals = [study.join(name) for name in HOSPITALS]
    last = study.coordinator()
    assert last.wait(600) == 0, last.text
    study.check()

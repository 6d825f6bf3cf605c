"""A small fault in the midst of a masked sum costs no ε: the same command goes on, and it is charged once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from full_disk import fill
from sum_study import ASKED, STUDY, SumStudy

from pate_fed.privacy import verify

pytestmark = pytest.mark.slow
MASKING = ("after summing", 6)  # four hospitals opened the sum, and two of four gave their masked vectors


def _children(party: Any, name: str) -> list[psutil.Process]:
    found = psutil.Process(party.process.pid).children(recursive=True)
    return [child for child in found if any(name in word for word in child.cmdline())]


@contextmanager
def _asleep(party: Any) -> Iterator[None]:
    """All processes of a command stand still, as with a laptop's lid closed."""
    whole = [party.process, *psutil.Process(party.process.pid).children(recursive=True)]
    for process in whole:
        process.send_signal(signal.SIGSTOP)
    yield
    for process in whole:
        process.send_signal(signal.SIGCONT)


def _end(study: SumStudy, first: Any) -> None:
    """Whether the coordinator got over it by itself or not, the same command ends with success."""
    if first.wait(400) != 0:
        assert "counts as spent" not in first.text and "FAILED  ε=0 " in first.text, first.text
        assert not verify(study.folder / "run" / "ledger.sqlite").chain.entries
        again = study.coordinator()
        assert again.wait(300) == 0, again.text


@pytest.mark.processes
def test_the_superlink_is_killed(rehearsal: Any) -> None:
    study = SumStudy(rehearsal)
    server = study.hold_at(*MASKING)
    [link, *_] = _children(server, "flower-superlink")
    link.kill()
    study.go_on()
    assert server.wait(200) != 0
    assert "the same command goes on with it" in server.text
    _end(study, server)
    study.check()


VOTES = STUDY.split("[aggregation]")[0].replace("num_clients = 4", "num_clients = 4\nteachers_per_client = 3")
VOTES += """
[teacher]
name = "random-forest"
trees = 5
[aggregation]
aggregator = "gnmax"
sigma2 = 20.0
[queries]
labels = 40
batch_size = 20
[privacy]
epsilon = 3.0
[secrecy]
secure_sum = true
[student]
name = "forest"
"""


def test_the_superlink_is_killed_amid_the_second_batch_of_votes(rehearsal: Any) -> None:
    study = SumStudy(rehearsal, text=VOTES)
    server = study.hold_at(MASKING[0], 16 + MASKING[1])
    [link, *_] = _children(server, "flower-superlink")
    link.kill()
    study.go_on()
    assert server.wait(200) != 0
    again = study.coordinator()
    assert again.wait(300) == 0, again.text
    entries = verify(study.folder / "run" / "ledger.sqlite").chain.entries
    assert [(entry.event.asked, entry.event.answered) for entry in entries] == [(20, 20), (20, 20)]
    assert [party.wait(60) for party in study.hospitals] == [0] * 4


def test_the_coordinator_sleeps_for_a_minute(rehearsal: Any) -> None:
    study = SumStudy(rehearsal)
    server = study.hold_at(*MASKING)
    with _asleep(server):
        study.go_on()
        time.sleep(60)
    _end(study, server)
    study.check()


def test_a_hospital_is_away_for_two_minutes(rehearsal: Any) -> None:
    study = SumStudy(rehearsal)
    server = study.hold_at("after summing", 1)
    with _asleep(study.hospitals[2]):
        study.go_on()
        time.sleep(120)
    _end(study, server)
    study.check()


@pytest.mark.parametrize("step", [2, 5, 9, 13])
def test_a_hospitals_disk_is_full_for_a_moment(step: int, rehearsal: Any, small_disk: Path) -> None:
    study = SumStudy(rehearsal, joined=3)
    state = small_disk / "west"
    study.hospitals.append(study.join("west", "--state-dir", str(state)))
    server = study.hold_at("after summing", step)
    fill(small_disk / "filler")
    study.go_on()
    code = server.wait(200)
    assert code == 4 or (step == 13 and code == 0), server.text  # its last reply may have been on its way
    (small_disk / "filler").unlink()
    _end(study, server)
    [entry] = verify(study.folder / "run" / "ledger.sqlite").chain.entries
    assert entry.event.answered == ASKED

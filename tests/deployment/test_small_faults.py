"""A small fault at any step of a masked sum costs no ε: the study goes on by itself, and is charged once.

    PATE_FED_ASLEEP=600 pytest -m slow -s tests/deployment/test_small_faults.py -k coordinator_sleeps

Without it the coordinator sleeps 150 s, longer than Flower and the hospitals take for a death.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from full_disk import fill
from sum_study import ASKED, STUDY, SumStudy

from pate_fed.privacy import verify
from pate_fed.protocol.messages import SumReply
from server.masked import ROUNDS

pytestmark = pytest.mark.slow
ASLEEP_S = float(os.environ.get("PATE_FED_ASLEEP", "150"))
# In the midst of it: before the roster is closed, and when two of four hospitals have replied to a step.
STEPS = {
    "keys": ("after teaching", 1),
    "shares": ("after summing", 2),
    "vectors": ("after summing", 6),
    "consents": ("after summing", 10),
    "unmasking": ("after summing", 14),
}
AGAIN = "the connection with the hospitals is lost, and made again"


def _family(party: Any) -> list[psutil.Process]:
    return [psutil.Process(party.process.pid), *psutil.Process(party.process.pid).children(recursive=True)]


def _superlink(party: Any) -> psutil.Process:
    [link, *_] = [
        each for each in _family(party) if any("flower-superlink" in word for word in each.cmdline())
    ]
    return link


@contextmanager
def _asleep(processes: list[psutil.Process]) -> Iterator[None]:
    """They stand still, as with a laptop's lid closed."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    yield
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it was given up meanwhile
            process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=pytest.mark.processes if step == "vectors" else ()) for step in STEPS]
)
def test_the_superlink_is_killed(step: str, rehearsal: Any) -> None:
    study = SumStudy(rehearsal)
    server = study.hold_at(*STEPS[step])
    _superlink(server).kill()
    study.go_on()
    assert server.wait(300) == 0, server.text
    assert AGAIN in server.text and "stopping" not in server.text
    study.check()


ASLEEP_AT = {"getting ready": ("after joining", 2), **STEPS, "end": ("before telling", 1)}


@pytest.mark.parametrize("step", ASLEEP_AT)
def test_the_coordinator_sleeps(step: str, rehearsal: Any) -> None:
    """The same question goes on, with all hospitals, and no step of it is answered in two ways."""
    study = SumStudy(rehearsal)
    server = study.hold_at(*ASLEEP_AT[step])
    note = study.folder / "run" / "private" / "batch.json"
    begun = json.loads(note.read_text(encoding="utf-8")) if note.exists() else None
    with _asleep(_family(server)):
        study.go_on()
        time.sleep(ASLEEP_S)
    began = time.monotonic()
    assert server.wait(300) == 0, server.text
    print(f"asleep for {ASLEEP_S:.0f} s, {step}: over {time.monotonic() - began:.0f} s later", flush=True)
    assert "stopping" not in server.text and "left out" not in server.text
    study.check()
    [entry] = verify(study.folder / "run" / "ledger.sqlite").chain.entries
    assert begun is None or entry.batch_digest == begun["digest"]
    for party in study.hospitals:
        handled = [event for event in study.log(party.name) if event["event"] == "handled"]
        steps = {event["sha256"] for event in handled if event["kind"] == SumReply.kind}
        assert len(steps) == ROUNDS


def test_the_superlink_alone_sleeps(rehearsal: Any) -> None:
    study = SumStudy(rehearsal)
    server = study.hold_at(*STEPS["vectors"])
    with _asleep([_superlink(server)]):
        study.go_on()
        server.wait_for(AGAIN, 120)
    assert server.wait(300) == 0, server.text
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
    name, nth = STEPS["vectors"]
    server = study.hold_at(name, 16 + nth)
    _superlink(server).kill()
    study.go_on()
    assert server.wait(300) == 0, server.text
    entries = verify(study.folder / "run" / "ledger.sqlite").chain.entries
    # The budget buys 34 queries: a patient that is replaced moves two votes of a hospital's teachers.
    assert [(entry.event.asked, entry.event.answered) for entry in entries] == [(20, 20), (14, 14)]
    assert [party.wait(60) for party in study.hospitals] == [0] * 4


def test_the_superlink_is_killed_once_all_is_released(rehearsal: Any) -> None:
    """The hospitals hear of the success over another one, with their receipts."""
    study = SumStudy(rehearsal)
    server = study.hold_at("before telling", 1)
    _superlink(server).kill()
    study.go_on()
    assert server.wait(300) == 0, server.text
    study.check()


def test_a_hospital_is_away_for_two_minutes(rehearsal: Any) -> None:
    study = SumStudy(rehearsal)
    server = study.hold_at("after summing", 1)
    with _asleep(_family(study.hospitals[2])):
        study.go_on()
        time.sleep(120)
    if server.wait(300) != 0:  # the others waited a minute and a half
        assert "the same command goes on with it" in server.text
        assert not verify(study.folder / "run" / "ledger.sqlite").chain.entries
        again = study.coordinator()
        assert again.wait(300) == 0, again.text
    study.check()


@pytest.mark.parametrize("step", [2, 5, 9, 13])
def test_a_hospitals_disk_is_full_for_a_moment(step: int, rehearsal: Any, small_disk: Path) -> None:
    study = SumStudy(rehearsal, joined=3)
    state = small_disk / "west"
    study.hospitals.append(study.join("west", "--state-dir", str(state)))
    server = study.hold_at("after summing", step)
    fill(small_disk / "filler")
    study.go_on()
    refused = "cannot do it now"
    end = time.monotonic() + 60
    while refused not in study.hospitals[3].text and time.monotonic() < end and server.process.poll() is None:
        time.sleep(0.1)
    assert refused in study.hospitals[3].text or step == 13  # its last reply may have been on its way
    (small_disk / "filler").unlink()
    assert server.wait(200) == 0, server.text
    [entry] = verify(study.folder / "run" / "ledger.sqlite").chain.entries
    assert entry.event.answered == ASKED
    assert [party.wait(60) for party in study.hospitals] == [0] * 4

"""Twenty real disks that are full, small and in memory: ten of the coordinator's, ten of a hospital's.

Four hospitals over TLS, with masks and their own noise. What is on the disk is a sentence, and nothing is
charged twice or lost; once there is room the same command goes on, and hospitals go on by themselves.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from full_disk import fill, fill_names
from sum_study import ASKED, STUDY, SumStudy

from clients.log import Answered, read_events
from pate_fed.privacy.ledger.report import verify_run

pytestmark = pytest.mark.slow
MENDED = "then the same command goes on"
# Where a coordinator's disk fills up, and what runs out; each goes on where the one before was stopped.
MOMENTS = (
    ("before teaching", 1, fill_names),
    ("after teaching", 1, fill),
    ("after asking", 1, fill),  # nothing is masked yet
    ("after summing", 2, fill),  # two of four replies to the first step are on the disk
    ("after summing", 3, fill_names),  # the two others, and a masked vector
    ("after summing", 4, fill),  # three more, and a consent
    ("after summing", 4, fill),  # three more, and shares for unmasking
    ("before the row", 1, fill),
    ("after the last", 1, fill_names),  # right after the row the replies are removed, which makes room
    ("before concluding", 1, fill),
)


def _sentence(text: str) -> str:
    assert "Traceback" not in text, text
    [line] = [line for line in text.splitlines() if line.startswith("error: ")]
    return line


@contextmanager
def _full(disk: Path, how: Callable[[Path], None]) -> Iterator[None]:
    how(disk / "filler")
    yield
    if (disk / "filler").is_dir():
        shutil.rmtree(disk / "filler")
    else:
        (disk / "filler").unlink()


@contextmanager
def _read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


def test_the_coordinators_disk_is_full_at_ten_moments_of_one_study(rehearsal: Any, small_disk: Path) -> None:
    study = SumStudy(rehearsal)
    study.run_dir = "disk/run"
    rows: list[Any] = []
    for number, (moment, nth, how) in enumerate(MOMENTS):
        began = time.monotonic()
        server = study.hold_at(moment, nth)
        before = len(server.text)
        with _full(small_disk, how):
            study.go_on()
            assert server.wait(400) == 2, server.text
        said = server.text[before:]
        print(f"{number}: {moment}, {how.__name__}, {time.monotonic() - began:.0f} s: {_sentence(said)}")
        assert "cannot be written" in _sentence(said) and MENDED in _sentence(said)
        assert server.last_line.startswith("FAILED  ε=")
        assert [party.process.poll() for party in study.hospitals] == [None] * 4
        found = list(verify_run(small_disk / "run").chain.entries)
        assert found[: len(rows)] == rows
        rows = found
    with _read_only(small_disk):
        server = study.coordinator()
        assert server.wait(200) == 2, server.text
    server = study.coordinator()
    assert server.wait(400) == 0, server.text
    study.check()
    with np.load(small_disk / "run" / "labels.npz") as labels:
        assert len(np.unique(labels["index"])) == labels["answered"].sum() == ASKED
    assert [entry.seq for entry in rows] == [1]


ROUNDS = STUDY.replace('pool = "pool.csv"\nnum_queries = 60\n', "").replace(
    "[aggregation]", "[data.table.ranges]\nage = [0, 100]\ndose = [-4, 4]\n[aggregation]"
)
QUESTIONS = 5  # the first, three rounds, counts of held-out records: four steps each


def test_a_hospitals_disk_is_full_at_ten_moments_of_one_study(rehearsal: Any, small_disk: Path) -> None:
    study = SumStudy(rehearsal, joined=3, text=ROUNDS)
    state, stream = small_disk / "state" / "studies" / "west", random.Random(37)
    for spoilt in (_full(small_disk, fill), _full(small_disk, fill_names), _read_only(small_disk)):
        with spoilt:
            before = len(study.hospitals[3].text) if len(study.hospitals) > 3 else 0
            study.hospitals[3:] = [study.join("west", "--state-dir", str(state))]
            assert study.hospitals[3].wait(200) == 2, study.hospitals[3].text
        print(_sentence(study.hospitals[3].text[before:]))
    west = study.join("west", "--state-dir", str(state))
    study.hospitals[3] = west
    server = study.coordinator()
    west.wait_for("connected;", 400)
    for number, how in enumerate((fill, fill_names, fill, fill, fill_names, fill, fill)):
        refused = west.text.count("cannot do it now")
        with _full(small_disk, how):
            end = time.monotonic() + 300
            while west.text.count("cannot do it now") == refused:
                assert time.monotonic() < end and server.process.poll() is None, west.text + server.text
                time.sleep(0.05)
        done, end = _answers(state), time.monotonic() + 300
        print(f"{number}: {how.__name__} after {done} replies", flush=True)
        while _answers(state) == done:
            assert time.monotonic() < end, west.text + server.text
            time.sleep(0.05)
        time.sleep(stream.uniform(0, 3))
    assert server.wait(400) == 0, server.text
    assert [party.wait(100) for party in study.hospitals] == [0] * 4
    assert "Traceback" not in west.text
    rows = Counter(entry.batch_digest for entry in verify_run(study.folder / "run").chain.entries)
    assert len(rows) == QUESTIONS and set(rows.values()) == {1}
    given: dict[str, int] = {}
    for party in study.hospitals:
        log = study.log(party.name) if party is not west else _events(state)
        told = Answered()
        for event in log:
            told.take(event)
        given[party.name] = told.total
    assert len(set(given.values())) == 1, given


def _answers(state: Path) -> int:
    """How many requests it could answer."""
    return sum(event["event"] == "handled" and event["kind"] != "refused" for event in _events(state))


def _events(state: Path) -> list[Any]:
    return [event for _, event in read_events(state) if event is not None]

"""Real processes: one that is killed at random moments, and two that want to write at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pate_fed.errors import IntegrityError
from pate_fed.privacy import Ledger, verify

# One process imports the program and forks a writer for each line; a killed writer is the parent's to bury.
NURSERY = """
import hashlib, os, sys
from pathlib import Path
import numpy as np
from pate_fed.privacy import ConfidentGNMax, Ledger, LedgerTerms, Protection, SeededNoise

mechanism = ConfidentGNMax(num_teachers=50, num_classes=4, threshold=30, sigma1=20, sigma2=10)
terms = LedgerTerms(study_digest="ef" * 32, delta=1e-5, mechanisms=(mechanism,), protection=Protection(),
                    noise=SeededNoise(0).kind, private=False)

def write(path, told):
    ledger = Ledger.open(path, terms=terms) if path.exists() else Ledger.create(path, terms)
    rng = np.random.default_rng()
    print("ready", file=told, flush=True)
    while True:
        totals = rng.multinomial(50, [0.7, 0.1, 0.1, 0.1], size=5)
        out = mechanism.release(totals, SeededNoise(int(rng.integers(2**31))))
        digest = hashlib.sha256(os.urandom(32)).hexdigest()
        ledger.charge(
            out.event, batch_digest=digest, index=np.arange(5), answered=out.answered, label=out.label
        )
        for position in range(out.asked):
            print(digest, position, out.label[position], file=told, flush=True)

for line in sys.stdin:
    path, told = line.rstrip().split("|")
    pid = os.fork()
    if pid == 0:
        try:
            write(Path(path), open(told, "w"))
        finally:
            os._exit(1)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""

KILLS = 5


class Writers:
    """Writers of a ledger in processes of their own, one at a time; each tells in a file what it released."""

    def __init__(self, nursery: subprocess.Popen[str]) -> None:
        self._nursery = nursery

    def start(self, path: Path) -> Path:
        told = path.with_suffix(".told")
        told.unlink(missing_ok=True)
        assert self._nursery.stdin is not None and self._nursery.stdout is not None
        self._nursery.stdin.write(f"{path}|{told}\n")
        self._nursery.stdin.flush()
        self._pid = int(self._nursery.stdout.readline())
        return told

    def start_ready(self, path: Path) -> Path:
        told = self.start(path)
        end = time.monotonic() + 20
        while not told.exists() or not told.read_text().startswith("ready\n"):
            assert time.monotonic() < end
            time.sleep(0.001)
        return told

    def kill(self) -> int:
        os.kill(self._pid, signal.SIGKILL)
        assert self._nursery.stdout is not None
        return int(self._nursery.stdout.readline())


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    command = [sys.executable, "-c", NURSERY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as nursery:
        yield Writers(nursery)
        assert nursery.stdin is not None
        nursery.stdin.close()


def test_a_killed_process_leaves_a_ledger_that_verifies_and_lacks_no_label(
    tmp_path: Path, writers: Writers
) -> None:
    path, moments, count = tmp_path / "ledger.sqlite", random.Random(5), 0
    printed: dict[tuple[str, int], int] = {}
    for kill in range(KILLS):
        told = writers.start_ready(path)
        time.sleep(moments.uniform(0, 0.15))
        if kill == KILLS - 1:  # however slow the machine, some labels were told
            while len(told.read_text().split("\n")) + len(printed) < 30:
                time.sleep(0.01)
        assert writers.kill() == -signal.SIGKILL
        # The last line may have been cut by the kill.
        for line in told.read_text().split("\n")[1:-1]:
            digest, position, label = line.split()
            printed[digest, int(position)] = int(label)
        chain = verify(path).chain
        held = {
            (entry.batch_digest, position): int(label)
            for entry, outputs in zip(chain.entries, chain.outputs, strict=True)
            for position, label in enumerate(outputs.label)
        }
        assert printed.items() <= held.items()
        count = len(held)
    assert len(printed) > 20
    # All but what was charged in the instant before each kill was also told.
    assert count - len(printed) <= 5 * KILLS
    with Ledger.open(path) as ledger:
        assert len(ledger.released()[0]) == count


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path, writers: Writers) -> None:
    path = tmp_path / "ledger.sqlite"
    writers.start_ready(path)
    try:
        with pytest.raises(IntegrityError, match="another process writes this ledger"):
            Ledger.open(path)
        verify(path)
    finally:
        writers.kill()
    Ledger.open(path).close()


def test_a_kill_while_a_ledger_is_made_leaves_all_of_it_or_none(tmp_path: Path, writers: Writers) -> None:
    moments = random.Random(6)
    for attempt in range(6):
        path = tmp_path / f"ledger-{attempt}.sqlite"
        writers.start(path)
        end = time.monotonic() + 20
        while time.monotonic() < end and not list(tmp_path.glob(f"*{path.name}*")):
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.03))
        assert writers.kill() == -signal.SIGKILL
        if path.exists():
            verify(path)
            Ledger.open(path).close()

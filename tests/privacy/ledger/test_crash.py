"""Real processes: one that is killed at random moments, and two that want to write at once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pate_fed.errors import IntegrityError
from pate_fed.privacy import Ledger, verify

CHILD = """
import hashlib, os, sys
from pathlib import Path
import numpy as np
from pate_fed.privacy import ConfidentGNMax, Ledger, LedgerTerms, Protection, SeededNoise

path = Path(sys.argv[1])
mechanism = ConfidentGNMax(num_teachers=50, num_classes=4, threshold=30, sigma1=20, sigma2=10)
terms = LedgerTerms(study_digest="ef" * 32, delta=1e-5, mechanisms=(mechanism,), protection=Protection(),
                    noise=SeededNoise(0).kind, private=False)
ledger = Ledger.open(path, terms=terms) if path.exists() else Ledger.create(path, terms)
rng = np.random.default_rng()
print("ready", flush=True)
while True:
    totals = rng.multinomial(50, [0.7, 0.1, 0.1, 0.1], size=5)
    out = mechanism.release(totals, SeededNoise(int(rng.integers(2**31))))
    digest = hashlib.sha256(os.urandom(32)).hexdigest()
    ledger.charge(out.event, batch_digest=digest, index=np.arange(5), answered=out.answered, label=out.label)
    for position in range(out.asked):
        print(digest, position, out.label[position], flush=True)
"""

KILLS = 8


def test_a_killed_process_leaves_a_ledger_that_verifies_and_lacks_no_label(tmp_path: Path) -> None:
    path, moments, told = tmp_path / "ledger.sqlite", random.Random(5), 0
    printed: dict[tuple[str, int], int] = {}
    for _ in range(KILLS):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(moments.uniform(0, 0.15))
        child.send_signal(signal.SIGKILL)
        lines = child.stdout.read().split("\n")
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        # The last line may have been cut by the kill.
        for line in lines[:-1]:
            digest, position, label = line.split()
            printed[digest, int(position)] = int(label)
        chain = verify(path).chain
        kept = {
            (entry.batch_digest, position): int(label)
            for entry, outputs in zip(chain.entries, chain.outputs, strict=True)
            for position, label in enumerate(outputs.label)
        }
        assert printed.items() <= kept.items()
        told = len(kept)
    assert len(printed) > 20
    # All but what was charged in the instant before each kill was also told.
    assert told - len(printed) <= 5 * KILLS
    with Ledger.open(path) as ledger:
        assert len(ledger.released()[0]) == told


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(IntegrityError, match="another process writes this ledger"):
            Ledger.open(path)
        verify(path)
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
    Ledger.open(path).close()


def test_a_kill_while_a_ledger_is_made_leaves_all_of_it_or_none(tmp_path: Path) -> None:
    moments = random.Random(6)
    for attempt in range(6):
        path = tmp_path / f"ledger-{attempt}.sqlite"
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while time.monotonic() < end and child.poll() is None and not list(tmp_path.glob(f"*{path.name}*")):
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.03))
        child.kill()
        child.wait()
        if path.exists():
            verify(path)
            Ledger.open(path).close()

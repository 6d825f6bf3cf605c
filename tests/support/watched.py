"""A coordinator that says where it is, and stays at one moment until it is killed, or told to go on."""

from __future__ import annotations

from typing import Any

import psutil

# The coordinator as it is, but it says in a file where it is, waits a moment, and at one until it may go on.
WATCHED = """
import os, random, sys, time
from collections import Counter
said, (held, nth) = open(sys.argv.pop(), "a", buffering=1), sys.argv.pop().split("|")
stream, been = random.Random(os.getpid()), Counter()
def tell(moment):
    been[moment] += 1
    said.write(f"{os.getpid()} {moment}\\n")
    time.sleep(stream.uniform(0, 0.05))
    if (moment, been[moment]) == (held, int(nth)):
        while not os.path.exists(said.name + ".over"): time.sleep(0.02)
def watch(owner, name, phase):
    whole = getattr(owner, name)
    def call(*arguments, **named):
        tell("before " + phase)
        result = whole(*arguments, **named)
        tell("after " + phase)
        return result
    setattr(owner, name, call)
from pate_fed.flower.host import Address
from pate_fed.server import main
import server.app
from pate_fed.privacy import Ledger
from server.federation import Federation
from server.learning import Learner
from server.state import CoordinatorState
for owner, name, phase in (
    (Federation, "admit", "teaching"), (Federation, "_take_in", "joining"),
    (CoordinatorState, "begin_batch", "asking"),
    (CoordinatorState, "keep_answer", "voting"), (CoordinatorState, "keep_sum_reply", "summing"),
    (CoordinatorState, "keep_totals", "totals"), (Ledger, "charge", "the row"),
    (CoordinatorState, "note_all_asked", "the last"), (Learner, "learn", "learning"),
    (server.app.Coordinator, "conclude", "concluding"), (Address, "tell", "telling"),
): watch(owner, name, phase)
sys.exit(main(sys.argv[1:]))
"""


def kill(party: Any, *, alone: bool) -> None:
    """As a power cut; or the process alone, whose children notice."""
    process = psutil.Process(party.process.pid)
    children = process.children(recursive=True)
    process.kill()
    for child in children:
        if not alone and child.is_running():
            child.kill()
    party.process.wait()
    psutil.wait_procs(children, timeout=20)

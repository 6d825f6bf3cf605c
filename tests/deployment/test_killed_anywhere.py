"""Coordinators and hospitals that are killed in every phase, or interrupted: the same command goes on.

PATE_FED_KILLS=200 pytest -m slow -s -k masks_and_noise tests/deployment/test_killed_anywhere.py

PATE_FED_TRIED names a file of the studies that have ended: a run that was stopped goes on after them.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import PLAIN_POLICY
from tried import Tried
from watched import WATCHED, kill

from clients.log_check import check_log
from pate_fed.cli.demo import HOSPITALS, make_identities
from pate_fed.privacy import verify

KILLS = int(os.environ.get("PATE_FED_KILLS", "50"))
SEED = int(os.environ.get("PATE_FED_KILLS_SEED", "2026"))
# "noisy" is over TLS, by an authority's admissions, and hospitals add the noise.
NAMES = {"plain": ("north", "east", "west"), "masked": ("north", "east", "west", "south"), "noisy": HOSPITALS}
DIE = 0.06  # of the noisy ones' hospitals, the chance at each moment of their coordinator
BATCHES, BATCH = 3, 10
HANG_S = 3600  # only a hang takes so long, however busy the machine
pytestmark = pytest.mark.slow


def _moments(kind: str) -> list[str]:
    """Where a coordinator is to die, in the order in which it comes there."""
    answers = "voting" if kind == "plain" else "summing"
    phases = ["teaching", "asking", answers, "totals", "the row", "the last", "learning", "telling"]
    if kind == "noisy":
        phases.remove("totals")  # only exact ones are kept
    return [f"{when} {phase}" for phase in phases for when in ("before", "after")]


@dataclass
class Study:
    """One study in a folder of its own, its hospitals, and where its coordinators died."""

    kind: str
    rehearsal: Any
    stream: random.Random
    died: Counter[str] = field(default_factory=Counter)

    @property
    def run_dir(self) -> Path:
        return Path(self.rehearsal.folder / "run")

    def begin(self) -> None:
        folder = self.rehearsal.folder
        text = self.rehearsal.write_tables(private=False)
        text = text.replace(
            "labels = 60\nbatch_size = 30", f"labels = {BATCHES * BATCH}\nbatch_size = {BATCH}"
        )
        text = text.replace("trees = 10", "trees = 2")
        if self.kind != "plain":  # of four, as three is too few for masks
            text = text.replace("num_clients = 3", "num_clients = 4") + "[secrecy]\nsecure_sum = true\n"
            header, *rows = (folder / "north.csv").read_text(encoding="utf-8").splitlines()
            (folder / "south.csv").write_text("\n".join([header, *rows[::-1]]) + "\n", encoding="utf-8")
        if self.kind == "noisy":
            text = text.replace("seed = 5\n", "") + 'noise_at = "hospitals"\n'
        (folder / "study.toml").write_text(text, encoding="utf-8")
        (folder / "policy.toml").write_text(PLAIN_POLICY, encoding="utf-8")
        if self.kind == "noisy":
            make_identities(folder)
        self.hospitals = {name: self.hospital(name) for name in NAMES[self.kind]}

    def hospital(self, name: str) -> Any:
        if self.kind == "noisy":
            options = ("--hospital", name, "--data", f"{name}.csv", "--tls-dir", f"identity-{name}")
            return self.rehearsal.start(name, "-m", "pate_fed.client", *options)
        return self.rehearsal.hospital(name, f"{name}.csv", "--insecure", "--policy", "policy.toml")

    def coordinator(self, hold: str = "|0") -> Any:
        folder = self.rehearsal.folder
        options: tuple[str, ...] = (
            "--config",
            "study.toml",
            "--address",
            self.rehearsal.address,
            "--insecure",
        )
        if self.kind == "noisy":
            options = ("--config", "study.toml", "--tls-dir", "authority")
        waiting = any(party.process.poll() is None for party in self.hospitals.values())
        options += (
            "--run-dir",
            "run",
            "--wait",
            "900" if waiting else "2",
        )  # else they were told that it is over
        options += (hold, str(folder / "moments"))
        return self.rehearsal.start("server", "-c", WATCHED, *options)

    def moments(self, process: int) -> list[str]:
        """Where one coordinator has been so far."""
        path = self.rehearsal.folder / "moments"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = [line.partition(" ") for line in lines]
        return [moment for pid, _, moment in found if pid == str(process)]

    def run_and_kill(self, moment: str, nth: int, *, hold: bool) -> bool:
        """Start the coordinator, and kill it when it has been there so often; False where it ended before.

        Without `hold` it dies somewhere in the next tenths of a second.
        """
        party = self.coordinator(f"{moment}|{nth if hold else 0}")
        pid, end, seen = party.process.pid, time.monotonic() + HANG_S, 0
        while self.moments(pid).count(moment) < nth:
            for phase in self.moments(pid)[seen:] if self.kind == "noisy" else ():
                seen += 1
                self.kill_hospitals(phase, DIE)
            if party.process.poll() is not None:
                assert party.process.returncode == 0, self.told(party)
                return False
            assert time.monotonic() < end, f"never came to {moment}: {self.told(party)}"
            time.sleep(0.02)
        time.sleep(self.stream.uniform(0, 0.1 if hold else 0.3))
        if party.process.poll() is not None:
            return False
        kill(party, alone=self.stream.random() < 0.3)
        self.died[self.moments(pid)[-1]] += 1
        print(f"{self.kind}: killed {self.moments(pid)[-1]} (aimed at {moment})", flush=True)
        if self.kind == "noisy":
            self.kill_hospitals("a dead coordinator", 0.3)
        elif "telling" not in moment:
            self.kill_hospitals("a dead coordinator", 0.2)
        return True

    def kill_hospitals(self, phase: str, chance: float) -> None:
        """Kill one hospital by chance, or all of its processes, at a random moment, and start it again."""
        name, alone = self.stream.choice(NAMES[self.kind]), self.stream.random() < 0.3
        if self.stream.random() >= chance or self.hospitals[name].process.poll() is not None:
            return
        time.sleep(self.stream.uniform(0, 0.2))
        if self.hospitals[name].process.poll() is not None:
            return
        kill(self.hospitals[name], alone=alone)
        self.died[f"a hospital, {phase}"] += 1
        print(f"{self.kind}: killed {name} {phase}", flush=True)
        self.hospitals[name] = self.hospital(name)

    def run_and_interrupt(self, moment: str, nth: int) -> None:
        """Start the coordinator, and interrupt it once it has been there so often; the hospitals wait."""
        party, end = self.coordinator(), time.monotonic() + HANG_S
        while self.moments(party.process.pid).count(moment) < nth:
            assert party.process.poll() is None and time.monotonic() < end, self.told(party)
            time.sleep(0.005)
        party.process.terminate()
        began = time.monotonic()
        assert party.wait(HANG_S) == 130, self.told(party)
        print(f"ended {time.monotonic() - began:.1f} s after SIGTERM, {moment} {nth}", flush=True)
        assert "the hospitals wait" in party.text
        assert [each.process.poll() for each in self.hospitals.values()] == [None] * len(self.hospitals)

    def told(self, party: Any) -> str:
        return f"{self.kind}, seed {SEED}, died {self.died}\n{party.text}"

    def check(self, reference: list[tuple[int, int, float]]) -> None:
        """What holds of a study that was killed so often: as of one that never was."""
        entries = verify(self.run_dir / "ledger.sqlite").chain.entries
        assert len({entry.batch_digest for entry in entries}) == len(entries)
        assert [(e.event.asked, e.event.answered, e.epsilon) for e in entries] == reference, self.died
        with np.load(self.run_dir / "labels.npz") as labels:
            assert len(np.unique(labels["index"])) == len(labels["index"]) == BATCHES * BATCH
            assert labels["answered"].all()
        metrics = json.loads((self.run_dir / "metrics.json").read_text(encoding="utf-8"))
        assert metrics["status"] == "success" and (self.run_dir / "student.npz").exists()
        assert not (self.run_dir / "private").exists()
        for name, party in self.hospitals.items():
            assert party.wait(HANG_S) == 0, party.text
            state = self.rehearsal.folder / f"hospital-{name}"
            if self.kind == "noisy":
                state = self.rehearsal.state_of(name)
                found = check_log(state, self.rehearsal.folder / f"identity-{name}")
                assert found.verdict.endswith("with the coordinator's receipt"), found
            log = [json.loads(line) for line in (state / "log.jsonl").read_text("utf-8").splitlines()]
            assert [entry for entry in log if entry["event"] in ("refused", "fault")] == []
            answered = [entry for entry in log if entry["event"] == "answered"]
            assert sum(entry["rows"] for entry in answered) == BATCHES * BATCH
            assert len(answered) == BATCHES
            assert not (state / "answer.npz").exists()


@contextmanager
def _studies(rehearsal: Any) -> Iterator[Any]:
    """Makes folders of the fixture's kind, whose processes end with the test."""
    made: list[Any] = []

    def make() -> Any:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        folder = rehearsal.folder / f"study-{len(made)}"
        folder.mkdir()
        made.append(type(rehearsal)(folder, rehearsal.cache, f"127.0.0.1:{port}"))
        return made[-1]

    try:
        yield make
    finally:
        for each in made:
            each.stop()


def _plan(kind: str, stream: random.Random) -> list[tuple[str, int, bool]]:
    """Where to die, the how-manieth time of being there, and whether it is held there.

    A batch is over with its row. The moments before that are dealt out among the batches; in the first two
    something happens that is not held, too.
    """
    names = _moments(kind)
    steps = 1 if kind == "plain" else 4
    before_row = names[names.index("before asking") : names.index("after the row")]
    batch_of = {name: stream.randrange(BATCHES) for name in before_row}
    plan = [(name, 1, True) for name in names[:2]] + [("before teaching", 1, False)]
    for batch in range(BATCHES):
        if batch < BATCHES - 1:
            plan += [(name, 1, False) for name in sorted(stream.sample(before_row[1:4], 2))]
        mine = [name for name in before_row if batch_of[name] == batch]
        plan += [(name, stream.randint(1, steps if name == "after asking" else 1), True) for name in mine]
        plan.append(("after the row", 1, True))
    plan += [(name, 1, True) for name in names[-6:]]
    plan.insert(-4, ("before learning", 1, False))
    plan.insert(-2, (stream.choice(["before", "after"]) + " concluding", 1, False))
    return plan


def _one_study(kind: str, make: Any, stream: random.Random, most: int) -> Counter[str]:
    """A study that is killed by its plan, so often at most; then it comes to its end."""
    study = Study(kind, make(), stream)
    study.begin()
    for moment, nth, hold in _plan(kind, stream)[:most]:
        if not study.run_and_kill(moment, nth, hold=hold):
            break
    else:
        last = study.coordinator()
        assert last.wait(HANG_S) == 0, study.told(last)
    study.check(_reference(study))
    print(kind, dict(study.died), flush=True)
    return study.died


def _reference(study: Study) -> list[tuple[int, int, float]]:
    """What the same study is charged that nobody kills."""
    folder = study.rehearsal.folder
    text = (folder / "study.toml").read_text(encoding="utf-8")
    files = ", ".join(f'"{name}.csv"' for name in NAMES[study.kind])
    text = text.replace('pool = "pool.csv"', f'pool = "pool.csv"\nprivate = [{files}]')
    (folder / "undisturbed.toml").write_text(text, encoding="utf-8")
    command = ("-m", "pate_fed.simulation", "--config", "undisturbed.toml", "--backend", "inline")
    assert study.rehearsal.start("simulation", *command, "--run-dir", "undisturbed").wait(HANG_S) == 0
    entries = verify(folder / "undisturbed" / "ledger.sqlite").chain.entries
    return [(entry.event.asked, entry.event.answered, entry.epsilon) for entry in entries]


def _many(kinds: Sequence[str], rehearsal: Any, most: int) -> dict[str, Counter[str]]:
    """Where studies died, that ran side by side: so often at least for each, and at every moment."""
    lock = threading.Lock()
    tried = {kind: Tried(f"{kind} studies killed, seed {SEED}") for kind in set(kinds)}
    ended = {kind: {row["number"] for row in tried[kind].rows} for kind in tried}
    numbers = {kind: (number for number in count() if number not in ended[kind]) for kind in tried}

    def died(kind: str) -> Counter[str]:
        return sum((Counter(row["died"]) for row in list(tried[kind].rows)), Counter())

    def work(kind: str) -> None:
        everywhere = set(_moments(kind)) if KILLS >= 50 else set()  # fewer do not come to all of them
        while died(kind).total() < most or everywhere - set(died(kind)):
            with lock:
                number = next(numbers[kind])
            where = _one_study(kind, make, random.Random(f"{SEED} {kind} {number}"), KILLS)
            with lock:
                tried[kind].add(number=number, died=where)
            print(f"{kind}: {died(kind).total()} kills, seed {SEED}", flush=True)

    with _studies(rehearsal) as make, ThreadPoolExecutor(len(kinds)) as workers:
        for done in [workers.submit(work, kind) for kind in kinds]:
            done.result()
    return {kind: died(kind) for kind in tried}


def test_killed_anywhere_the_same_command_ends_the_study(rehearsal: Any) -> None:
    died = _many(["plain", "masked"], rehearsal, KILLS // 2)
    assert died["plain"].total() + died["masked"].total() >= KILLS


def test_with_masks_and_noise_at_hospitals_over_tls_either_side_is_killed(rehearsal: Any) -> None:
    """Nothing is lost, charged twice or released twice."""
    died = _many(["noisy"] * min(3, -(-KILLS // 50)), rehearsal, KILLS)["noisy"]
    print(dict(died), flush=True)
    assert died.total() >= KILLS
    assert any(where.startswith("a hospital") for where in died)


def test_interrupted_amid_a_batch_under_masks_the_same_command_goes_on_with_it(rehearsal: Any) -> None:
    """Ctrl-C or systemctl stop at one reply or another: nothing is lost, and nothing is charged twice."""
    study = Study("masked", rehearsal, random.Random(SEED))
    study.begin()
    for moment, nth in (
        ("after asking", 1),
        ("before summing", 2),
        ("after summing", 7),
        ("before totals", 1),
    ):
        study.run_and_interrupt(moment, nth)
    last = study.coordinator()
    assert last.wait(HANG_S) == 0, study.told(last)
    study.check(_reference(study))

"""CPU seconds of secure summation on one core; run with `pytest -m benchmark -s`.

The hospital that is measured does all of its own work: nothing that another one verified is remembered.
Shapes: `parties` hospitals, vectors of `entries` integers mod 2^32.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from costs import Cost, watched

from pate_fed.secure_sum import CoordinatorSum, HospitalSum, Identity, SumRange
from pate_fed.secure_sum.keys import pack, verify
from pate_fed.secure_sum.messages import BatchShares, MaskedVector, UnmaskShares

pytestmark = pytest.mark.benchmark

STUDY, TURNS = "ab" * 32, 5


def _cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of CPU, and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


class Run:
    """One batch of a study, with the CPU seconds of one hospital and of the coordinator by step."""

    def __init__(self, parties: int, entries: int, dropouts: int, *, liar: bool = False) -> None:
        self.hospital: dict[str, float] = {"saves and restores": 0.0}
        self.coordinator: dict[str, float] = {}
        self.bytes: dict[str, int] = {}
        self.parties, self.dropouts = parties, dropouts
        self.values = np.ones(entries, dtype=np.int64)
        self.machines: dict[str, HospitalSum] = {}
        self._lies = ""
        self._set_up()
        self._sum(entries, liar=liar)

    def spent(self, who: str) -> float:
        """CPU seconds of one batch of a `hospital`, the `coordinator`, or `all` of them together."""
        if who == "all":
            return self.parties * self.spent("hospital") + self.spent("coordinator")
        steps = self.hospital if who == "hospital" else self.coordinator
        return sum(seconds for step, seconds in steps.items() if step not in ("key agreement", "roster"))

    def _set_up(self) -> None:
        self.sum = CoordinatorSum(Identity.generate(), study=STUDY, places=self.parties)
        request = self.sum.enrol_request()
        for number in range(self.parties):
            name = f"hospital-{number:04d}"
            spent, self.machines[name] = _cpu(
                lambda name=name: HospitalSum.enrol(Identity.generate(), request, party=name, study=STUDY)
            )
            self.hospital["key agreement"] = spent
            self.sum.admit(self.machines[name].enrolment)
        self.sum.close_roster()
        names = list(self.machines)
        self.coordinator["roster"], requests = _cpu(lambda: [self.sum.pin_request(name) for name in names])
        _forget()
        spent, pinned = _cpu(lambda: self.machines[names[0]].pin(requests[0]))
        self.hospital["key agreement"] += spent
        self.bytes["roster"] = len(pack(requests[0].to_record()))
        self.sum.note_pinned(pinned)
        for name, request in zip(names[1:], requests[1:], strict=True):
            self.sum.note_pinned(self.machines[name].pin(request))

    def _open(self, entries: int, attempt: int = 0, proof: bytes = b"") -> Any:
        return self.sum.open_batch(
            batch=0,
            batch_digest="cd" * 32,
            length=entries,
            sum_range=SumRange.noisy(),
            attempt=attempt,
            proof=proof,
        )

    def _sum(self, entries: int, *, liar: bool) -> None:
        batch, everyone = self._open(entries), list(self.machines)
        if liar:  # the last one seals wrongly for the first, which is measured: all begin again without it
            self._lies = everyone[-1]
            self._step(batch, "share", lambda: dict.fromkeys(everyone, batch.opening), everyone)
            self._step(batch, "mask", batch.mask_requests, everyone)
            self._step(batch, "complaint", batch.evidence, everyone)
            assert set(batch.verdicts) == {self._lies}
            batch, everyone = self._open(entries, 1, batch.proof), everyone[:-1]
        present = everyone[: len(everyone) - self.dropouts]
        self._step(batch, "share", lambda: dict.fromkeys(everyone, batch.opening), everyone)
        self._step(batch, "mask", batch.mask_requests, present)
        self._step(batch, "consent", lambda: dict.fromkeys(present, batch.survivor_notice()), present)
        self._step(batch, "unmask", lambda: dict.fromkeys(present, batch.unmask_request()), present)
        self.coordinator["total"], total = _cpu(batch.total)
        assert (total == len(present)).all()

    def _step(self, batch: Any, step: str, make: Callable[[], Mapping[str, Any]], present: list[str]) -> None:
        made, requests = _cpu(lambda: dict(make()))
        present = [name for name in present if name in requests]
        first = present[0]
        _forget()
        spent, reply = _cpu(lambda: self._answer(first, requests[first]))
        self.hospital[step] = self.hospital.get(step, 0.0) + spent
        self.hospital["saves and restores"] += self._restart(first)
        self.bytes[f"{step}, sent"] = len(pack(reply.to_record()))
        self.bytes[f"{step}, received"] = len(pack(requests[first].to_record()))
        replies = [reply] + [self._answer(name, requests[name]) for name in present[1:]]
        _forget()
        taken, _ = _cpu(lambda: [batch.take(reply) for reply in replies])
        self.coordinator[step] = self.coordinator.get(step, 0.0) + made + taken

    def _restart(self, name: str) -> float:
        """Seconds for what a hospital does when a new process serves its next message."""
        machine = self.machines[name]
        cpu, self.machines[name] = _cpu(
            lambda: HospitalSum.restore(
                machine._identity,
                study_state=machine.study_state(),
                progress_state=machine.progress_state(),
            )
        )
        return cpu

    def _answer(self, name: str, request: Any) -> Any:
        machine = self.machines[name]
        reply = machine.answer(request, lambda: self.values)
        if name == self._lies and isinstance(reply, BatchShares):
            sealed = bytes([reply.sealed[0] ^ 1]) + reply.sealed[1:]
            reply = replace(reply, sealed=sealed).signed(machine._identity)
            machine._batches[0].own = reply.digest
        return reply


def _forget() -> None:
    verify.cache_clear()


def _show(run: Run, title: str) -> None:
    print(f"\n{title}")
    print(f"  hospital, key agreement      {run.hospital['key agreement']:8.3f} s")
    for step, seconds in run.hospital.items():
        if step != "key agreement":
            print(f"  hospital, {step:<18} {seconds:8.3f} s")
    print(f"  hospital, whole batch        {run.spent('hospital'):8.3f} s")
    for step, seconds in run.coordinator.items():
        print(f"  coordinator, {step:<15} {seconds:8.3f} s")
    print(f"  coordinator, whole batch     {run.spent('coordinator'):8.3f} s")
    for what, size in run.bytes.items():
        print(f"  bytes, {what:<21} {size:8d}")


@pytest.mark.parametrize("dropouts", [0, 25])
def test_250_hospitals_with_100000_entries(dropouts: int) -> None:
    _show(Run(250, 100_000, dropouts), f"250 hospitals, 100,000 entries, {dropouts} dropouts")


def test_1000_hospitals_with_10000_entries() -> None:
    """A thousand take part; the steps of all of them together are the test's own time."""
    _show(Run(1000, 10_000, 100), "1,000 hospitals, 10,000 entries, 100 dropouts")


@pytest.mark.parametrize("entries", [10_000, 100_000])
def test_signatures_cost_at_most_fifteen_hundredths(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By turns with and without the signature of each step; consents of survivors are signed in both."""

    def bare() -> Run:
        with monkeypatch.context() as patch:
            for kind in (BatchShares, MaskedVector, UnmaskShares):
                patch.setattr(kind, "signed", lambda message, identity: message)
                patch.setattr(kind, "signed_by", lambda message, public: True)
            return Run(250, entries, 0)

    _show_ratio(bare, lambda: Run(250, entries, 0), "with signatures", 1.15)


# A simulation that ends with its first masked round, and says what that took: wall and CPU seconds.
ROUND = """
import os, sys, time
import server.masked as masked
from pate_fed.secure_sum.messages import BatchShares, MaskedVector, UnmaskShares
from pate_fed.simulation import main
if sys.argv.pop() == "bare":
    for kind in (BatchShares, MaskedVector, UnmaskShares):
        kind.signed = lambda message, identity: message
        kind.signed_by = lambda message, public: True
whole = masked.MaskedRounds.collect
def collect(self, *asked):
    began, cpu = time.perf_counter(), time.process_time()
    whole(self, *asked)
    print(time.perf_counter() - began, time.process_time() - cpu, flush=True)
    os._exit(0)
masked.MaskedRounds.collect = collect
main(sys.argv[1:])
"""


def test_signatures_cost_a_whole_round_at_most_fifteen_hundredths(tmp_path: Path) -> None:
    """By turns: the coordinator, 250 hospitals of one machine, votes, and what is packed between them."""
    told = "--num-clients 250 --teacher encoder-head --secure-sum --backend inline --seed 1 --quiet"
    ratios = list[float]()
    for turn in range(TURNS):
        spent = []
        for how in ("bare", "signed"):
            run = ["--run-dir", str(tmp_path / f"{how}-{turn}"), how]
            command = [sys.executable, "-c", ROUND, *told.split(), *run]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            wall, cpu = map(float, said[-2:])
            spent.append(cpu)
            print(f"\n{how}: {wall:.1f} s, {cpu:.2f} s of CPU")
        ratios.append(spent[1] / spent[0])
    print(f"a whole round with signatures: median {median(ratios):.2f} times the CPU, mark 1.15")


def test_one_complaint_costs_at_most_two_rounds() -> None:
    """1,000 queries of 10 classes, by turns with and without one that seals wrongly."""
    _show_ratio(lambda: Run(250, 10_000, 0), lambda: Run(250, 10_000, 0, liar=True), "with one complaint", 2)


def _show_ratio(less: Callable[[], Run], more: Callable[[], Run], what: str, mark: float) -> None:
    """What the second costs in CPU of the first: at a hospital, at the coordinator, and of all together."""
    found: dict[str, list[float]] = {"hospital": [], "coordinator": [], "all": []}
    for _ in range(TURNS):
        runs = less(), more()
        for who, ratios in found.items():
            once, twice = (run.spent(who) for run in runs)
            ratios.append(twice / once)
            print(f"\n{who}: {once:.3f} s, {what} {twice:.3f} s, {twice / once:.2f} times")
    for who, ratios in found.items():
        print(f"{who}: {what} median {median(ratios):.2f} times, mark {mark}")


def test_table_of_250_500_and_1000_hospitals() -> None:
    """One batch of 1,000 queries of 10 classes, nobody missing: CPU a hospital and coordinator, bytes."""
    print("\nhospitals | a hospital: keys, batch (s) | coordinator (s) | a hospital sends, gets; all (bytes)")
    for parties in (250, 500, 1000):
        run = Run(parties, 10_000, 0)
        keys = run.hospital.pop("key agreement")
        sent = sum(size for what, size in run.bytes.items() if what.endswith("sent"))
        received = run.bytes["roster"] + sum(
            size for what, size in run.bytes.items() if what.endswith("received")
        )
        batch, coordinator = sum(run.hospital.values()), sum(run.coordinator.values())
        print(
            f"{parties:9d} | {keys:12.3f} {batch:8.3f} | {coordinator:12.2f} | "
            f"{sent:10d} {received:10d} {parties * (sent + received):12d}"
        )
        assert sent > 0


def test_a_study_of_250_with_and_without_masks(tmp_path: Path) -> None:
    """The default study, one way and the other by turns: CPU of all its processes, and its ratio."""
    spent: dict[str, list[Cost]] = {"votes as they are": [], "masked": []}
    released = set[bytes]()
    for turn in range(TURNS):
        for (way, costs), options in zip(spent.items(), ((), ("--secure-sum",)), strict=True):
            run_dir = tmp_path / f"{turn}-{len(options)}"
            command = [sys.executable, "-m", "pate_fed.simulation", "--num-clients", "250", "--seed", "1"]
            costs.append(watched([*command, "--quiet", "--run-dir", str(run_dir), *options]))
            released.add((run_dir / "labels.npz").read_bytes())
            metrics = json.loads((run_dir / "metrics.json").read_text(encoding="utf-8"))
            print(
                f"\n{way}: {costs[-1].cpu_s:.1f} s of CPU, {costs[-1].wall_s:.0f} s, {costs[-1].peak_mb:.0f} "
                f"MiB; voting {metrics['seconds']['vote']:.1f} s"
            )
    plain, masked = ([cost.cpu_s for cost in costs] for costs in spent.values())
    more = [with_masks / without - 1 for without, with_masks in zip(plain, masked, strict=True)]
    print(f"masks, medians of {TURNS}: {median(plain):.1f} to {median(masked):.1f} s of CPU")
    print(f"turn by turn {min(more):+.1%} to {max(more):+.1%}, median {median(more):+.1%}")
    assert len(released) == 1  # masks change no label

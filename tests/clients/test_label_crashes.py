"""A hospital with private labels that dies at every single write: still no second answer ever leaves it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.flower import prepare_environment

prepare_environment()

from clients.label_hospital import LabelHospital
from clients.label_site import read_label_site
from pate_fed.protocol.label_terms import LabelTerms, PublicClusters, PublicPool, label_terms
from pate_fed.protocol.messages import LabelReply, LabelRequest, SumReply, SumRequest, VoteRequest
from pate_fed.secure_sum import CoordinatorSum, Identity, SumRange, read_reply
from pate_fed.secure_sum.messages import Enrolment, MaskedVector, SumRefused

RECORDS, CLASSES, HOSPITALS, CLUSTERS = 60, 3, 4, 4
LABEL = np.arange(RECORDS) % CLASSES
CLUSTER = np.arange(RECORDS) % CLUSTERS
NOTHING = np.empty(0, dtype=np.int64)


class Killed(BaseException):
    """No handler of the program may take it for a fault that it can tell about."""


class Writes:
    """Durable steps of the first hospital; `die_at` is the number of the one that it does not live to do."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.done, self.die_at, self.first = 0, -1, True
        for owner, name in ((os, "fsync"), (os, "open"), (Path, "replace"), (Path, "mkdir")):
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.done += self.first
            if self.first and self.done == self.die_at:
                raise Killed
            return whole(*arguments, **named)

        return call

    @contextmanager
    def dying(self, at: int) -> Iterator[None]:
        """Die at the write of that number from here on, once."""
        self.done, self.die_at = 0, at
        try:
            yield
        except Killed:
            pass
        finally:
            self.die_at = -1


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(monkeypatch)


class World:
    """Four hospitals' disks; what the first one has sent about its labels."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        patch.setenv("PATE_FED_SITE", str(folder))
        self.folder = folder
        self.sent: list[bytes] = []
        for number in range(HOSPITALS):
            (folder / f"hospital-{number}").mkdir()
            self.write_labels(number, LABEL)

    def write_labels(self, number: int, label: np.ndarray) -> None:
        rows = "".join(f"{index},{label[index]}\n" for index in range(number, RECORDS, HOSPITALS))
        (self.folder / f"hospital-{number}" / "labels.csv").write_text(f"index,label\n{rows}")

    def terms(self, epsilon: float, *, counts: bool = False) -> LabelTerms:
        return label_terms(
            PublicPool(size=RECORDS, digest="ab" * 32, num_classes=CLASSES),
            num_clients=HOSPITALS,
            quorum=0.75,
            epsilon=epsilon,
            seed=None,
            clusters=PublicClusters(place=CLUSTER, count=CLUSTERS, delta=1e-5) if counts else None,
        )

    def hospital(self, number: int) -> LabelHospital:
        """A new process; as careful as a real one."""
        return LabelHospital(replace(read_label_site({"partition-id": number}), simulated=False))

    def ask(self, epsilon: float) -> str:
        """The first hospital's response, or why there is none."""
        request = LabelRequest(terms=self.terms(epsilon).to_json(), clusters=NOTHING)
        reply = self.hospital(0).answer(request)
        if not isinstance(reply, LabelReply):
            return reply.code
        self.sent.append(reply.index.tobytes() + reply.label.tobytes())
        return "answered"


def test_a_response_leaves_once_whenever_the_hospital_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: Writes
) -> None:
    at, lived = 0, False
    while not lived:
        at += 1
        world = World(tmp_path / str(at), monkeypatch)
        with writes.dying(at):
            lived = world.ask(0.1) == "answered"
        world.write_labels(0, (LABEL + 1) % CLASSES)  # corrected meanwhile: a second draw would tell more
        assert world.ask(0.1) == world.ask(0.1) == "answered"
        assert world.ask(0.2) == "ANSWERED"
        assert len(set(world.sent)) == 1
    assert at > 10  # it died at that many moments before


class Sum:
    """A coordinator that asks for the counts in any way it likes, and sends again what was not answered."""

    def __init__(self, world: World, writes: Writes) -> None:
        self.world, self.writes, self.terms = world, writes, world.terms(1.0, counts=True)
        self.sum = CoordinatorSum(Identity.generate(), study=self.terms.digest)
        self.vectors: list[bytes] = []

    def enrol(self) -> None:
        enrol = self.sum.enrol_request().to_bytes()
        request = LabelRequest(terms=self.terms.to_json(), clusters=CLUSTER, enrol=enrol)
        for number in range(HOSPITALS):
            reply = self.twice(number, lambda hospital: hospital.answer(request))
            assert isinstance(reply, LabelReply)
            self.sum.admit(Enrolment.from_bytes(reply.enrolment))
        self.roster = self.sum.close_roster(threshold=3).to_bytes()

    def twice(self, number: int, ask: Callable[[LabelHospital], Any]) -> Any:
        """A hospital's reply; from a new process, where one died."""
        self.writes.first = number == 0
        try:
            return ask(self.world.hospital(number))
        except Killed:
            return ask(self.world.hospital(number))
        finally:
            self.writes.first = True

    def count(self, batch: int) -> bool:
        """Go through one batch's rounds; whether there is a sum in the end."""
        index = np.arange(CLUSTERS)
        named = {"terms_digest": self.terms.digest, "batch": batch, "index": index}
        made = self.sum.open_batch(
            batch=batch,
            batch_digest=VoteRequest(**named).digest,
            length=CLUSTERS * CLASSES,
            sum_range=SumRange.noisy(),
            roster_rides=True,
        )
        for requests in made.rounds():
            for party, step in requests.items():
                request = SumRequest(**named, roster=self.roster, step=step.to_bytes())
                number = int(party[-1])
                reply = self.twice(number, lambda hospital, asked=request: hospital.sum_step(asked))
                assert isinstance(reply, SumReply)
                said = read_reply(reply.step)
                if isinstance(said, MaskedVector) and number == 0:
                    self.vectors.append(said.vector.tobytes())
                if isinstance(said, SumRefused):
                    if batch:
                        return False
                else:
                    made.take(said)
        return bool(made.total().size)


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_counts_leave_once_whenever_the_hospital_dies(
    stride: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: Writes
) -> None:
    """It dies while it enrols, shares, counts, signs or unmasks, and is asked the same again."""
    at, lived = 0, False
    while not lived:
        at += stride
        world = World(tmp_path / str(at), monkeypatch)
        asked = Sum(world, writes)
        with writes.dying(at):
            asked.enrol()
            assert asked.count(0)
            lived = writes.done < at
        assert not asked.count(1)  # those three have answered
        assert world.ask(1.0) == "ANSWERED" and world.sent == []
        assert len(asked.vectors) == 1  # the one that it kept before it was sent

"""A federation in one process: every message goes through its record, as it does over a wire."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pate_fed.secure_sum import (
    CoordinatorSum,
    Demands,
    HospitalSum,
    Identity,
    SumBatch,
    SumRange,
    read_reply,
    read_request,
)
from pate_fed.secure_sum.refusals import RefusedError, SumRefusal

STUDY = "ab" * 32
STEPS = ("share", "mask", "consent", "unmask")

Dropped = Mapping[str, Iterable[int]]


class Federation:
    """`n` hospitals and a coordinator, roster pinned; with `restart`, every message meets a new process."""

    def __init__(
        self,
        n: int,
        *,
        demands: Demands | None = None,
        threshold: int | None = None,
        colluders: int = 0,
        restart: bool = False,
        pin: bool = True,
    ) -> None:
        width = len(str(n))
        self.names = [f"hospital-{number:0{width}d}" for number in range(n)]
        self.demands = demands or Demands(least_parties=3, three_agreed=True)
        self.restart = restart
        self.identities = {name: Identity.generate() for name in self.names}
        self.coordinator_identity = Identity.generate()
        self.coordinator = CoordinatorSum(
            self.coordinator_identity, study=STUDY, places=n, threshold=threshold, colluders=colluders
        )
        request = read_request(self.coordinator.enrol_request().to_bytes())
        self.hospitals: dict[str, HospitalSum] = {}
        for name in self.names:
            machine = HospitalSum.enrol(
                self.identities[name], request, party=name, study=STUDY, demands=self.demands
            )
            self.hospitals[name] = machine
            self.coordinator.admit(read_reply(machine.enrolment.to_bytes()))
        self.roster = self.coordinator.close_roster()
        self.batches = 0
        if pin:
            for name in self.names:
                self.coordinator.note_pinned(self.ask(name, self.pin(name)))

    def pin(self, name: str, **changes: Any) -> Any:
        """What a hospital gets to pin the roster, or one with changes that the coordinator signed."""
        request = self.coordinator.pin_request(name)
        if not changes:
            return request
        listed = self.signed(self.roster, **changes).to_bytes()
        return self.signed(request, listed=listed)

    def ask(self, name: str, request: Any, vector: Any = None) -> Any:
        """One hospital's reply; both messages cross as bytes."""

        def votes() -> Any:
            assert vector is not None
            return vector

        if self.restart:
            self.rebuild(name)
        reply = self.hospitals[name].answer(read_request(request.to_bytes()), votes)
        return read_reply(reply.to_bytes())

    def refused(self, name: str, request: Any, reason: SumRefusal, vector: Any = None) -> None:
        """The hospital refuses for this reason, and its state is as before."""
        before = self.hospitals[name].study_state()
        with pytest.raises(RefusedError) as caught:
            self.ask(name, request, vector)
        assert caught.value.reason is reason
        assert self.hospitals[name].study_state() == before

    def repeated(self, name: str, request: Any, first: Any, vector: Any = None) -> None:
        """The hospital gives the very same reply again, and its state is as before."""
        before = self.hospitals[name].progress_state()
        assert self.ask(name, request, vector).to_bytes() == first.to_bytes()
        assert self.hospitals[name].progress_state() == before

    def signed(self, message: Any, /, **changes: Any) -> Any:
        """The message with changes, signed by the coordinator itself: it is the one who cheats."""
        return replace(message, **changes).signed(self.coordinator_identity)

    def lie(self, reply: Any, /, **changes: Any) -> Any:
        """A hospital's reply with changes that it signed itself: it is the one who cheats."""
        changed = replace(reply, **changes)
        if reply.kind == "sum.consent":  # what it signs is no digest of the message
            return changed
        return changed.signed(self.identities[reply.party])

    def rebuild(self, name: str) -> None:
        """A new process: nothing but the identity and the two saved states."""
        machine = self.hospitals[name]
        self.hospitals[name] = HospitalSum.restore(
            self.identities[name],
            study_state=machine.study_state(),
            progress_state=machine.progress_state(),
            demands=self.demands,
        )

    def open(self, length: int, sum_range: SumRange | None = None, *, batch: int | None = None) -> SumBatch:
        number = self.batches if batch is None else batch
        self.batches = number + 1
        return self.coordinator.open_batch(
            batch=number,
            batch_digest=hashlib.sha256(f"{number}".encode()).hexdigest(),
            length=length,
            sum_range=sum_range or SumRange.noisy(),
        )

    def until(self, step: str, vectors: Any, *, drop: Dropped | None = None, batch: Any = None) -> SumBatch:
        """A batch with the replies up to and including `step`; who drops is silent from that step on."""
        batch = batch or self.open(vectors.shape[1])
        present = list(self.names)
        for current in STEPS[: STEPS.index(step) + 1]:
            gone = {self.names[number] for number in (drop or {}).get(current, ())}
            present = [name for name in present if name not in gone]
            requests = self.requests(batch, current, present)
            for name in present:
                batch.take(self.ask(name, requests[name], vectors[self.names.index(name)]))
            for name, request in batch.evidence().items():
                batch.take(self.ask(name, request))
            if batch.verdicts:
                break
        return batch

    def requests(self, batch: SumBatch, step: str, present: list[str]) -> dict[str, Any]:
        """The requests of a step, by hospital."""
        if step == "share":
            return dict.fromkeys(present, batch.opening)
        if step == "mask":
            return batch.mask_requests()
        request = batch.survivor_notice() if step == "consent" else batch.unmask_request()
        return dict.fromkeys(present, request)

    def total(self, vectors: Any, *, drop: Dropped | None = None, batch: Any = None) -> Any:
        return self.until("unmask", vectors, drop=drop, batch=batch).total()


@pytest.fixture(scope="session")
def federation() -> type[Federation]:
    return Federation


@pytest.fixture
def seven() -> Federation:
    return Federation(7)


@pytest.fixture(scope="session")
def vectors() -> Callable[..., Any]:
    """Random vectors: int64 (n, length), entries from 0 to `most`."""

    def draw(n: int, length: int, *, most: int = 50, seed: int = 0) -> Any:
        return np.random.default_rng(seed).integers(0, most, size=(n, length), endpoint=True)

    return draw


@pytest.fixture
def outside_a_batch(federation: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Four hospitals, and the first one's requests and replies outside a batch, by kind."""
    parties = federation(4)
    requests = {"sum.enrol": parties.coordinator.enrol_request(), "sum.pin": parties.pin("hospital-0")}
    replies = {
        "sum.enrolment": parties.hospitals["hospital-0"].enrolment,
        "sum.pinned": parties.ask("hospital-0", parties.pin("hospital-0")),
        "sum.refused": parties.hospitals["hospital-0"].refuse(SumRefusal.FAULT),
    }
    return parties, requests, replies

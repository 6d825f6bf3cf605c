"""A hospital's secure summation on its own disk: identity, secrets of the study, batches under way.

A new process may serve every message, so nothing is kept in memory between two of them. All files are
readable by the hospital's user alone. What a message changed is on the disk, together with the reply, before
the reply exists for anyone else, so that a reply is never made twice with other secrets.

Only a simulation that is one process keeps its machines in memory instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.disk import as_written, try_lock, write_private
from pate_fed.errors import IntegrityError
from pate_fed.secure_sum.hospital import HospitalSum
from pate_fed.secure_sum.keys import Identity
from pate_fed.secure_sum.messages import EnrolRequest
from pate_fed.secure_sum.roster import Demands

_IDENTITY, _STUDY, _BATCHES, _LOCK = "identity.key", "study.state", "batches.state", "lock"
_ROSTER = "roster.txt"
_WAIT_S = 0.02
_NOT_ENROLLED = "this hospital has not enrolled in a secure summation"


class SumStore:
    """One hospital's machine in one folder (mode 0700, files 0600); processes take turns.

    Once the roster is pinned, `roster.txt` lists who takes part with fingerprints, the coordinator first:
    what people compare out of band, since a coordinator could invent hospitals around a victim.

    `demands` are the hospital's own, and enforced anew at every message. `durable` of False leaves it to the
    system when files reach the disk, for a simulation, whose folder no power cut outlives and whose roster
    nobody compares. `key` is the file of the identity that others may have confirmed already; without it one
    is made in the folder.
    """

    def __init__(
        self, folder: Path, demands: Demands | None = None, *, durable: bool = True, key: Path | None = None
    ) -> None:
        self._folder, self._demands, self._durable = folder, demands or Demands(), durable
        self._key = key

    def __repr__(self) -> str:
        return f"SumStore({str(self._folder)!r}, secrets=<hidden>)"

    def enrol(
        self, request: EnrolRequest, *, party: str, study: str, coordinator: bytes | None = None
    ) -> bytes:
        """Join a study, once: the packed enrolment, the same however often the coordinator asks.

        `coordinator` is the coordinator's public key where the hospital knows it.

        Raises:
            RefusedError: another study or coordinator.
            IntegrityError: the saved state is damaged.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._turn():
            if (self._folder / _STUDY).exists():
                return self._restore(self._read()).answer(request, _no_votes).to_bytes()
            machine = HospitalSum.enrol(
                self._identity(),
                request,
                party=party,
                study=study,
                coordinator=coordinator,
                demands=self._demands,
            )
            self._write(_BATCHES, machine.progress_state())
            self._write(_STUDY, machine.study_state())
            return machine.enrolment.to_bytes()

    @contextmanager
    def machine(self) -> Iterator[HospitalSum]:
        """The machine, for one message; saved at the end, also where the message was refused.

        Raises:
            IntegrityError: this hospital has not enrolled, or the saved state is damaged.
        """
        if not (self._folder / _STUDY).exists():
            raise IntegrityError(_NOT_ENROLLED)
        with self._turn():
            before = self._read()
            machine = self._restore(before)
            try:
                yield machine
            finally:
                self._save(machine, before)

    def forget_replies(self) -> None:
        """Forget what was kept to be sent again, once the study is over; nothing where none was begun."""
        if (self._folder / _STUDY).exists():
            with self.machine() as machine:
                machine.forget_replies()

    def _identity(self) -> Identity:
        if self._key is not None:
            return Identity(self._key.read_bytes())
        path = self._folder / _IDENTITY
        if not path.exists():
            self._write(_IDENTITY, Identity.generate().to_bytes())
        return Identity(path.read_bytes())

    def _read(self) -> dict[str, bytes]:
        return {name: (self._folder / name).read_bytes() for name in (_STUDY, _BATCHES)}

    def _restore(self, state: Mapping[str, bytes]) -> HospitalSum:
        study, batches = state[_STUDY], state[_BATCHES]
        with as_written(self._folder):
            identity, demands = self._identity(), self._demands
            return HospitalSum.restore(identity, study_state=study, progress_state=batches, demands=demands)

    def _save(self, machine: HospitalSum, before: Mapping[str, bytes]) -> None:
        for name, state in ((_STUDY, machine.study_state()), (_BATCHES, machine.progress_state())):
            if before[name] != state:
                self._write(name, state)
        listed = not self._durable or (self._folder / _ROSTER).exists()
        if not listed and (roster := machine.roster):
            self._write(_ROSTER, _for_people(roster).encode())

    def _write(self, name: str, data: bytes) -> None:
        """The whole of it or nothing is there, on the disk when this returns."""
        write_private(self._folder / name, data, durable=self._durable)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One process at a time; a lock of the system's, gone with the process that holds it."""
        path = self._folder / _LOCK
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            while not try_lock(handle, path):  # freed by the system also where its holder was killed
                time.sleep(_WAIT_S)
            yield
        finally:
            os.close(handle)


class PlayedStore:
    """A simulated hospital's machine, among the `machines` of all that one process plays, by their folders.

    For a simulation that is this process alone: no message meets another one, and nobody goes on after a
    crash. Machines that follow another coordinator are of an earlier simulation, and forgotten.
    """

    def __init__(self, machines: dict[Path, HospitalSum], folder: Path, demands: Demands) -> None:
        self._machines, self._folder, self._demands = machines, folder, demands

    def __repr__(self) -> str:
        return f"PlayedStore({str(self._folder)!r}, secrets=<hidden>)"

    def enrol(self, request: EnrolRequest, *, party: str, study: str) -> bytes:
        """As `SumStore.enrol`; RefusedError where it is another study's or coordinator's."""
        machine = self._machines.get(self._folder)
        if machine is not None:
            return machine.answer(request, _no_votes).to_bytes()
        machine = HospitalSum.enrol(
            Identity.generate(), request, party=party, study=study, demands=self._demands
        )
        if next(iter(self._machines.values()), machine).coordinator != machine.coordinator:
            self._machines.clear()
        self._machines[self._folder] = machine
        return machine.enrolment.to_bytes()

    @contextmanager
    def machine(self) -> Iterator[HospitalSum]:
        """As `SumStore.machine`; IntegrityError where this hospital has not enrolled."""
        machine = self._machines.get(self._folder)
        if machine is None:
            raise IntegrityError(_NOT_ENROLLED)
        yield machine


def _no_votes() -> NDArray[np.int64]:
    raise IntegrityError("an enrolment asks for no votes")


def _for_people(roster: Mapping[str, str]) -> str:
    """Names and fingerprints, to be compared with the other hospitals over the telephone."""
    width = max(map(len, roster))
    return "".join(f"{name:<{width}}  {print_}\n" for name, print_ in roster.items())

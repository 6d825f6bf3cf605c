"""Where a hospital's own things are: its records, its copy of the public pool, its policy, its state.

A simulated party finds them through the study that the launcher wrote (`PATE_FED_SITE` names the file),
and its part of the private records through its partition number. A real hospital finds what its user gave on
the command line in a site file of its own.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.account import Account
from clients.policy import Policy
from clients.state_dir import LOCAL_SITE, PART, SITE_VARIABLE, LocalSettings, SimulatedSites
from pate_fed.config.data import deal_records, fix_unit, load_study_data, records_digest
from pate_fed.config.study import Study, read_study
from pate_fed.data import Dataset, held_out, pool_digest, split_among_teachers
from pate_fed.data.files import file_mark
from pate_fed.disk import write_private
from pate_fed.errors import InputError
from pate_fed.kinds.terms import Terms
from pate_fed.privacy import NoiseSource, noise_from_seed
from pate_fed.protocol.messages import Refusal
from pate_fed.secure_sum import Demands
from pate_fed.structure.parts import search_folder

_DEALING_KEY = "teachers.key"  # in a state directory
_ROWS = 1000  # at once
_HELD_OUT = "held-out.sha256"  # there, of the records and of who is out

Objection = tuple[Refusal, str]
"""Why a hospital refuses, with a sentence for its own log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One hospital's own settings, in a study that comes from a file: simulated, or rehearsed as a process.

    Whatever is here stays here. `number` only seeds; `simulated` says that this process plays a party with
    public test data, and `goes_on` that another one may go on with its state; `alone`, that it plays all
    parties of its study. `settings` are its user's; None: it has none. `together` parties train at once;
    None: as many as is quick.
    """

    party: str
    number: int
    state_dir: Path
    simulated: bool
    study: Study
    settings: LocalSettings | None = None
    goes_on: bool = False
    alone: bool = False
    together: int | None = None

    @property
    def policy(self) -> Policy | None:
        """The policy to rehearse; without a file one that allows all: the records are a simulated party's."""
        if self.settings is None:
            return None
        given = self.settings.policy
        return Policy.of_simulated() if given is None else Policy.load(given).rehearsed()

    @property
    def durable(self) -> bool:
        """Whether what it said is kept, safely on the disk, for a process that takes over."""
        return self.goes_on or not self.simulated

    @property
    def sum_key(self) -> Path | None:
        """The key that this hospital was admitted with to secure summation; None: it makes one."""
        return None if self.settings is None else self.settings.sum_key

    @property
    def account(self) -> Account | None:
        """The hospital's account over all its studies; None where nobody's records are answered about."""
        rehearses = self.settings is None or self.settings.data.startswith(PART)
        return None if rehearses or self.simulated else Account(self.party)

    @property
    def identity(self) -> Path | None:
        """The folder of the hospital's identity, which holds all its keys; None: it has none."""
        return None if self.sum_key is None else self.sum_key.parent

    def objection(self, terms: Terms) -> Objection | None:
        """What the hospital minds about terms, before it reads its data: its policy first."""
        policy = self.policy
        found = None if policy is None else policy.objection(terms)
        admitted = None if self.settings is None else self.settings.terms_digest
        if found is None and admitted not in (None, terms.digest):
            return Refusal.TERMS, "this hospital was admitted to another study"
        return found

    def refuses_more(self, *, answered: int, today: int, asked: int) -> Objection | None:
        """Why so many more queries are more than the hospital's policy allows."""
        policy = self.policy
        return None if policy is None else policy.refuses_more(answered=answered, today=today, asked=asked)

    def demands(self, terms: Terms) -> Demands:
        """What it demands of those with whom it sums: what its policy says, or what the terms promise."""
        policy = self.policy
        if policy is None:
            return Demands(least_voters=terms.least_clients, colluders=terms.colluders)
        return policy.demands(terms)

    @property
    def device(self) -> str:
        """Where teachers train: cpu or cuda."""
        from pate_fed.learning.tensors import resolve_device

        return resolve_device(self.study.engine.device)

    @property
    def dataset(self) -> Dataset:
        """The data set; a party uses its own part and the public images only."""
        return _dataset(self.study)

    @property
    def seeding(self) -> int:
        """What seeds this party's training: its number, or its name's where it has a file of its own."""
        return seed_of(self.party) if self.study.data.from_files else self.number

    def under(self, terms: Terms) -> Site:
        """The site in the study of these terms: a simulated party knows its study already."""
        return self

    def noise(self, batch: int) -> NoiseSource:
        """Its share of a batch's noise; only a simulated party's may be seeded, as a seed takes it away."""
        seeded = self.study.seed is not None and self.simulated
        return noise_from_seed(self.study.seed_for("noise", self.number, batch) if seeded else None)

    @property
    def has_pool(self) -> bool:
        """Whether the public pool lies here."""
        return True

    def keep_pool(self, content: bytes) -> None:
        """Keep the public pool that the coordinator sent; a simulated party has it already."""

    @property
    def pool_digest(self) -> str:
        """SHA-256 hex of the public pool as it lies here, whatever a cache says of it."""
        return _pool_digest(self.study)

    def look_at_records(self) -> list[str]:
        """What is odd about its records, for its own terminal: a simulated party's are nobody's."""
        return []

    def own_records(self) -> NDArray[np.int64]:
        """Indices of this party's records."""
        return _partition(self.study)[self.number]

    def teacher_parts(self) -> list[NDArray[np.int64]]:
        """Indices of this party's records, one disjoint part a teacher; some may be empty."""
        data, patients = self.dataset, None if self.own_patients() is None else self._numbers()
        names = (data.private_images, data.private_labels) if patients is None else (patients,)
        mine, key = self.own_records(), self.dealing_key()
        return split_among_teachers(mine, *names, num_teachers=self.num_teachers, key=key)

    def held_out(self, share: float) -> NDArray[np.bool_]:
        """Which of `own_records` stay out, bool (n,): about a `share`, the same at every call and restart.

        By patient wherever these are named. No other record has a part in it, and nobody else has the key.
        """
        data, patients = self.dataset, self._numbers()
        names = (data.private_images, data.private_labels) if patients is None else (patients,)
        return held_out(self.own_records(), *names, share=share, key=self.dealing_key())

    def keep_held_out(self, mask: NDArray[np.bool_], *, answered: bool) -> None:
        """Hold the records, and which of them are held out, to what they were at the study's first answer.

        A record that is written otherwise, or another key, would have one in sums and counts. `answered` says
        whether there was such an answer.

        Raises:
            InputError: they are others now, or nothing says what they were.
        """
        digest, data, own = sha256(mask.tobytes()), self.dataset, self.own_records()
        for array in (data.private_images, data.private_labels, self._numbers()):
            for start in range(0, len(own) if array is not None else 0, _ROWS):
                part = np.ascontiguousarray(array[own[start : start + _ROWS]])  # type: ignore[index]
                digest.update(f"{part.dtype}{part.shape}".encode())
                digest.update(part.data)
        note = self.state_dir / _HELD_OUT
        if not note.exists() and not answered:
            write_private(note, digest.digest(), durable=self.durable)
        if not note.exists() or note.read_bytes() != digest.digest():
            raise InputError(
                "the records are not those of this study's first answer, or the key that holds some out "
                f"({_DEALING_KEY} in the state directory) or the note of both ({_HELD_OUT}) is another: one "
                "could be in sums and counts; put all back as they were, and start this again"
            )

    def _numbers(self) -> NDArray[np.int64] | None:
        """Each record's patient by the number that its own file gives, wherever that is read."""
        patients = self.dataset.patients
        if patients is None or not self.study.data.from_files:
            return patients
        return patients ^ file_mark(self._file)

    @property
    def _file(self) -> int:
        """The place of the file with this party's records among those of its data set."""
        return self.number

    def dealing_key(self) -> bytes:
        """What the records are dealt to teachers by: its own, or of the seed that repeats all."""
        if self.simulated or self.study.seed is not None:
            return sha256(f"deal/{self.study.seed_for('split', self.seeding)}".encode()).digest()
        path = self.state_dir / _DEALING_KEY
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(path, secrets.token_bytes(32), durable=self.durable)
        return path.read_bytes()

    @property
    def num_teachers(self) -> int:
        """Teachers of this party: those of the terms or, where these leave it open, what its user says.

        Never by how many records there are: with one patient more every teacher could be another.
        """
        parties = self.study.parties
        ready = None if self.settings is None else self.settings.teachers
        if parties.records_per_teacher is None or ready is None:
            return parties.teachers_per_client
        return min(parties.teachers_per_client, ready)

    def own_patients(self) -> NDArray[np.int64] | None:
        """Whose each of this party's records is, where a patient's are taken together; None: one by one."""
        patients, privacy = self.dataset.patients, fix_unit(self.study, self.dataset).privacy
        return None if patients is None or not privacy.by_patient else patients[self.own_records()]


def seed_of(name: str) -> int:
    """A number for seeds from a hospital's name."""
    return int.from_bytes(sha256(name.encode()).digest()[:4], "big")


def find_site(node_config: Mapping[str, object]) -> LocalSettings | tuple[Path, int]:
    """A hospital's settings, or what the launcher named and the number of a simulated party.

    Raises:
        InputError: nothing is named, or the party's number is missing.
    """
    path, number = os.environ.get(SITE_VARIABLE), node_config.get("partition-id")
    if path is not None and Path(path).name == LOCAL_SITE:
        return LocalSettings.read(Path(path))
    if path is None or not isinstance(number, int):
        raise InputError(f"{SITE_VARIABLE} and partition-id say where a party's data are; one is missing")
    if Path(path).is_dir():  # of simulated hospitals with files of their own
        return LocalSettings.read(own_folder(Path(path), number) / LOCAL_SITE)
    return Path(path), number


def own_folder(folder: Path, number: int) -> Path:
    """Where a simulated hospital's own files are, in the folder of all of them."""
    return folder / f"hospital-{number}"


def simulated_site(path: Path, number: int) -> Site:
    """A simulated party's site, by the site file of its study."""
    return _party_of(*_read_site_file(path), number)


def neighbours(site: Site, count: int) -> Iterator[list[Site]]:
    """All simulated parties of this one's study, in groups of `count`, its own group first, then those after.

    They are played by processes of one machine and one user, whose disks lie side by side.
    """
    study, folder, parties = site.study, site.state_dir.parent, site.study.parties.num_clients
    file = SimulatedSites(
        study=folder, state_dir=folder, goes_on=site.goes_on, alone=site.alone, together=site.together
    )
    first = site.number - site.number % count
    starts = [*range(first, parties, count), *range(0, first, count)]
    groups = [range(start, min(start + count, parties)) for start in starts]
    return ([_party_of(study, file, number) for number in group] for group in groups)


def take_data(path: Path, dataset: Dataset) -> None:
    """Have this process play parties with data that were sent to it, by the site file of their study.

    Raises:
        InputError: it would deal their records otherwise than the coordinator.
    """
    _SENT.clear()
    _SENT[read_study(SimulatedSites.read(path).study)] = dataset
    _read_site_file.cache_clear()
    _read_site_file(path)


def _party_of(study: Study, file: SimulatedSites, number: int) -> Site:
    width = len(str(study.parties.num_clients - 1))
    files = study.data.private
    party = Path(files[number]).stem if files else f"party-{number:0{width}d}"
    return Site(
        party=party,
        number=number,
        study=study,
        state_dir=file.state_dir / party,
        simulated=True,
        goes_on=file.goes_on,
        alone=file.alone,
        together=file.together,
    )


# A simulated party's process plays many parties in turn: what they share is read once.


@lru_cache(maxsize=2)
def _read_site_file(path: Path) -> tuple[Study, SimulatedSites]:
    site = SimulatedSites.read(path)
    search_folder(site.parts)
    for cached in (_dataset, _pool_digest, _partition):  # another simulation's; its files may have changed
        cached.cache_clear()
    study = read_study(site.study)
    if site.records is not None and records_digest(study, _dataset(study)) != site.records:
        raise InputError(
            f"dataset {study.data.dataset!r} with partition {study.parties.partition!r}: gives other records "
            "here than to the coordinator; seed whatever is drawn in it"
        )
    return study, site


_SENT: dict[Study, Dataset] = {}  # one at most: what is not to be read here


@lru_cache(maxsize=1)
def _dataset(study: Study) -> Dataset:
    return _SENT[study] if study in _SENT else load_study_data(study)


@lru_cache(maxsize=1)
def _pool_digest(study: Study) -> str:
    return pool_digest(_dataset(study).public_images)


@lru_cache(maxsize=1)
def _partition(study: Study) -> list[NDArray[np.int64]]:
    return deal_records(study, _dataset(study))

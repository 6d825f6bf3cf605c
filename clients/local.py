"""A real hospital's site: its own records, its copy of the public pool, its state directory.

`python -m pate_fed.client` writes what its user gave into a site file of its state directory; everything that
is read here stays in the house.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.journal import Journal
from clients.policy import Policy
from clients.site import Site
from pate_fed.config.study import Data, Parties, Study, read_study
from pate_fed.data import (
    Dataset,
    InputSpec,
    Rows,
    pool_digest,
    read_pool,
    read_records,
    split_by_patient,
)
from pate_fed.disk import write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.learning import StudentSettings
from pate_fed.protocol.messages import Refusal, Terms
from pate_fed.secure_sum import Demands

__all__ = [
    "LocalSettings",
    "LocalSite",
    "RehearsingSite",
    "check_records",
    "kind_of",
    "local_site",
    "study_of",
]

PART = "part:"
POOL_FILE = "pool.npy"
TERMS_FILE = "terms.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """What the hospital's user gave on the command line.

    `data` is a path, or part:I for a rehearsal: the records that party I of a simulation of `config` gets.
    `pool` is the hospital's own copy of the public inputs; None: the coordinator sends one. `teachers` is how
    many it is ready to train; None: as the study says. `terms_digest` names the terms that it was admitted
    to; None: any. `policy` is the hospital's policy.toml.
    """

    hospital: str
    data: str
    state_dir: Path
    config: Path | None = None
    pool: Path | None = None
    teachers: int | None = None
    terms_digest: str | None = None
    policy: Path | None = None
    sum_key: Path | None = None

    @classmethod
    def read(cls, path: Path) -> LocalSettings:
        """From the site file that the launcher wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        for name in ("state_dir", "config", "pool", "policy", "sum_key"):
            values[name] = None if values.get(name) is None else Path(values[name])
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnSite(Site):
    """A site whose user gave settings, and may have given a policy, which is enforced."""

    settings: LocalSettings

    def objection(self, terms: Terms) -> Refusal | None:
        """What the hospital minds about terms, before it reads its data: its policy first."""
        found = self.policy.objection(terms)
        if found is not None:
            return self._refused(found)
        if self.settings.terms_digest not in (None, terms.digest):
            return Refusal.TERMS
        ready = self.settings.teachers
        return Refusal.TERMS if ready not in (None, terms.teachers_per_client) else None

    def enough(self, *, answered: int, today: int, asked: int) -> Refusal | None:
        """Why so many more queries are more than the hospital's policy allows."""
        found = self.policy.refuses_more(answered=answered, today=today, asked=asked)
        return None if found is None else self._refused(found)

    def demands(self, terms: Terms) -> Demands:
        """What the policy demands of those with whom this hospital sums its votes."""
        return self.policy.demands(terms)

    @property
    def sum_key(self) -> Path | None:
        """The key that this hospital was admitted with to secure summation."""
        return self.settings.sum_key

    @property
    def policy(self) -> Policy:
        """The hospital's policy, read anew; without a file the default."""
        return Policy.load(self.settings.policy)

    def _refused(self, found: tuple[Refusal, str]) -> Refusal:
        reason, sentence = found
        Journal(self.state_dir).note("policy", reason=reason.name, sentence=f"{reason.value}: {sentence}")
        return reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsingSite(_OwnSite):
    """Plays one party of a simulation as a process; its study comes from a file, not from the terms."""

    @property
    def policy(self) -> Policy:
        """The policy to rehearse; without a file seeded noise is allowed too: nobody is to be protected."""
        given = self.settings.policy
        return Policy(seeded_noise=True) if given is None else Policy.load(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSite(_OwnSite):
    """One real hospital. What its study is comes from the terms alone, once it has seen them."""

    terms: Terms | None = None

    def under(self, terms: Terms) -> LocalSite:
        """The same hospital in the study of these terms.

        Raises:
            IntegrityError: terms that no study of this release has.
        """
        return replace(self, terms=terms, study=study_of(terms))

    def objection(self, terms: Terms) -> Refusal | None:
        """What only a real hospital minds: the public pool comes once the rest is agreed."""
        found = _OwnSite.objection(self, terms)  # `super()` does not work in a dataclass with slots
        return found or (None if self._pool_path.exists() else Refusal.NO_POOL)

    def keep_pool(self, content: bytes) -> None:
        """Keep the public pool that the coordinator sent, if it is the one in the terms.

        Raises:
            IntegrityError: it is not.
        """
        terms = self.terms
        try:
            inputs = np.load(io.BytesIO(content), allow_pickle=False)
            sound = terms is not None and pool_digest(inputs) == terms.pool_digest
        except (ValueError, EOFError, InputError) as error:
            raise IntegrityError("the public pool that came is no array") from error
        if not sound:
            raise IntegrityError("the public pool that came is not the one in the terms")
        write_private(self.state_dir / POOL_FILE, content)

    @property
    def dataset(self) -> Dataset:
        """The hospital's own records and its copy of the public pool."""
        if self.terms is None:
            raise InputError("no study was agreed to yet")
        return _dataset(self.settings, self._pool_path, self.terms.to_json())

    @property
    def pool_digest(self) -> str:
        """SHA-256 hex of the public pool as it lies here."""
        return self.dataset.pool_digest

    @property
    def seeding(self) -> int:
        """Seeds this hospital's training in a study with a seed; from its name, as a simulation's is."""
        return seed_of(self.party)

    def teacher_parts(self) -> list[NDArray[np.int64]]:
        """Indices of this hospital's records, one disjoint part a teacher, no patient in two."""
        dataset = self.dataset
        everyone = np.arange(len(dataset.private_labels), dtype=np.int64)
        patients = everyone if dataset.patients is None else dataset.patients
        return split_by_patient(
            everyone,
            patients,
            num_teachers=self.study.parties.teachers_per_client,
            seed=self.study.seed_for("split", self.seeding),
        )

    @property
    def _pool_path(self) -> Path:
        return self.settings.pool or self.state_dir / POOL_FILE


def seed_of(name: str) -> int:
    """A number for seeds from a hospital's name."""
    return int.from_bytes(sha256(name.encode()).digest()[:4], "big")


def local_site(settings: LocalSettings) -> Site:
    """The site of one hospital.

    Raises:
        InputError: a rehearsal without its study, or of a party that it has not.
        IntegrityError: the agreed terms on disk are damaged.
    """
    if settings.data.startswith(PART):
        return _rehearsing(settings)
    site = LocalSite(
        party=settings.hospital,
        number=0,
        study=Study(),
        state_dir=settings.state_dir,
        simulated=False,
        settings=settings,
    )
    agreed = settings.state_dir / TERMS_FILE
    return site.under(Terms.from_json(agreed.read_text(encoding="utf-8"))) if agreed.exists() else site


def check_records(path: Path, kind: InputSpec, *, teachers: int) -> Rows:
    """A hospital's records, read as a study of this kind will, and enough for so many teachers.

    Raises:
        InputError: they cannot be used; the error says where and why.
    """
    own = read_records(path, kind)
    everyone = np.arange(len(own.labels), dtype=np.int64)
    try:
        split_by_patient(everyone, own.patients, num_teachers=teachers, seed=0)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return own


def _rehearsing(settings: LocalSettings) -> Site:
    if settings.config is None:
        raise InputError(f"--data {settings.data}: give --config with the study that is rehearsed")
    study = read_study(settings.config).resolve()
    number = settings.data.removeprefix(PART)
    if not number.isdigit() or int(number) >= study.parties.num_clients:
        raise InputError(
            f"--data {settings.data}: part:0 to part:{study.parties.num_clients - 1} is meant in a study of "
            f"{study.parties.num_clients} hospitals"
        )
    return RehearsingSite(
        party=settings.hospital,
        number=int(number),
        study=study,
        state_dir=settings.state_dir,
        simulated=False,
        settings=settings,
    )


def kind_of(terms: Terms) -> InputSpec:
    """What the records of a study with these terms are."""
    return InputSpec(classes=terms.classes, schema=terms.table, shape=terms.image_shape)


def study_of(terms: Terms) -> Study:
    """As much of the study as a hospital's side needs, from the terms."""
    try:
        kind = kind_of(terms)
        dataset = "images" if kind.schema is None else "table"
        student = StudentSettings() if kind.schema is None else StudentSettings(name="forest")
        parties = Parties(num_clients=terms.num_clients, teachers_per_client=terms.teachers_per_client)
        if len(kind.classes) != terms.num_classes:
            raise InputError("as many names as classes are meant")
        return Study(
            name=terms.study,
            seed=terms.seed,
            parties=parties,
            data=Data(dataset=dataset, pool=POOL_FILE, classes=kind.classes, table=kind.schema),
            teacher=terms.teacher,
            student=student,
        )
    except (InputError, TypeError) as error:
        raise IntegrityError("the terms are of no study that this release knows") from error


@lru_cache(maxsize=1)
def _dataset(settings: LocalSettings, pool: Path, terms: str) -> Dataset:
    agreed = Terms.from_json(terms)
    kind = kind_of(agreed)
    own = read_records(Path(settings.data), kind)
    public = _stored(pool) if pool.name == POOL_FILE else read_pool(pool, kind).inputs
    return Dataset(
        name=agreed.study,
        num_classes=agreed.num_classes,
        class_names=agreed.classes,
        private_images=own.inputs,
        private_labels=own.labels,
        public_images=public,
        public_labels=np.full(len(public), -1, dtype=np.int64),  # a hospital has no use for them
        num_queries=len(public),
        pool_digest=pool_digest(public),
        patients=own.patients,
    )


def _stored(path: Path) -> NDArray[np.float64]:
    try:
        inputs: NDArray[np.float64] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{path}: the public pool cannot be read; delete it, and it is sent again"
        ) from error
    return inputs

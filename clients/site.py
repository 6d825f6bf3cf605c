"""Where a hospital's own things are: its records, its copy of the public pool, its state directory.

A simulated party finds them through the study that the launcher wrote (`PATE_FED_SITE` names the file),
and its part of the private records through its partition number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.config.data import load_study_data
from pate_fed.config.study import Study, read_study
from pate_fed.data import Dataset, partition, pool_digest, split_among_teachers, split_by_patient
from pate_fed.errors import InputError
from pate_fed.privacy import NoiseSource, noise_from_seed
from pate_fed.protocol.messages import Refusal, Terms
from pate_fed.secure_sum import Demands

__all__ = ["SITE_VARIABLE", "Site", "read_site"]

SITE_VARIABLE = "PATE_FED_SITE"
LOCAL_SITE = "hospital.json"  # the name of a site file that belongs to one real hospital


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One hospital's own settings. Whatever is here stays here.

    `number` only seeds training; `simulated` says that this process plays a party with public test data, so
    that votes may be given for evaluation.
    """

    party: str
    number: int
    study: Study
    state_dir: Path
    simulated: bool

    @property
    def device(self) -> str:
        """Where teachers train: cpu or cuda."""
        from pate_fed.learning.device import resolve_device

        return resolve_device(self.study.engine.device)

    @property
    def dataset(self) -> Dataset:
        """The data set; a party uses its own part and the public images only."""
        return _dataset(self.study)

    @property
    def seeding(self) -> int:
        """What seeds this party's training: its number, or its name's where it has a file of its own."""
        if self.study.data.from_files:
            from clients.local import seed_of

            return seed_of(self.party)
        return self.number

    def under(self, terms: Terms) -> Site:
        """The site in the study of these terms: a simulated party knows its study already."""
        return self

    def objection(self, terms: Terms) -> Refusal | None:
        """What the site minds about terms, before any data are read; a simulated party minds nothing."""
        return None

    def enough(self, *, answered: int, today: int, asked: int) -> Refusal | None:
        """Why so many more queries are too many for the site; a simulated party answers all."""
        return None

    def demands(self, terms: Terms) -> Demands:
        """What the site demands of those with whom it sums its votes: what the terms promise."""
        return Demands(least_voters=terms.least_clients)

    def noise(self, batch: int) -> NoiseSource:
        """Its share of a batch's noise; only a simulated party's may be seeded, as a seed takes it away."""
        seeded = self.study.seed is not None and self.simulated
        return noise_from_seed(self.study.seed_for("noise", self.number, batch) if seeded else None)

    @property
    def sum_key(self) -> Path | None:
        """The file of the site's own key in secure summation; None: one is made in its state directory."""
        return None

    def keep_pool(self, content: bytes) -> None:
        """Keep the public pool that the coordinator sent; a simulated party has it already."""

    @property
    def pool_digest(self) -> str:
        """SHA-256 hex of the public pool as it lies here, whatever a cache says of it."""
        return _pool_digest(self.study)

    def teacher_parts(self) -> list[NDArray[np.int64]]:
        """Indices of this party's records, one disjoint part a teacher."""
        mine, dataset = _partition(self.study)[self.number], self.dataset
        teachers = self.study.parties.teachers_per_client
        seed = self.study.seed_for("split", self.seeding)
        if dataset.patients is not None:
            return split_by_patient(mine, dataset.patients[mine], num_teachers=teachers, seed=seed)
        return split_among_teachers(mine, num_teachers=teachers, seed=seed)


def read_site(node_config: Mapping[str, object]) -> Site:
    """The site of this party.

    Raises:
        InputError: no site file is named, or the party's number is missing.
    """
    path = os.environ.get(SITE_VARIABLE)
    if path is not None and Path(path).name == LOCAL_SITE:
        from clients.local import LocalSettings, local_site

        return local_site(LocalSettings.read(Path(path)))
    number = node_config.get("partition-id")
    if path is None or not isinstance(number, int):
        raise InputError(f"{SITE_VARIABLE} and partition-id say where a party's data are; one is missing")
    study, state_dir = _read_site_file(path)
    width = len(str(study.parties.num_clients - 1))
    files = study.data.private
    party = Path(files[number]).stem if files else f"party-{number:0{width}d}"
    return Site(party=party, number=number, study=study, state_dir=state_dir / party, simulated=True)


# A simulated party's process plays many parties in turn: what they share is read once.


@lru_cache(maxsize=2)
def _read_site_file(path: str) -> tuple[Study, Path]:
    site = json.loads(Path(path).read_text(encoding="utf-8"))
    return read_study(Path(site["study"])), Path(site["state_dir"])


@lru_cache(maxsize=1)
def _dataset(study: Study) -> Dataset:
    return load_study_data(study)


@lru_cache(maxsize=1)
def _pool_digest(study: Study) -> str:
    return pool_digest(_dataset(study).public_images)


@lru_cache(maxsize=1)
def _partition(study: Study) -> list[NDArray[np.int64]]:
    dataset = _dataset(study)
    return partition(
        dataset.private_labels,
        num_parties=study.parties.num_clients,
        scheme=study.parties.partition,
        seed=study.seed_for("partition"),
        owners=dataset.owners,
    )

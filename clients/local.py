"""The site of a hospital with a file of its own: its records, its copy of the pool, its state directory.

`python -m pate_fed.client` writes what its user gave into a site file of its state directory; everything that
is read here stays in the house.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.policy import Policy
from clients.site import Site, find_site, seed_of, simulated_site
from clients.state_dir import PART, LocalSettings, agreed_terms
from pate_fed.config.registry import find_part
from pate_fed.config.sections import Data, Parties, Privacy
from pate_fed.config.study import Study, read_study
from pate_fed.data import Dataset, InputSpec, Rows, Schema, pool_digest, read_records
from pate_fed.data.own_columns import OwnColumns
from pate_fed.data.profile import examine_rows
from pate_fed.disk import load_arrays, write_private
from pate_fed.errors import InputError, IntegrityError
from pate_fed.kinds.terms import Terms
from pate_fed.learning import TABLE_TEACHERS, StudentSettings, TeacherSettings
from pate_fed.privacy.protection import PATIENT_UNIT

POOL_FILE = "pool.npy"
_ODD = 0.05  # of the records: fewer outside of a range are told by `hospital check` alone


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSite(Site):
    """One real hospital. What its study is comes from the terms alone, once it has seen them."""

    settings: LocalSettings
    terms: Terms | None = None

    @property
    def policy(self) -> Policy | None:
        """The hospital's policy, read anew; without a file the default, and none of a simulated one."""
        given = self.settings.policy
        if not self.simulated:
            return Policy.load(given)
        return None if given is None else Policy.load(given).rehearsed()

    def under(self, terms: Terms) -> LocalSite:
        """The same hospital in the study of these terms.

        Raises:
            IntegrityError: terms that no study of this release has.
        """
        return replace(self, terms=terms, study=study_of(terms))

    @property
    def has_pool(self) -> bool:
        """Whether the public pool lies here; it comes once the terms are agreed."""
        return self._pool_path.exists()

    def keep_pool(self, content: bytes) -> None:
        """Keep the public pool that the coordinator sent, if it is the one in the terms.

        Raises:
            IntegrityError: it is not.
        """
        terms = self.terms
        try:
            inputs = load_arrays(io.BytesIO(content))[""]
            sound = terms is not None and pool_digest(inputs) == terms.pool_digest
        except (ValueError, KeyError, InputError) as error:
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

    def own_records(self) -> NDArray[np.int64]:
        """Indices of this hospital's records: all that it has."""
        return np.arange(len(self.dataset.private_labels), dtype=np.int64)

    def look_at_records(self) -> list[str]:
        """What is odd about them beside the public pool, which has come.

        A refusal here would tell the coordinator, who chose the pool, a bit of values that nobody charges.
        So commands that its user types refuse, and this one warns.
        """
        terms, data, identity = self.terms, self.dataset, self.identity
        if self.simulated or terms is None or terms.table is None:
            return []
        rows = Rows(data.private_images, data.private_labels, self.own_records())
        study = Path("STUDY") if identity is None else identity
        path = Path(self.settings.data)
        try:
            return look_at_records(path, rows, terms.table, study=study, pool=data.public_images, again=True)
        except InputError as error:
            return [str(error)]

    @property
    def _file(self) -> int:
        return 0

    @property
    def _pool_path(self) -> Path:
        return self.settings.pool or self.state_dir / POOL_FILE


def read_site(node_config: Mapping[str, object]) -> Site:
    """The site of this hospital.

    Raises:
        InputError: nothing says where it is, or a rehearsal without its study, or of a party that it has not.
        IntegrityError: the agreed terms on disk are damaged.
    """
    found = find_site(node_config)
    return local_site(found) if isinstance(found, LocalSettings) else simulated_site(*found)


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
        number=settings.plays or 0,
        study=Study(),
        state_dir=settings.state_dir,
        simulated=settings.plays is not None,
        settings=settings,
    )
    agreed = agreed_terms(settings.state_dir)
    return site if agreed is None else site.under(agreed)


def check_records(path: Path, kind: InputSpec, *, unit: str) -> Rows:
    """A hospital's records, read as a study of this kind will.

    Raises:
        InputError: they cannot be used, or name no patients where the unit is one; the error says where and
            why.
    """
    own = read_records(path, kind)
    _require_patients(str(path), unit, named=own.named)
    count = len(own.patients)
    if unit == PATIENT_UNIT and count > 1 and (own.patients == own.patients[0]).all():
        raise InputError(f"{path}: all {count:,} records are one patient's: is that the column of patients?")
    return own


def look_at_records(
    path: Path, rows: Rows, schema: Schema, *, study: Path, pool: NDArray[Any] | None, again: bool = False
) -> list[str]:
    """What is worth a look in a table's records beside the study, as `hospital check` finds it, by column.

    `study` is what that command takes as --study, `pool` the public inputs, None: not here. `again` leaves
    out what needs none of them.

    Raises:
        InputError: most of a column's numbers are outside of the study's range.
    """
    schema, check = schema.in_one_form(), f"pate-fed hospital check {path} --study {study}"
    own = OwnColumns.beside(path, schema)
    notes = examine_rows(rows, schema, own, pool=pool, ranges_alone=again)
    if wrong := [f"{note.column}: {note.text}" for note in notes if note.mend]:
        raise InputError(f"{path}: {'; '.join(wrong)}; {check}")
    many = (each for each in notes if not each.rows or len(each.rows) >= _ODD * len(rows.labels))
    return [f"{note.column}: {note.text}; {check}" for note in many]


def _require_patients(records: str, unit: str, *, named: bool) -> None:
    if unit == PATIENT_UNIT and not named:
        raise InputError(
            f"{records}: names no patients, and the study states its ε for one; a CSV file with a column of "
            "patients, or DICOM files, is meant"
        )


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
    return Site(
        party=settings.hospital,
        number=int(number),
        study=study,
        state_dir=settings.state_dir,
        simulated=False,
        settings=settings,
    )


def kind_of(terms: Terms) -> InputSpec:
    """What the records of a study with these terms are."""
    return InputSpec(classes=terms.classes, schema=terms.table, shape=terms.image_shape, window=terms.window)


def study_of(terms: Terms) -> Study:
    """As much of the study as a hospital's side needs, from the terms."""
    try:
        kind = kind_of(terms)
        dataset = "images" if kind.schema is None else "table"
        student = StudentSettings() if kind.schema is None else StudentSettings(name="forest")
        usual = TeacherSettings() if kind.schema is None else TeacherSettings(name=TABLE_TEACHERS[0])
        own = terms.asks.study_settings
        parties = Parties(num_clients=terms.num_clients, **own.get("parties", {}))
        if not terms.asks.reads_inputs:
            return Study(name=terms.study, seed=terms.seed, parties=parties)
        if len(kind.classes) != terms.num_classes:
            raise InputError("as many names as classes are meant")
        return Study(
            name=terms.study,
            seed=terms.seed,
            parties=parties,
            data=Data(
                dataset=dataset, pool=POOL_FILE, classes=kind.classes, table=kind.schema, window=kind.window
            ),
            teacher=own.get("teacher", usual),
            student=student,
            privacy=Privacy(unit=terms.privacy.unit),
        )
    except (InputError, TypeError) as error:
        raise IntegrityError("the terms are of no study that this release knows") from error


@lru_cache(maxsize=1)
def _dataset(settings: LocalSettings, pool: Path, terms: str) -> Dataset:
    study = study_of(Terms.from_json(terms))
    load = find_part(study.data.dataset, "dataset")
    own = replace(study.data, pool=str(pool), private=(settings.data,))
    found: Dataset = load(own, keep_none=True, decimal=settings.decimal)
    _require_patients(settings.data, study.privacy.unit, named=found.patients is not None)
    return found

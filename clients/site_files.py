"""The site files, by which a launcher tells a party's process where its own things are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from pate_fed.disk import read_json, write_private
from pate_fed.structure import to_plain

S = TypeVar("S", bound="_SiteFile")

SITE_VARIABLE = "PATE_FED_SITE"  # names the file
LOCAL_SITE = "hospital.json"  # the name of a site file that belongs to one real hospital
PART = "part:"  # begins data that are a simulated party's, to rehearse with


class _SiteFile:
    """Values that a launcher writes and a party's process reads; `what` names the file in errors."""

    what: ClassVar[str]
    __slots__ = ()

    @classmethod
    def read(cls: type[S], path: Path) -> S:
        """From the site file that the launcher wrote.

        Raises:
            InputError: it cannot be read, or is none.
        """
        return read_json(cls, path, what=cls.what)

    def write(self, path: Path) -> None:
        """Write the site file, for this user alone."""
        write_private(path, json.dumps(to_plain(self)).encode(), durable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings(_SiteFile):
    """What the hospital's user gave on the command line.

    `data` is a path, or part:I for a rehearsal: the records that party I of a simulation of `config` gets.
    `pool` is the hospital's own copy of the public inputs; None: the coordinator sends one. `teachers` is how
    many it is ready to train; None: as the study says. `decimal` is how its CSV files write numbers; None: as
    can be told. `terms_digest` names the terms that it was admitted to, `authority` the fingerprint of who
    admitted it; None: any. `policy` is the hospital's policy.toml. `plays` is a simulated
    hospital's number; None: it is a real one.
    """

    what: ClassVar[str] = "a hospital's site file"
    hospital: str
    data: str
    state_dir: Path
    config: Path | None = None
    pool: Path | None = None
    teachers: int | None = None
    decimal: str | None = None
    terms_digest: str | None = None
    authority: str | None = None
    policy: Path | None = None
    sum_key: Path | None = None
    plays: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSites(_SiteFile):
    """Where a simulation's parties find their study, the folder of their states, and parts of one's own.

    `records` is the digest of who has which records, where code of the user's own says so: every process must
    find the same, or two parties have one record. With `goes_on` another process may go on with a party's
    state, as on a cluster; `alone` says that one process plays them all. `together` parties train at once;
    None: as many as is quick.
    """

    what: ClassVar[str] = "a simulation's site file"
    study: Path
    state_dir: Path
    parts: Path | None = None
    records: str | None = None
    goes_on: bool = False
    alone: bool = False
    together: int | None = None

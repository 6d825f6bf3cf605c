"""Where a hospital keeps its state, and what a site is made of: what it answered is found again."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from pate_fed.disk import as_written, read_json, write_private
from pate_fed.errors import InputError
from pate_fed.kinds.terms import Terms
from pate_fed.runtime.run_dir import state_home
from pate_fed.structure import to_plain

# The site files, by which a launcher tells a party's process where its own things are.

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
        """From the site file that the launcher wrote."""
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


@contextmanager
def locked(path: Path, flags: int = os.O_RDONLY, *, how: int = fcntl.LOCK_EX) -> Iterator[int]:
    """Open a file or a folder under the system's lock; the handle. LOCK_NB raises BlockingIOError."""
    handle = os.open(path, flags, 0o600)
    try:
        fcntl.flock(handle, how)
        yield handle
    finally:
        os.close(handle)


TERMS_FILE = "terms.json"  # in a state directory: what the hospital agreed to
OLD_LABELS = "labels"  # in one of release 0.1.0: the folder of an answer about private labels

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH, _DIGEST_LENGTH = 40, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Agreed:
    """What tells a study from others, in the terms that a hospital keeps."""

    study: str
    pool_digest: str


def agreed_terms(state_dir: Path) -> Terms | None:
    """What the hospital agreed to, None before; DamagedFileError of the file."""
    path = state_dir / TERMS_FILE
    with as_written(path):
        return Terms.from_json(path.read_text(encoding="utf-8")) if path.exists() else None


def find_state_dir(given: str | None, hospital: str, terms: Terms | None, authority: str | None) -> Path:
    """The state directory of a hospital, absolute: the one given, this study's old one here, or the default.

    `authority` is the fingerprint of who admitted it. Without terms (a rehearsal without an admission)
    nothing says which study it will be, so it is the folder hospital-NAME here.

    Raises:
        InputError: nothing says where this user's state lies, or a folder may be another study's.
    """
    if given is not None:
        return _of_this_study(Path(given).absolute(), terms, authority)
    old = old_state_dir(hospital)
    if terms is None or (_belongs_to(old, terms) and _authority_of(old) in (None, authority)):
        return old
    return default_state_dir(hospital, terms, authority)


def old_state_dir(hospital: str) -> Path:
    """Where earlier releases kept the state of a hospital that was started here."""
    return Path(f"hospital-{hospital}").absolute()


def default_state_dir(hospital: str, terms: Terms, authority: str | None) -> Path:
    """The state directory of a hospital in a study, in its user's state home.

    A study has one by its terms and its authority: two that differ in either never meet. Where a hospital
    answers once for all studies of a kind, whatever the terms are, there is one for all of those.

    Raises:
        InputError: nothing says where this user's state lies.
    """
    home = state_home()
    if terms.asks.once_for_all:
        return home / "private-labels" / hospital
    name = _UNFIT.sub("-", terms.study)[:_NAME_LENGTH].strip("-.") or "study"
    both = hashlib.sha256(f"{terms.digest}/{authority}".encode()).hexdigest()
    return home / f"{name}-{both[:_DIGEST_LENGTH]}" / hospital


def _authority_of(folder: Path) -> str | None:
    """The fingerprint of the authority in whose study a state directory was used last; None: not known."""
    try:
        return LocalSettings.read(folder / LOCAL_SITE).authority
    except InputError:
        return None


def _of_this_study(folder: Path, terms: Terms | None, authority: str | None) -> Path:
    whose = None if terms is not None and terms.asks.once_for_all else _authority_of(folder)
    if None not in (whose, authority) and whose != authority:
        raise InputError(
            f"--state-dir {folder}: holds what was answered in another authority's study; give another folder"
        )
    return folder


def _belongs_to(folder: Path, terms: Terms) -> bool:
    """Whether a folder may hold what was answered in this study; one that cannot be read may."""
    path, once = folder / TERMS_FILE, terms.asks.once_for_all
    if once and (folder / OLD_LABELS).exists():
        return True
    try:
        path.lstat()
        agreed = read_json(_Agreed, path, what="a study's terms", aside=True)
    except FileNotFoundError:
        return False
    except (OSError, InputError):
        return True
    return once or (agreed.study, agreed.pool_digest) == (terms.study, terms.pool_digest)

"""Where a hospital keeps its state: what it answered must be found again, wherever it is started from."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from clients.site_files import LOCAL_SITE, LocalSettings
from pate_fed.disk import read_json
from pate_fed.errors import InputError
from pate_fed.kinds.terms import Terms
from pate_fed.runtime.state_home import state_home

TERMS_FILE = "terms.json"  # in a state directory: what the hospital agreed to
OLD_LABELS = "labels"  # in one of release 0.1.0: the folder of an answer about private labels

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH, _DIGEST_LENGTH = 40, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Agreed:
    """What tells a study from others, in the terms that a hospital keeps."""

    study: str
    pool_digest: str


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
    answers once for all studies of a kind, whatever the terms are, there is one for all of those. Release
    0.1.0 left the authority out; such a folder is gone on with where it is this authority's.

    Raises:
        InputError: nothing says where this user's state lies, or whose a folder of release 0.1.0 is.
    """
    home = state_home()
    if terms.asks.once_for_all:
        return home / "private-labels" / hospital
    name = _UNFIT.sub("-", terms.study)[:_NAME_LENGTH].strip("-.") or "study"
    both = hashlib.sha256(f"{terms.digest}/{authority}".encode()).hexdigest()
    found, before = (home / f"{name}-{each[:_DIGEST_LENGTH]}" / hospital for each in (both, terms.digest))
    if found.exists() or not before.exists():
        return found
    whose = _authority_of(before)
    if whose is None:
        raise InputError(
            f"{before}: holds what a hospital answered, and not in whose study; if it is this one, give it "
            "as --state-dir, else move it away"
        )
    return before if whose == authority else found


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

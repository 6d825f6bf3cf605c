"""Where a hospital keeps its state: what it answered must be found again, wherever it is started from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pate_fed.disk import read_json
from pate_fed.errors import InputError
from pate_fed.protocol.label_terms import LabelTerms
from pate_fed.protocol.terms import Terms
from pate_fed.runtime.state_home import state_home

__all__ = ["LABELS_FOLDER", "TERMS_FILE", "default_state_dir", "find_state_dir", "old_state_dir"]

TERMS_FILE = "terms.json"  # in a hospital's folder of one kind of study: what it agreed to
LABELS_FOLDER = "labels"  # in a state directory: what belongs to private labels

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LENGTH, _DIGEST_LENGTH = 40, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Agreed:
    """What tells a study with votes from others, in the terms that a hospital keeps."""

    study: str
    pool_digest: str


def find_state_dir(given: str | None, hospital: str, terms: Terms | LabelTerms | None) -> Path:
    """The state directory of a hospital, absolute: the one given, this study's old one here, or the default.

    Without terms (a rehearsal without an admission) nothing says which study it will be, so it is the folder
    hospital-NAME here.

    Raises:
        InputError: nothing says where this user's state lies.
    """
    if given is not None:
        return Path(given).absolute()
    old = old_state_dir(hospital)
    return old if terms is None or _belongs_to(old, terms) else default_state_dir(hospital, terms)


def old_state_dir(hospital: str) -> Path:
    """Where earlier releases kept the state of a hospital that was started here."""
    return Path(f"hospital-{hospital}").absolute()


def default_state_dir(hospital: str, terms: Terms | LabelTerms) -> Path:
    """The state directory of a hospital in a study, in its user's state home.

    A study with votes has one by its terms. About private labels a hospital answers once, whatever the terms
    are, so there is one for all of those.

    Raises:
        InputError: nothing says where this user's state lies.
    """
    home = state_home()
    if isinstance(terms, LabelTerms):
        return home / "private-labels" / hospital
    name = _UNFIT.sub("-", terms.study)[:_NAME_LENGTH].strip("-.") or "study"
    return home / f"{name}-{terms.digest[:_DIGEST_LENGTH]}" / hospital


def _belongs_to(folder: Path, terms: Terms | LabelTerms) -> bool:
    """Whether a folder may hold what was answered in this study; one that cannot be read may."""
    if isinstance(terms, LabelTerms):
        return (folder / LABELS_FOLDER / TERMS_FILE).exists()
    path = folder / TERMS_FILE
    try:
        path.lstat()
        agreed = read_json(_Agreed, path, what="a study's terms", aside=True)
    except FileNotFoundError:
        return False
    except (OSError, InputError):
        return True
    return (agreed.study, agreed.pool_digest) == (terms.study, terms.pool_digest)

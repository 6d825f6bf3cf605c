"""A hospital's state directory by its path, or by the study that it belongs to."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pate_fed.disk import read_json
from pate_fed.errors import InputError
from pate_fed.format import printable
from pate_fed.runtime.state_home import state_home

if TYPE_CHECKING:
    from clients.site_files import LocalSettings

STATE_DIR_HELP = "the study's name, or the folder that the hospital ran with as --state-dir"


def state_dir_of(text: str) -> Path:
    """The folder of that path, or the one in the user's state home of the study with that name.

    Raises:
        InputError: there is none, or more than one.
    """
    from clients.site_files import LOCAL_SITE

    path = Path(text)
    if path.is_dir():
        return path
    known = {each.parent: _study_of(each.parent) for each in sorted(state_home().glob("*/*/" + LOCAL_SITE))}
    found = [folder for folder, study in known.items() if study == text]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(map(str, found))
        raise InputError(f"{text}: more than one state directory is of this study; give one: {listed}")
    studies = printable(", ".join(sorted({study for study in known.values() if study}))) or "none"
    raise InputError(f"{text}: no such state directory, and no study of that name here (known: {studies})")


def settings_of(state_dir: Path) -> LocalSettings:
    """What the hospital was last started with there.

    Raises:
        InputError: no hospital ran there, or its site file is damaged.
    """
    from clients.site_files import LOCAL_SITE, LocalSettings

    path = state_dir / LOCAL_SITE
    if not path.exists():
        raise InputError(f"{state_dir}: no hospital ran there; give the --state-dir of one")
    return LocalSettings.read(path)


def identity_of(state_dir: Path, given: str | None) -> Path | None:
    """The folder of a hospital's identity: as given, else of its last run; None where it had no keys."""
    from clients.site_files import LOCAL_SITE

    if given is not None:
        return Path(given)
    if not (state_dir / LOCAL_SITE).exists():
        return None
    key = settings_of(state_dir).sum_key
    return None if key is None or not key.exists() else key.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """What of any terms, also of another release's, is their study's name."""

    study: str


def _study_of(state_dir: Path) -> str | None:
    from clients.state_dir import TERMS_FILE

    with suppress(InputError):  # a folder without its terms is found by its own name
        return read_json(_Named, state_dir / TERMS_FILE, what="the terms of a study", aside=True).study
    study, dash, _ = state_dir.parent.name.rpartition("-")  # before it has the terms its folder has the name
    return study if dash else None

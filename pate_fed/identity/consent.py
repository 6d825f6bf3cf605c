"""A hospital's own record of who accepted which terms when; it is only ever added to."""

from __future__ import annotations

import json
import os
import pwd
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from pate_fed.disk import sync_folder
from pate_fed.errors import InputError

CONSENT_FILE = "consent.jsonl"  # beside the hospital's keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """One acceptance: `user` (login name) accepted the terms with this digest at `time` (ISO 8601, UTC).

    `answer` says how: asked at the terminal, or by an option. `fingerprint_given`: the command was told the
    authority's fingerprint, and compared it.
    """

    time: str
    user: str
    hospital: str
    study: str
    terms: str
    authority: str
    fingerprint_given: bool
    answer: str


def login_name() -> str:
    """The login name of who runs this process; its number where the system knows no name."""
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def record_consent(
    folder: Path,
    *,
    hospital: str,
    study: str,
    terms: str,
    authority: str,
    fingerprint_given: bool,
    answer: str,
) -> Consent:
    """Add a consent of this process's user, now, to the record in a folder; on the disk when this returns.

    Raises:
        InputError: it cannot be written.
    """
    made = Consent(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        user=login_name(),
        hospital=hospital,
        study=study,
        terms=terms,
        authority=authority,
        fingerprint_given=fingerprint_given,
        answer=answer,
    )
    path = folder / CONSENT_FILE
    try:
        handle = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "ab") as file:
            file.write(json.dumps(asdict(made)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        sync_folder(folder)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    return made


def consent_to(folder: Path, *, terms: str, authority: str) -> Consent | None:
    """The last consent to the terms with this digest, of this authority; None where there is none.

    Raises:
        InputError: the record cannot be read.
    """
    path = folder / CONSENT_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read") from error
    found = [
        each for each in map(_read, lines) if each and (each.terms, each.authority) == (terms, authority)
    ]
    return found[-1] if found else None


def _read(line: str) -> Consent | None:
    """The consent in a line; None in one that a crash or a full disk cut."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(values, dict) and set(values) == {each.name for each in fields(Consent)}
    return Consent(**values) if whole else None

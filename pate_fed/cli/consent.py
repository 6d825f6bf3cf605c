"""`pate-fed hospital terms` and `accept`: a study in words, and a recorded yes to it."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path

from clients.local import POOL_FILE
from clients.state_dir import find_state_dir
from pate_fed.cli.pool_preview import preview
from pate_fed.cli.terms_page import make_page
from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import printable
from pate_fed.identity import Admission, HospitalIdentity
from pate_fed.identity.admission import ADMISSION_FILE
from pate_fed.identity.consent import CONSENT_FILE, Consent, record_consent
from pate_fed.kinds.terms import Terms


def show_terms(arguments: argparse.Namespace) -> int:
    """Print a study's terms in words, or as JSON."""
    terms, admission = read_offer(Path(arguments.offer))
    pool = _own_pool(terms, admission) if arguments.pool is None else Path(arguments.pool)
    shown = None if pool is None else preview(pool, terms)
    page = make_page(terms, admission=admission, preview=shown)
    if arguments.format == "json":
        print(json.dumps(page.values, indent=1))
    else:
        print("\n".join(page.lines()))
    return 0


def _own_pool(terms: Terms, admission: Admission | None) -> Path | None:
    """The copy of the public pool that a coordinator sent before, if there is one."""
    if admission is None or not terms.asks.reads_inputs:
        return None
    with suppress(InputError):  # a user without a home has no state either
        found = find_state_dir(None, admission.hospital, terms, admission.fingerprint) / POOL_FILE
        return found if found.is_file() else None
    return None


def accept(arguments: argparse.Namespace) -> int:
    """Show the terms, ask for a yes, record it, and take the admission."""
    folder = Path(arguments.dir)
    identity = HospitalIdentity.offered(folder, Path(arguments.admission), expected=arguments.fingerprint)
    made = ask_consent(identity, yes=arguments.yes, fingerprint_given=arguments.fingerprint is not None)
    identity.take()
    admission = identity.admission
    print(f"accepted by {made.user}, recorded in {folder / CONSENT_FILE}")
    print(f"{admission.hospital} may connect to {printable(admission.address)}")
    return 0


def ask_consent(identity: HospitalIdentity, *, yes: bool, fingerprint_given: bool) -> Consent:
    """Show an admission's terms and record a yes to them.

    Raises:
        InputError: the answer is no, or nobody can be asked here.
    """
    admission = identity.admission
    terms = admission.study_terms
    print("\n".join(make_page(terms, admission=admission).lines()), end="\n\n", flush=True)
    if not yes and not sys.stdin.isatty():
        raise InputError(
            "not accepted: without a terminal nobody can be asked; read the terms above, then give --yes"
        )
    if not fingerprint_given:
        print("compare the authority's fingerprint above with the coordinator's, by telephone, first")
    answer = "--yes" if yes else "asked at the terminal"
    if not yes and _asked(f"Type yes to accept these terms for {admission.hospital}: ") != "yes":
        raise InputError("not accepted: nothing was changed, and nobody was told")
    return record_consent(
        identity.folder,
        hospital=admission.hospital,
        study=terms.study,
        terms=terms.digest,
        authority=admission.fingerprint,
        fingerprint_given=fingerprint_given,
        answer=answer,
    )


def _asked(question: str) -> str:
    print(question, end="", flush=True)
    return sys.stdin.readline().strip().lower()


def read_offer(path: Path) -> tuple[Terms, Admission | None]:
    """The terms in a file of terms, in an admission, or in the admission of a hospital's own folder.

    Raises:
        InputError: it cannot be read, or is neither.
        IntegrityError: the terms of an admission are not signed by its authority.
    """
    if path.is_dir():
        path = path / ADMISSION_FILE
        if not path.exists():
            raise InputError(f"{path.parent}: no admission was accepted there yet: give its file")
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, dict) and "certificate" in values:
        admission = Admission.read(path)
        _ = admission.terms_digest  # refuses what the authority did not sign
        return admission.study_terms, admission
    try:
        return Terms.from_json(json.dumps(values)), None
    except IntegrityError as error:
        raise InputError(
            f"{path}: neither an admission nor the terms of a study that this release knows"
        ) from error

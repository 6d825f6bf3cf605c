"""`pate-fed hospital accept`: the terms are shown, others are confirmed by telephone, a yes is recorded."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clients.policy import POLICY_FILE, Policy, find_policy
from pate_fed.cli.terms import make_page
from pate_fed.disk import read_toml, write_result
from pate_fed.errors import InputError, IntegrityError, naming_refusal
from pate_fed.format import printable
from pate_fed.identity import Admission, HospitalIdentity
from pate_fed.identity.admission import CONSENT_FILE, Consent, record_consent
from pate_fed.kinds.rounds import ScoredTerms
from pate_fed.kinds.terms import Terms
from pate_fed.secure_sum import read_fingerprint
from pate_fed.structure import PARTY_NAME


def accept(arguments: argparse.Namespace) -> int:
    """Show the terms, ask for the others' fingerprints and a yes, record both, and take the admission."""
    folder = Path(arguments.dir)
    identity = HospitalIdentity.offered(folder, Path(arguments.admission), expected=arguments.fingerprint)
    made = ask_consent(identity, arguments)
    identity.take()
    admission = identity.admission
    print(f"accepted by {made.user}, recorded in {folder / CONSENT_FILE}")
    print(f"{admission.hospital} may connect to {printable(admission.address)}")
    return 0


def ask_consent(identity: HospitalIdentity, arguments: argparse.Namespace) -> Consent:
    """Show an admission's terms, ask who of the others is confirmed, and record a yes, or raise."""
    admission, yes, fingerprint_given = identity.admission, arguments.yes, arguments.fingerprint is not None
    terms, given = admission.study_terms, read_confirmed(arguments.confirm, admission)
    policy = Policy.load(find_policy(arguments.policy, str(identity.folder)))
    policy = replace(policy, trusted={**policy.trusted, **given})
    page = make_page(terms, admission=admission, policy=policy)
    print("\n".join(page.lines()), end="\n\n", flush=True)
    if not yes and not sys.stdin.isatty():
        raise InputError(
            "not accepted: without a terminal nobody can be asked; read the terms above, then give --yes"
        )
    if not fingerprint_given:
        print("compare the authority's fingerprint above with the coordinator's, by telephone, first")
    answer = "--yes" if yes else "asked at the terminal"
    if not yes and terms.secure_sum:
        said = admission.hospitals.items()  # whoever has new keys is asked about again
        unknown = (name for name, words in said if policy.trusted.get(name) != words)
        question = "What {} reads to you by telephone (Enter: not now): "
        typed = [f"{name}={words}" for name in unknown if (words := _asked(question.format(name)))]
        given = {**given, **read_confirmed(typed, admission)}
    if not yes and _asked(f"Type yes to accept these terms for {admission.hospital}: ") != "yes":
        raise InputError("not accepted: nothing was changed, and nobody was told")
    confirm(given, arguments, identity)
    made = Consent(
        hospital=admission.hospital,
        study=terms.study,
        terms=terms.digest,
        authority=admission.fingerprint,
        fingerprint_given=fingerprint_given,
        answer=answer,
    )
    record_consent(identity.folder, made)
    allow_counts_of(admission, arguments, identity)  # last: whatever fails before, nothing is counted
    return made


def allow_counts_of(admission: Admission, arguments: argparse.Namespace, identity: HospitalIdentity) -> None:
    """`allow_counts` in this hospital's policy, of terms that somebody here agreed to; and say so."""
    path = _policy_path(arguments, identity)
    if allow_counts(path, admission.study_terms):
        print(f"counts of held-out records: counts = true is written into {path}")


def read_confirmed(given: Sequence[str] | None, admission: Admission) -> dict[str, str]:
    """Others' fingerprints by name, of NAME=WORDS as read out; refuses what the admission says otherwise."""
    found = {}
    for each in given or ():
        name, _, words = each.partition("=")
        if not PARTY_NAME.fullmatch(name) or name == admission.hospital:
            raise InputError(f"--confirm {each}: NAME=WORDS of another hospital is meant")
        found[name] = read_fingerprint(words)
        if admission.hospitals.get(name, found[name]) != found[name]:
            raise IntegrityError(
                f"--confirm {name}: the coordinator says {admission.hospitals[name]}, not what was read to "
                "you: do not take part before you know who of the two is wrong"
            )
    return found


def confirm(confirmed: Mapping[str, str], arguments: argparse.Namespace, identity: HospitalIdentity) -> None:
    """Write confirmed hospitals into the policy's [trusted], and say so."""
    if confirmed:
        path = _policy_path(arguments, identity)
        confirm_in(path, confirmed)
        print(f"confirmed {', '.join(confirmed)}: written into [trusted] of {path}")


def _policy_path(arguments: argparse.Namespace, identity: HospitalIdentity) -> Path:
    return Path(arguments.policy or identity.folder / POLICY_FILE)


def allow_counts(path: Path, terms: Terms) -> bool:
    """Write `counts = true` into a policy's file where agreed terms ask for counts; whether it was."""
    values = read_toml(path, option="--policy") if path.exists() else {}
    if not isinstance(terms.asks, ScoredTerms) or "counts" in values:
        if values.get("counts") is False and isinstance(terms.asks, ScoredTerms):
            print(f"counts = false stands in {path}: this hospital will refuse the study")
        return False
    before = path.read_text("utf-8-sig") if path.exists() else ""
    _rewrite(path, f"counts = true\n{before}")  # at the top: below may be a table
    return True


def _rewrite(path: Path, text: str) -> None:
    """Write a file that may be there already, through a link to it, with its mode and owner."""
    path = path.resolve()
    before = path.stat() if path.exists() else None
    write_result(path, text.encode())
    if before is not None:
        with naming_refusal(f"{path}: its mode and owner cannot be kept"):
            path.chmod(before.st_mode & 0o777)
            if (before.st_uid, before.st_gid) != (path.stat().st_uid, path.stat().st_gid):
                os.chown(path, before.st_uid, before.st_gid)


def _asked(question: str) -> str:
    print(question, end="", flush=True)
    return sys.stdin.readline().strip().lower()


def confirm_in(path: Path, confirmed: Mapping[str, str]) -> None:
    """Write fingerprints, by hospital, into the [trusted] of a policy's file; all else stays as it is."""
    values = read_toml(path, option="--policy") if path.exists() else {}
    lines = path.read_text("utf-8-sig").splitlines() if values else []
    heads = [at for at, line in enumerate(lines) if re.fullmatch(r"\s*\[\s*trusted\s*\]\s*(#.*)?", line)]
    start = heads[0] + 1 if heads else len(lines)
    ends = [at for at, line in enumerate(lines[start:], start) if line.lstrip().startswith("[")]
    end = ends[0] if ends else len(lines)
    named = [re.match(r"""\s*["']?([^"'=\s]+)["']?\s*=""", line) for line in lines[start:end]]
    kept = [
        line
        for line, name in zip(lines[start:end], named, strict=True)
        if not name or name[1] not in confirmed
    ]
    new = [f'"{name}" = "{words}"' for name, words in confirmed.items()]
    text = "\n".join([*lines[:start], *([] if heads else ["[trusted]"]), *new, *kept, *lines[end:]]) + "\n"
    wanted = {**values, "trusted": {**values.get("trusted", {}), **confirmed}}
    try:
        right = tomllib.loads(text) == wanted
    except ValueError:
        right = False
    if not right:
        shown = "; ".join(new)
        raise InputError(f"{path}: cannot be added to; write these lines into its table [trusted]: {shown}")
    _rewrite(path, text)

"""`pate-fed hospital accept`: the terms are shown, others are confirmed by telephone, a yes is recorded."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clients.policy import POLICY_FILE, Policy, find_policy
from pate_fed.cli.parser import print_lines
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

TYPE_YES, READS = "Type yes to accept these terms for {}", "What {} reads to you by telephone"
NOT_ACCEPTED = "not accepted: nothing was changed, and nobody was told"


def accept(arguments: argparse.Namespace) -> int:
    """Show the terms, ask for the others' fingerprints and a yes, record both, and take the admission."""
    folder = Path(arguments.dir)
    identity = HospitalIdentity.offered(folder, Path(arguments.admission), expected=arguments.fingerprint)
    ask_consent(identity, arguments)
    admission = identity.take().admission
    print(f"{admission.hospital} may connect to {printable(admission.address)}")
    return 0


def ask_consent(identity: HospitalIdentity, arguments: argparse.Namespace) -> None:
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
    if not yes:
        question = f"{READS} (Enter: not now): "
        names = to_confirm(admission, policy)
        typed = [f"{name}={words}" for name in names if (words := _asked(question.format(name)))]
        given = {**given, **read_confirmed(typed, admission)}
    if not yes and _asked(f"{TYPE_YES.format(admission.hospital)}: ") != "yes":
        raise InputError(NOT_ACCEPTED)
    policy_path = policy_of(arguments.policy, identity)
    print_lines(give_consent(identity, given, policy_path, answer, compared=fingerprint_given))


def to_confirm(admission: Admission, policy: Policy) -> list[str]:
    """Hospitals whose words are asked for; whoever has new keys is asked about again."""
    said = admission.hospitals.items() if admission.study_terms.secure_sum else ()
    return [name for name, words in said if policy.trusted.get(name) != words]


def give_consent(
    identity: HospitalIdentity, confirmed: Mapping[str, str], policy: Path, answer: str, *, compared: bool
) -> Iterator[str]:
    """Write what was confirmed, and record a yes that was given as `answer` says; each is told once done."""
    admission, terms = identity.admission, identity.admission.study_terms
    yield from confirm(confirmed, policy)
    made = Consent(
        hospital=admission.hospital,
        study=terms.study,
        terms=terms.digest,
        authority=admission.fingerprint,
        fingerprint_given=compared,
        answer=answer,
    )
    record_consent(identity.folder, made)
    yield f"accepted by {made.user}, recorded in {identity.folder / CONSENT_FILE}"
    yield from filter(None, [allow_counts(policy, terms)])  # last: whatever fails before, nothing is counted


def go_on(before: Consent, terms: Terms, given: Mapping[str, str], policy: Path) -> Iterator[str]:
    """Say that a yes was given before, and write what is confirmed now; each is told once it is done."""
    yield f"accepted on {printable(before.time)} by {printable(before.user)}: not asked again"
    yield from confirm(given, policy)
    yield from filter(None, [allow_counts(policy, terms)])


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


def confirm(confirmed: Mapping[str, str], policy: Path) -> Iterator[str]:
    """Write confirmed hospitals into the policy's [trusted], and say so."""
    if confirmed:
        confirm_in(policy, confirmed)
        yield f"confirmed {', '.join(confirmed)}: written into [trusted] of {policy}"


def policy_of(given: str | None, identity: HospitalIdentity) -> Path:
    """The policy's file that a yes writes into, there already or not."""
    return Path(given or identity.folder / POLICY_FILE)


def allow_counts(path: Path, terms: Terms) -> str:
    """Write `counts = true` into a policy's file where agreed terms ask for counts; what to say of it."""
    values = read_toml(path, option="--policy") if path.exists() else {}
    if not isinstance(terms.asks, ScoredTerms):
        return ""
    if "counts" in values:
        refuses = f"counts = false stands in {path}: this hospital will refuse the study"
        return refuses if values["counts"] is False else ""
    before = path.read_text("utf-8-sig") if path.exists() else ""
    _rewrite(path, f"counts = true\n{before}")  # at the top: below may be a table
    return f"counts of held-out records: counts = true is written into {path}"


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

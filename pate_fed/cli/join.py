"""`pate-fed hospital join`: accept, look whether all is ready, and take part, in one command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pate_fed.cli.consent import ask_consent
from pate_fed.cli.doctor.command import show_findings
from pate_fed.cli.doctor.findings import PROBLEM, Finding
from pate_fed.cli.doctor.hospital import HospitalSide
from pate_fed.cli.doctor.machine import machine_findings
from pate_fed.client import main as run_client
from pate_fed.disk import check_there
from pate_fed.format import printable
from pate_fed.identity import HospitalIdentity
from pate_fed.identity.consent import CONSENT_FILE, consent_to

_MAY_COME_LATER = ("coordinator",)  # the client waits for it


def join(arguments: argparse.Namespace) -> int:
    """Take part in a study to the end; the exit code is the client's, or that of the first problem."""
    from pate_fed.flower.transport import require_transport

    require_transport("taking part in a study")
    folder = Path(arguments.dir)
    identity = HospitalIdentity.offered(folder, Path(arguments.admission), expected=arguments.fingerprint)
    admission = identity.admission
    _check_files(arguments)
    before = consent_to(folder, terms=admission.terms_digest, authority=admission.fingerprint)
    if before is None:
        made = ask_consent(identity, yes=arguments.yes, fingerprint_given=arguments.fingerprint is not None)
        print(f"accepted by {made.user}, recorded in {folder / CONSENT_FILE}")
    else:
        print(f"accepted on {printable(before.time)} by {printable(before.user)}: not asked again")
    identity.take()
    options = {
        "--data": arguments.data,
        "--decimal": arguments.decimal,
        "--pool": arguments.pool,
        "--policy": arguments.policy,
        "--server": arguments.server,
        "--state-dir": arguments.state_dir,
        "--teachers": arguments.teachers,
        "--wait": arguments.wait,
    }
    found = show_findings(_findings(arguments, identity, first=before is None))
    code = next((each.exit_code for each in found if _stops(each)), 0)
    if code:
        print("not started: mend what is a problem above, then give the same command again")
        return code
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    command = ["--hospital", admission.hospital, "--tls-dir", str(folder), *given]
    return run_client([*command, "--quiet"] if arguments.quiet else command)


def _check_files(arguments: argparse.Namespace) -> None:
    """Nobody agrees to a study and only then hears that a file was named wrongly.

    Raises:
        InputError: a file that an option names is not there, or cannot be reached.
    """
    given = (("--data", arguments.data), ("--pool", arguments.pool), ("--policy", arguments.policy))
    for option, path in given:
        if path is not None:
            check_there(Path(path), option=option)


def _stops(finding: Finding) -> bool:
    return finding.severity == PROBLEM and finding.check not in _MAY_COME_LATER


def _findings(arguments: argparse.Namespace, identity: HospitalIdentity, *, first: bool) -> Iterator[Finding]:
    """What the doctor finds at this hospital; of the machine only the first time."""
    side = HospitalSide(
        argparse.Namespace(
            hospital=identity.admission.hospital,
            data=arguments.data,
            pool=arguments.pool,
            decimal=arguments.decimal,
            policy=arguments.policy,
            server=arguments.server or identity.admission.address,
            state_dir=arguments.state_dir,
            tls_dir=str(identity.folder),
            config=None,
        )
    )
    yield from side.findings()
    if first:
        yield from machine_findings(side.requirements)

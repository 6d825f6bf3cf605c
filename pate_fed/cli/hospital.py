"""`pate-fed hospital`: a hospital's keys and its admission; its other actions have files of their own."""

from __future__ import annotations

import argparse
from pathlib import Path

from pate_fed.cli.hospital_account import add_account_action
from pate_fed.cli.hospital_leave import add_leave_action
from pate_fed.cli.hospital_log import add_log_action
from pate_fed.cli.parser import Parser, add_command, add_option

__all__ = ["add_hospital_command"]


def add_hospital_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `hospital`."""
    hospital = add_command(commands, "hospital", "at a hospital: its keys, its admission, what it gave")
    actions = hospital.add_subparsers(title="actions", required=True, metavar="ACTION")
    request = add_command(actions, "request", "make this hospital's keys, and a request to be admitted")
    add_option(request, "--name NAME", "this hospital's name", required=True)
    request.set_defaults(run=_hospital_request)
    accept = add_command(actions, "accept", "take the admission that came back")
    accept.add_argument("admission", metavar="NAME.admission", help="what the coordinator sent")
    add_option(accept, "--fingerprint HEX", "the authority's, as the coordinator told it: must be the same")
    accept.set_defaults(run=_hospital_accept)
    add_log_action(actions)
    add_account_action(actions)
    add_leave_action(actions)
    for action in (request, accept):
        action.add_argument(
            "--dir", metavar="DIR", default=".", help="of its keys and admission (default: here)"
        )


def _hospital_request(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import make_request, sum_fingerprint

    path = make_request(Path(arguments.dir), arguments.name)
    print(f"made this hospital's keys (they stay here, mode 0600) and {path}: send that to the coordinator")
    print(f"for other hospitals' [trusted] (tell them another way): {sum_fingerprint(Path(arguments.dir))}")
    return 0


def _hospital_accept(arguments: argparse.Namespace) -> int:
    from pate_fed.cli.terms import cost_text
    from pate_fed.identity import HospitalIdentity

    found = HospitalIdentity.accept(
        Path(arguments.dir), Path(arguments.admission), expected=arguments.fingerprint
    ).admission
    print(f"accepted: {found.hospital} may connect to {found.address}")
    print(f"the study's terms, and what they cost at most: {cost_text(found.terms)}")
    if arguments.fingerprint is None:
        print(f"compare this fingerprint with the coordinator's, by telephone: {found.fingerprint}")
    return 0

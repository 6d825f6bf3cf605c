"""`pate-fed hospital`: its options. What each action does lies in a file of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pate_fed.cli.hospital_account import add_account_action
from pate_fed.cli.hospital_leave import add_leave_action
from pate_fed.cli.hospital_log import add_log_action
from pate_fed.cli.parser import (
    DECIMAL,
    STATE_DIR,
    TEACHERS,
    Parser,
    add_command,
    add_format_option,
    add_option,
)
from pate_fed.runtime.console import only_tell

_OFFER = "an admission, a file of terms, or this hospital's own folder of keys"
_DATA = "this hospital's records: a CSV, an .npz (x, y), a folder of images by class or of idx files"


def add_hospital_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `hospital`."""
    hospital = add_command(
        commands, "hospital", "at a hospital: its keys, the terms that it accepts, what it gave and spent"
    )
    actions = hospital.add_subparsers(title="actions", required=True, metavar="ACTION")
    request = add_command(actions, "request", "make this hospital's keys, and a request to be admitted")
    add_option(request, "--name NAME", "this hospital's name", required=True)
    request.set_defaults(run=_hospital_request)
    _add_terms(actions)
    rehearse = _add_rehearse(actions)
    accept = add_command(actions, "accept", "read the terms of an admission, and say yes to them")
    _add_admission(accept)
    accept.set_defaults(run=_hospital_accept)
    join = _add_join(actions)
    add_log_action(actions)
    add_account_action(actions)
    add_leave_action(actions)
    for action in (request, accept, join):
        action.add_argument(
            "--dir", metavar="DIR", default=".", help="the folder of its keys and admission (default: here)"
        )
    for action, pool in (
        (rehearse, "its copy of the public inputs (default: its own records stand in for them)"),
        (join, "its copy of the public inputs (default: the coordinator sends one)"),
    ):
        add_option(action, "--data PATH", _DATA, required=True)
        add_option(action, "--pool PATH", pool)
        add_option(action, "--decimal", DECIMAL, choices=("point", "comma"))
        add_option(action, "--policy FILE", "its policy.toml (default: the one beside its keys)")


def _add_terms(actions: argparse._SubParsersAction[Any]) -> None:
    terms = add_command(actions, "terms", "a study in words, before anything is accepted")
    terms.add_argument("offer", metavar="FILE", help=_OFFER)
    add_option(terms, "--pool FILE", "a copy of the public inputs, to look at")
    add_format_option(terms)
    terms.set_defaults(run=_hospital_terms)


def _add_rehearse(actions: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    rehearse = add_command(
        actions,
        "rehearse",
        "train, vote, and look at the bytes that would leave",
        description="Does all that a study asks of this hospital, up to the wire: reads its records, trains "
        "its teachers, answers a sample, and shows what would leave. All of it is thrown away. Nothing is "
        "sent, nothing is counted as answered.",
    )
    rehearse.add_argument("offer", metavar="FILE", help=_OFFER)
    add_option(rehearse, "--sample N", "public inputs to answer", default=20)
    rehearse.set_defaults(run=_hospital_rehearse)
    return rehearse


def _add_join(actions: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    join = add_command(
        actions,
        "join",
        "accept, look whether all is ready, and take part",
        description="Shows the terms and asks for a yes, unless this hospital accepted them before. Looks "
        "for what would stop it. Then runs the hospital until the study is over. After a crash the same "
        "command goes on.",
    )
    _add_admission(join)
    add_option(join, "--teachers K", TEACHERS, type=int)
    add_option(join, "--server HOST:PORT", "the coordinator's address (default: of the admission)")
    add_option(join, "--state-dir DIR", STATE_DIR)
    wait = "give up when the coordinator is out of reach, or has no seat for this hospital, for so long"
    add_option(join, "--wait SECONDS", wait, default=604800, type=float)
    add_option(join, "--quiet", "no progress, only warnings and the outcome")
    join.set_defaults(run=_hospital_join)
    return join


def _add_admission(action: argparse.ArgumentParser) -> None:
    """The admission, and how a yes to it is given."""
    action.add_argument("admission", metavar="NAME.admission", help="what the coordinator sent")
    add_option(
        action,
        "--fingerprint HEX",
        "the authority's, as the coordinator told it another way; another one is refused",
    )
    add_option(action, "--yes", "accept without being asked, as scripts do; recorded as such")


def _hospital_request(arguments: argparse.Namespace) -> int:
    from pate_fed.identity import make_request, sum_fingerprint
    from pate_fed.identity.certificates import spoken
    from pate_fed.identity.keys import read_request

    folder = Path(arguments.dir)
    path = make_request(folder, arguments.name)
    print(f"made this hospital's keys, which stay here (mode 0600), and the request {path}")
    print("send the request to the coordinator; its fingerprint, to compare by telephone:")
    print(f"  {spoken(read_request(path).fingerprint)}")
    print("fingerprint for [trusted] in other hospitals' policy.toml, to tell them by telephone:")
    print(f"  {sum_fingerprint(folder)}")
    print(f"with the admission that comes back: pate-fed hospital join FILE --dir {folder} --data RECORDS")
    return 0


def _hospital_terms(arguments: argparse.Namespace) -> int:
    from pate_fed.cli.consent import show_terms

    return show_terms(arguments)


def _hospital_accept(arguments: argparse.Namespace) -> int:
    from pate_fed.cli.consent import accept

    return accept(arguments)


def _hospital_rehearse(arguments: argparse.Namespace) -> int:
    from pate_fed.cli.rehearse import rehearse

    return rehearse(arguments)


def _hospital_join(arguments: argparse.Namespace) -> int:
    from pate_fed.cli.join import join

    only_tell()
    return join(arguments)

"""`pate-fed hospital`: a hospital's keys, its admission and its log."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pate_fed.cli.parser import Parser, add_command, add_format_option, add_option
from pate_fed.errors import InputError
from pate_fed.format import delta_text, epsilon_text

__all__ = ["add_hospital_command", "log_lines"]


def add_hospital_command(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register `hospital`."""
    hospital = add_command(commands, "hospital", "at a hospital: its keys, its admission, its log")
    actions = hospital.add_subparsers(title="actions", required=True, metavar="ACTION")
    request = add_command(actions, "request", "make this hospital's keys, and a request to be admitted")
    add_option(request, "--name NAME", "this hospital's name", required=True)
    request.set_defaults(run=_hospital_request)
    accept = add_command(actions, "accept", "take the admission that came back")
    accept.add_argument("admission", metavar="NAME.admission", help="what the coordinator sent")
    add_option(accept, "--fingerprint HEX", "the authority's, as the coordinator told it: must be the same")
    accept.set_defaults(run=_hospital_accept)
    log = add_command(actions, "log", "what this hospital was asked, answered, refused and sent")
    log.add_argument("state_dir", metavar="STATE_DIR", help="the --state-dir of python -m pate_fed.client")
    add_format_option(log)
    log.set_defaults(run=_hospital_log)
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


def _hospital_log(arguments: argparse.Namespace) -> int:
    for line in log_lines(Path(arguments.state_dir), as_json=arguments.format == "json"):
        print(line)
    return 0


def log_lines(state_dir: Path, *, as_json: bool) -> Iterator[str]:
    """The events of a hospital's state directory, one a line, and a sum at the end.

    Raises:
        InputError: the directory holds no log.
    """
    from clients.journal import LOG_FILE, read_events

    if not (state_dir / LOG_FILE).is_file():
        raise InputError(f"{state_dir}: holds no {LOG_FILE}; give the --state-dir of a hospital")
    sent = queries = refused = torn = 0
    for line, event in read_events(state_dir):
        if event is None:
            torn += 1
            continue
        sent += int(event["bytes"]) if event["event"] == "sent" else 0
        queries += int(event["queries"]) if event["event"] == "voted" else 0
        refused += event["event"] == "refused"
        yield line if as_json else _words(event)
    total = {"event": "total", "bytes": sent, "queries": queries, "refused": refused, "torn_lines": torn}
    if as_json:
        yield json.dumps(total)
    else:
        cut = f", {torn} lines cut" if torn else ""
        yield f"in all: {queries} queries answered, {refused} requests refused, {sent} bytes sent{cut}"


def _words(event: dict[str, Any]) -> str:
    from pate_fed.protocol.messages import Refusal

    when = datetime.fromtimestamp(float(event["time"]), UTC).strftime("%Y-%m-%d %H:%M:%S")
    kind = str(event["event"])
    if kind == "sent":
        return f"{when}  sent {event['bytes']} bytes ({event['message_type']})"
    if kind == "voted":
        return f"{when}  voted on {event['queries']} queries"
    if kind in ("labelled", "labelled again"):
        what = f"{event['mechanism']}, ε={epsilon_text(event['epsilon'])} δ={delta_text(event['delta'])}"
        same = "" if kind == "labelled" else ", the same answer again: at no further cost"
        return f"{when}  answered about its labels ({what}{same})"
    if kind == "refused":
        reason = Refusal.__members__.get(str(event["reason"]))
        return f"{when}  " + (f"refused: {event['reason']}" if reason is None else reason.sentence)
    if kind == "handled":
        return f"{when}  that took {float(event['seconds']):.1f} s"
    if kind == "taught":
        return f"{when}  trained teacher {int(event['teacher']) + 1}"
    rest = {name: value for name, value in event.items() if name not in ("time", "event")}
    shown = event.get("sentence") or ", ".join(f"{name} {value}" for name, value in rest.items())
    return f"{when}  {kind}: {str(shown).strip().splitlines()[-1] if shown else '-'}"

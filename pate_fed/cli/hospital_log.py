"""`pate-fed hospital log`: a hospital's log in words, and whether it is whole."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pate_fed.cli.parser import add_command, add_format_option, add_option, print_lines
from pate_fed.cli.state_dirs import STATE_DIR_HELP, identity_of, state_dir_of
from pate_fed.errors import InputError, IntegrityError
from pate_fed.format import counted, printable

_CHAIN = ("time", "event", "before", "signature")


def add_log_action(actions: argparse._SubParsersAction[Any]) -> None:
    """Register `hospital log`."""
    log = add_command(
        actions,
        "log",
        "what this hospital was asked, answered, refused and sent",
        description="Shows what this hospital was asked, answered, refused and sent. With --verify it checks "
        "that no line was changed, removed or reordered, that the hospital's key signed each, and that the "
        "coordinator's receipt fits; exit code 6 where something does not.",
    )
    log.add_argument("state_dir", metavar="STATE_DIR|STUDY", help=STATE_DIR_HELP)
    add_option(log, "--verify", "check the chain, the signatures and the coordinator's receipt")
    add_option(
        log, "--dir DIR", "the folder of its keys and admission, for --verify (default: as the hospital ran)"
    )
    add_format_option(log)
    log.set_defaults(run=_log)


def _log(arguments: argparse.Namespace) -> int:
    state_dir = state_dir_of(arguments.state_dir)
    if arguments.verify:
        return _verify(state_dir, arguments)
    for line in log_lines(state_dir, as_json=arguments.format == "json"):
        print(line)
    return 0


def _verify(state_dir: Path, arguments: argparse.Namespace) -> int:
    from clients.log_check import check_log

    found = check_log(state_dir, identity_of(state_dir, arguments.dir))
    if arguments.format == "json":
        print(json.dumps({**asdict(found), "verdict": found.verdict}, ensure_ascii=False))
    else:
        print_lines([*found.holds, *(f"PROBLEM: {what}" for what in found.broken), found.verdict])
    return IntegrityError.exit_code if found.broken else 0


def log_lines(state_dir: Path, *, as_json: bool) -> Iterator[str]:
    """The events of a hospital's state directory, one a line, and a sum at the end.

    Raises:
        InputError: the directory holds no log.
    """
    from clients.log import LOG_FILE, Answered, read_events

    if not (state_dir / LOG_FILE).is_file():
        raise InputError(f"{state_dir}: holds no {LOG_FILE}; give the --state-dir of a hospital")
    sent = refused = torn = 0
    given = Answered()
    for line, event in read_events(state_dir):
        if event is None:
            torn += 1
            continue
        sent += int(event["bytes"]) if event["event"] == "sent" else 0
        given.take(event)
        refused += event["event"] == "refused"
        yield line if as_json else printable(_words(event))  # a message's type is its sender's word
    if as_json:
        rest = {"refused": refused, "torn_lines": torn}
        yield json.dumps({"event": "total", "bytes": sent, "rows": dict(given.rows), **rest})
    else:
        cut = f", {counted(torn, 'line')} cut" if torn else ""
        requests = counted(refused, "request")
        yield f"in all: {given.text}, {requests} refused, {counted(sent, 'byte')} sent{cut}"


def _words(event: dict[str, Any]) -> str:
    from pate_fed.protocol.refusals import Refusal

    when = datetime.fromtimestamp(float(event["time"]), UTC).strftime("%Y-%m-%d %H:%M:%S")
    kind = str(event["event"])
    if kind == "sent":
        return f"{when}  sent {event['bytes']} bytes ({event['message_type']})"
    if kind in ("answered", "answered again"):
        return f"{when}  {kind}: {counted(int(event['rows']), 'row')} of {event['asks']}"
    if kind == "refused":
        reason = Refusal.__members__.get(str(event["reason"]))
        return f"{when}  " + (f"refused: {event['reason']}" if reason is None else reason.sentence)
    if kind == "handled":
        digest = f" (sha256 of what leaves: {str(event['sha256'])[:16]}…)" if "sha256" in event else ""
        return f"{when}  that took {float(event['seconds']):.1f} s{digest}"
    if kind == "receipt":
        return f"{when}  kept the coordinator's receipt (sha256 {str(event['kept'])[:16]}…)"
    if kind == "ended" and event["status"] == "aborted":
        return f"{when}  the coordinator was interrupted; it may go on"
    if kind == "ended":
        return f"{when}  the coordinator ended the study: {event['status']}"
    if kind == "taught":
        return f"{when}  trained teacher {int(event['teacher']) + 1}"
    rest = {name: value for name, value in event.items() if name not in _CHAIN}
    shown = event.get("sentence") or ", ".join(f"{name} {value}" for name, value in rest.items())
    return f"{when}  {kind}: {str(shown).strip().splitlines()[-1] if shown else '-'}"

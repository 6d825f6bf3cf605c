"""`pate-fed hospital log`: the hospital's own log in words, and how many bytes left the house."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pate_fed.errors import InputError
from pate_fed.format import epsilon_text
from pate_fed.protocol.messages import Refusal

__all__ = ["log_lines"]

LOG_FILE = "log.jsonl"


def log_lines(state_dir: Path, *, as_json: bool) -> Iterator[str]:
    """The events of a hospital's state directory, one a line, and a sum at the end.

    Raises:
        InputError: the directory holds no log.
    """
    path = state_dir / LOG_FILE
    if not path.is_file():
        raise InputError(f"{state_dir}: holds no {LOG_FILE}; give the --state-dir of a hospital")
    sent = queries = refused = torn = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:  # a line that a full disk or a crash cut
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
    when = datetime.fromtimestamp(float(event["time"]), UTC).strftime("%Y-%m-%d %H:%M:%S")
    kind = str(event["event"])
    if kind == "sent":
        return f"{when}  sent {event['bytes']} bytes ({event['message_type']})"
    if kind == "voted":
        return f"{when}  voted on {event['queries']} queries"
    if kind in ("labelled", "labelled again"):
        what = f"{event['mechanism']}, ε={epsilon_text(event['epsilon'])} δ={event['delta']:g}"
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

"""Clocks that differ: Flower signs each call with the time, and refuses without a word whose time is another.

The guard, in the SuperLink's process, sees whose calls these are; its log tells the coordinator.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import grpc
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE

from pate_fed.format import duration_text

_SIGN = "pate_fed: another clock: "
_EVERY_S = 60.0


class Clocks:
    """Writes on standard output, once a minute each, whose calls Flower refuses for their time."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        self._lock = threading.Lock()

    def look(self, context: grpc.ServicerContext) -> None:
        """Look at the time of a call; whatever is wrong with the call is for others to refuse."""
        said = dict(context.invocation_metadata()).get(TIMESTAMP_HEADER)
        try:
            ahead = (datetime.fromisoformat(str(said)) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return
        if -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE:
            return
        [name, *_] = context.auth_context().get("x509_common_name") or [b""]
        with self._lock:
            if time.monotonic() < self._told.get(name.decode(), 0.0):
                return
            self._told[name.decode()] = time.monotonic() + _EVERY_S
        print(f"{_SIGN}{name.decode()} {ahead:.0f}", flush=True)


def clocks_told(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Whose calls were refused for their time, by a SuperLink's log, and a sentence on it."""
    for line in lines:
        name, _, seconds = line.removeprefix(_SIGN).partition(" ")
        if line.startswith(_SIGN) and name and seconds.lstrip("-").isdigit():
            ahead = int(seconds)
            yield (
                name,
                f"{name} cannot connect: its clock is {duration_text(abs(ahead))} "
                f"{'ahead of' if ahead > 0 else 'behind'} this machine's, which says "
                f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC; one of the two is to be set",
            )

"""SIGINT and SIGTERM: one way to interrupt a command's work, one to ask a running study to stop.

Python lets only the main thread set signal handlers. In any other thread both ways still heed their event.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pate_fed.errors import PateFedError

INTERRUPTED = 130  # exit code: 128 + SIGINT
_PATIENCE_S = 2.0


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end.

    A class of its own: CPython ends a process as if SIGINT had killed it when a plain KeyboardInterrupt came
    out of code that was compiled on the way, as dataclasses are, even where it was caught afterwards.
    """


@contextmanager
def interruptible(stop: threading.Event, *, note: str = "the ledger keeps what was spent") -> Iterator[None]:
    """Ctrl-C or a termination signal asks the coordinator to stop; a later one ends at once.

    `note` tells the user what becomes of what was done.

    Raises:
        Interrupted: `stop` was set before.
    """
    asked_at = math.inf

    def handle(number: int, _: object) -> None:
        nonlocal asked_at
        if stop.is_set():
            # One Ctrl-C may arrive twice, from the terminal and from a wrapper such as `timeout`.
            if time.monotonic() > asked_at + _PATIENCE_S:
                os._exit(INTERRUPTED)
            return
        asked_at = time.monotonic()
        stop.set()
        logging.disable(logging.ERROR)  # what libraries say of children that end with us helps nobody
        # In one piece, or a progress line of another thread gets in between.
        print(f"\nstopping: {note} (again to end at once)\n", end="", file=sys.stderr, flush=True)

    with _handled_by(handle, signal.SIGINT, signal.SIGTERM):
        if asked_at == math.inf:
            raise_if(stop)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


@contextmanager
def terminating(asked: threading.Event) -> Iterator[None]:
    """Ctrl-C or a termination signal interrupts what is done here, so that children are ended in either case.

    Libraries may swallow that exception, as a bare `except` in a module that is being imported does, or make
    another of it, as pydantic does. So `asked` is set as well, for who waits (`raise_if`), and whatever ends
    the work after that is the interruption.

    Raises:
        Interrupted: on a signal.
    """

    def handle(number: int, _: object) -> None:
        asked.set()
        raise Interrupted

    with _handled_by(handle, signal.SIGINT, signal.SIGTERM):
        try:
            yield
        except PateFedError:
            raise
        except Exception as error:
            if asked.is_set():
                raise Interrupted from error
            raise


def raise_if(asked: threading.Event) -> None:
    """Raise Interrupted where that was asked for."""
    if asked.is_set():
        raise Interrupted


@contextmanager
def hangup_interrupts() -> Iterator[None]:
    """A terminal that is closed raises Interrupted, too, in what is done here; not under `nohup`."""

    def handle(number: int, _: object) -> None:
        raise Interrupted

    hangup = getattr(signal, "SIGHUP", None)  # not on every system
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        yield
        return
    with _handled_by(handle, hangup):
        yield


@contextmanager
def _handled_by(handle: Callable[[int, FrameType | None], None], *signals: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # whoever called the command from a thread handles the process's signals
        return
    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)

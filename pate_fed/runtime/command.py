"""The two commands that run a study: signals, errors of one sentence, an outcome line at the end."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pate_fed.errors import PateFedError, naming_extras
from pate_fed.runtime.isolation import require_one_installation
from pate_fed.runtime.signals import INTERRUPTED, terminating


def run_study_command(
    parse: Callable[[], argparse.Namespace],
    run: Callable[[argparse.Namespace, threading.Event, float], int],
    *,
    resumes: bool,
) -> int:
    """Parse the command line and run the study; the exit code.

    `run` gets the arguments, the event that asks it to stop, and the `time.perf_counter` of the beginning.
    With `resumes` the command goes on with a run directory that has a ledger already.
    """
    started, stop = time.perf_counter(), threading.Event()
    as_json = begun = False
    try:
        arguments = parse()
        as_json = arguments.format == "json"
        begun = (
            resumes and arguments.run_dir is not None and Path(arguments.run_dir, "ledger.sqlite").exists()
        )
        require_one_installation()
        with terminating(stop), naming_extras("this study"):
            return run(arguments, stop, started)
    except PateFedError as error:
        print(f"error: {error}", file=sys.stderr)
        print(nothing_spent("failed", str(error), as_json=as_json, begun=begun))
        return error.exit_code
    except KeyboardInterrupt:  # before the study began; then `interruptible` hears it
        print(nothing_spent("aborted", "interrupted; nothing was asked", as_json=as_json, begun=begun))
        return INTERRUPTED


def nothing_spent(status: str, reason: str, *, as_json: bool, begun: bool = False) -> str:
    """The outcome line of a command that ended before anything was asked; its JSON has every run's keys.

    With `begun` its run directory holds a ledger already, which says what was spent.
    """
    if as_json:
        values = {
            "status": status,
            "reason": reason,
            "epsilon": None if begun else 0.0,
            "delta": None,
            "unit": None,
            "labels": None if begun else 0,
            "accuracy": None,
            "accuracy_n": None,
            "accuracy_interval": None,
            "majority": None,
            "balanced_accuracy": None,
            "report": None,
        }
        return json.dumps(values, ensure_ascii=False)
    none = "-" if begun else "0"
    return f"{status.upper()}  ε={none} δ=- unit=- labels={none} accuracy=- report=-"

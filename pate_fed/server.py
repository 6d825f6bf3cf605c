"""`python -m pate_fed.server`: the coordinator of a study with separate hospital processes."""

from __future__ import annotations

import argparse
import importlib
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pate_fed import __version__
from pate_fed.cli.parser import Parser
from pate_fed.config.study import PROCESSES, Study, read_study
from pate_fed.errors import PateFedError
from pate_fed.runtime.host import add_address_options, open_host
from pate_fed.runtime.launch import (
    INTERRUPTED,
    fresh_run_dir,
    interruptible,
    nothing_spent,
    terminating,
    unfinished_run,
)

__all__ = ["main", "study_to_run"]

_EPILOG = """\
Hospitals connect with python -m pate_fed.client. Exit codes: 0 success, 1 fault, 2 wrong input, 3 budget,
4 quorum, 5 refused by policy, 6 failed check, 130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit code."""
    started = time.perf_counter()
    as_json, begun, stop = False, False, threading.Event()
    try:
        arguments = _parser().parse_args(argv)
        as_json = arguments.format == "json"
        begun = arguments.run_dir is not None and (Path(arguments.run_dir) / "ledger.sqlite").exists()
        with terminating(stop):
            return _Launch(arguments, stop).run(started)
    except PateFedError as error:
        print(f"error: {error}", file=sys.stderr)
        print(nothing_spent("failed", str(error), as_json=as_json, begun=begun))
        return error.exit_code
    except KeyboardInterrupt:  # before the study began; then `interruptible` hears it
        print(nothing_spent("aborted", "interrupted; nothing was asked", as_json=as_json, begun=begun))
        return INTERRUPTED


class _Launch:
    """One study, from its file to its outcome."""

    def __init__(self, arguments: argparse.Namespace, stop: threading.Event) -> None:
        self._arguments, self._stop = arguments, stop
        self._study = study_to_run(Path(arguments.config), num_hospitals=arguments.num_hospitals)
        self._host = open_host(arguments, quiet=arguments.quiet)
        given = arguments.run_dir
        self._resume = given is not None and unfinished_run(Path(given), self._study)
        self._run_dir = Path(given) if self._resume else fresh_run_dir(given, self._study)
        if self._resume:
            self._host.say(f"going on with the run in {self._run_dir}, from its ledger")

    def run(self, started: float) -> int:
        """Run the study; the exit code."""
        authority = self._host.authority
        # The coordinator is named, as Flower names apps: pate_fed imports neither party.
        self._coordinator: Any = importlib.import_module("server.app").Coordinator(
            self._study,
            run_dir=self._run_dir,
            quiet=self._arguments.quiet,
            stop=self._stop,
            started=started,
            resume=self._resume,
            key=None if authority is None else authority.ledger_key(),
        )
        self._host.require_terms(self._coordinator.terms_digest)
        from pate_fed.flower.compat import quiet_flower

        with interruptible(self._stop):
            with quiet_flower():
                self._coordinator.run(self._serve)
            return int(self._coordinator.conclude(as_json=self._arguments.format == "json"))

    def _serve(self, server_app: Any) -> None:
        self._host.serve(
            server_app,
            self._coordinator,
            folder=self._run_dir / "flower",
            hospitals=self._study.parties.num_clients,
            stop=self._stop,
        )


def study_to_run(config: Path, *, num_hospitals: int | None) -> Study:
    """The resolved study of a study.toml with separate hospitals, as many as it says or as given.

    Raises:
        InputError: the file is not there, or what it says is wrong.
    """
    study = read_study(config, num_hospitals=num_hospitals)
    # Hospitals answer no question whose answer is only for measuring.
    study = replace(
        study,
        queries=replace(study.queries, evaluate=False),
        engine=replace(study.engine, backend=PROCESSES),
    )
    return study.resolve()


def _parser() -> Parser:
    parser = Parser(prog="python -m pate_fed.server", description=__doc__, epilog=_EPILOG)
    parser.add_argument("--config", metavar="FILE", required=True, help="the study's study.toml")
    parser.add_argument("--num-hospitals", type=int, metavar="N", help="hospitals (default: from the study)")
    add_address_options(parser)
    parser.add_argument("--run-dir", metavar="DIR", help="where the run's files go (default runs/NAME-TIME)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of the outcome line")
    parser.add_argument("--quiet", action="store_true", help="no progress, only warnings and the outcome")
    parser.add_argument("--version", action="version", version=f"pate_fed {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""The command `pate-fed`: its parser, put together of all commands, and their exit codes."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Sequence

from pate_fed.cli.compare import add_compare_command
from pate_fed.cli.completion import add_completion_command
from pate_fed.cli.data import add_data_command
from pate_fed.cli.demo import add_demo_command
from pate_fed.cli.doctor.command import add_doctor_command
from pate_fed.cli.export import add_export_command
from pate_fed.cli.hospital import add_hospital_command
from pate_fed.cli.label_dp import add_label_dp_command
from pate_fed.cli.parser import Parser, as_typed
from pate_fed.cli.plan import add_audit_command, add_plan_command
from pate_fed.cli.predict import add_predict_command
from pate_fed.cli.reproduce import add_reproduce_command
from pate_fed.cli.run import add_ledger_command, add_report_command
from pate_fed.cli.study import add_study_command
from pate_fed.cli.sweep import add_sweep_command
from pate_fed.cli.watch import add_watch_command
from pate_fed.errors import PateFedError
from pate_fed.format import VERSION
from pate_fed.runtime.isolation import require_one_installation
from pate_fed.runtime.signals import INTERRUPTED, terminating

__all__ = ["main", "make_parser"]

_DESCRIPTION = (
    "What comes before and after a study with PATE. The study itself is flower-simulation on one machine. "
    "Where hospitals are apart it is python -m pate_fed.server at the coordinator and pate-fed hospital join "
    "at each hospital."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit code."""
    arguments = argparse.Namespace()
    try:
        arguments = make_parser().parse_args(argv)
        run: Callable[[argparse.Namespace], int] = arguments.run
        require_one_installation()
        with terminating(threading.Event()):
            return run(arguments)
    except PateFedError as error:
        print(f"error: {as_typed(str(error), arguments)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader left, as `| head` does
        return 0


def make_parser() -> Parser:
    """The parser of all commands; each command's `run` takes the arguments and returns the exit code."""
    parser = Parser(prog="pate-fed", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"pate_fed {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add_command in (
        add_plan_command,
        add_data_command,
        add_study_command,
        add_hospital_command,
        add_doctor_command,
        add_demo_command,
        add_ledger_command,
        add_report_command,
        add_watch_command,
        add_compare_command,
        add_sweep_command,
        add_predict_command,
        add_export_command,
        add_label_dp_command,
        add_audit_command,
        add_reproduce_command,
    ):
        add_command(commands)
    add_completion_command(commands, parser)
    return parser

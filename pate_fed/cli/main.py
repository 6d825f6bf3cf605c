"""The command `pate-fed`: its parser, put together of all commands, and exit codes."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pate_fed.cli.bench import add_bench_command
from pate_fed.cli.demo import add_demo_command
from pate_fed.cli.doctor.command import add_doctor_command
from pate_fed.cli.hospital import add_hospital_command
from pate_fed.cli.label_dp import add_label_dp_command
from pate_fed.cli.parser import Parser, as_typed
from pate_fed.cli.plan import add_audit_command, add_plan_command
from pate_fed.cli.predict import add_predict_command
from pate_fed.cli.reproduce import add_reproduce_command
from pate_fed.cli.run import add_compare_command, add_export_command, add_ledger_command, add_report_command
from pate_fed.cli.study import add_study_command
from pate_fed.cli.sweep import add_sweep_command
from pate_fed.cli.watch import add_watch_command
from pate_fed.errors import PateFedError, naming_extras
from pate_fed.format import VERSION
from pate_fed.runtime.console import any_console
from pate_fed.runtime.isolation import require_one_installation
from pate_fed.runtime.signals import INTERRUPTED, terminating

_DESCRIPTION = (
    "What comes before and after a study with PATE. The study itself is flower-simulation on one machine. "
    "Where hospitals are apart it is python -m pate_fed.server at the coordinator and pate-fed hospital join "
    "at each hospital."
)


@any_console(study=False)
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit code."""
    given, arguments = sys.argv[1:] if argv is None else argv, argparse.Namespace()
    try:
        arguments = make_parser(only=given[:1]).parse_args(given)
        run: Callable[[argparse.Namespace], int] = arguments.run
        require_one_installation()
        with terminating(threading.Event()), naming_extras(" ".join(["pate-fed", *given[:1]])):
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


_COMMANDS: dict[str, Callable[[argparse._SubParsersAction[Any]], None]] = {
    "plan": add_plan_command,
    "study": add_study_command,
    "hospital": add_hospital_command,
    "doctor": add_doctor_command,
    "demo": add_demo_command,
    "ledger": add_ledger_command,
    "report": add_report_command,
    "watch": add_watch_command,
    "compare": add_compare_command,
    "sweep": add_sweep_command,
    "predict": add_predict_command,
    "export": add_export_command,
    "label-dp": add_label_dp_command,
    "audit": add_audit_command,
    "reproduce": add_reproduce_command,
    "bench": add_bench_command,
}


def make_parser(*, only: Sequence[str] = ()) -> Parser:
    """The parser of all commands; each command's `run` takes the arguments and returns the exit code.

    Where `only` names one of them it knows no other, which takes a tenth of the time.
    """
    parser = Parser(prog="pate-fed", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"pate_fed {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    chosen = [_COMMANDS[name] for name in only if name in _COMMANDS][:1]
    for register in chosen or _COMMANDS.values():
        register(commands)
    return parser

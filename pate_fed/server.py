"""`python -m pate_fed.server`: the coordinator of a study with separate hospital processes."""

import pate_fed.runtime.isolation  # noqa: F401  # before any other import

# isort: split
import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pate_fed.cli.parser import DRY_RUN, Parser, add_address_options, add_option, program_name
from pate_fed.format import VERSION
from pate_fed.runtime.console import any_console, run_study_command

_EPILOG = """\
Hospitals connect with python -m pate_fed.client. Exit codes: 0 success, 1 fault, 2 wrong input, 3 budget,
4 quorum, 5 refused by policy, 6 failed check, 130 interrupted."""


@any_console(study=True)
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit code."""
    return run_study_command(lambda: make_parser().parse_args(argv), _run, resumes=True)


def _run(arguments: argparse.Namespace, stop: threading.Event, started: float) -> int:
    from server.process import run_study, study_to_run

    if arguments.dry_run:
        from pate_fed.cli.plan import dry_run

        study = study_to_run(Path(arguments.config), num_hospitals=arguments.num_clients)
        return dry_run(study, run_dir=arguments.run_dir, as_json=arguments.format == "json")
    from pate_fed.flower.transport import require_transport

    require_transport("a coordinator's process")
    return run_study(arguments, stop=stop, started=started)


def make_parser() -> Parser:
    """The parser of its command line."""
    from pate_fed.config.options import study_options

    parser = Parser(
        prog=program_name("pate-fed-coordinator", "pate_fed.server"),
        description=__doc__,
        epilog=_EPILOG,
        elsewhere={
            flag: f"the key {key} of --config's study.toml"
            for key, entry in study_options().items()
            for flag in entry.setting.flags
        },
    )
    add_option(parser, "--config FILE", "the study's study.toml", required=True)
    add_option(parser, "--num-clients N", "hospitals (default: from the study)", aliases=("--num-hospitals",))
    add_address_options(parser)
    parser.add_argument("--run-dir", metavar="DIR", help="where the run's files go (default runs/NAME-TIME)")
    add_option(parser, "--dry-run", DRY_RUN)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of the outcome line")
    parser.add_argument("--quiet", action="store_true", help="no progress, only warnings and the outcome")
    parser.add_argument("--version", action="version", version=f"pate_fed {VERSION}")
    return parser


if __name__ == "__main__":
    sys.exit(main())

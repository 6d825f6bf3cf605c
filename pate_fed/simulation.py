"""`flower-simulation`: a whole study on this machine, on Flower's simulation engine or in one process."""

import pate_fed.runtime.isolation  # noqa: F401  # before any other import

# isort: split
import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pate_fed.cli.parser import DRY_RUN, Parser, add_option
from pate_fed.config.options import add_study_options, study_from_arguments
from pate_fed.format import VERSION
from pate_fed.runtime.console import any_console, run_study_command

_DESCRIPTION = """\
Simulate a PATE federation on this machine: parties train teachers on disjoint private data and vote on public
inputs, a coordinator adds noise and keeps the privacy ledger, a student learns from what is released."""

_EPILOG = """\
Every option is also a key of study.toml (--config). A run leaves study.toml, ledger.sqlite, labels.npz,
student.pt, student.ts, report.html, log.jsonl and metrics.json in --run-dir. Exit codes: 0 success,
1 fault, 2 wrong input, 3 budget, 4 quorum, 5 refused by policy, 6 failed check, 130 interrupted."""


@any_console(study=True)
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit code."""
    from pate_fed.structure.parts import release_parts

    try:
        return run_study_command(lambda: make_parser().parse_args(argv), _simulate, resumes=False)
    finally:
        release_parts()


def _simulate(arguments: argparse.Namespace, stop: threading.Event, started: float) -> int:
    from pate_fed.flower import prepare_environment

    prepare_environment()
    from pate_fed.cli.simulate import run_simulation, simulation_dir
    from pate_fed.structure.parts import search_folder

    search_folder(Path.cwd())
    study = study_from_arguments(arguments)
    if arguments.dry_run:
        from pate_fed.cli.plan import dry_run

        return dry_run(study, run_dir=arguments.run_dir, as_json=arguments.format == "json")
    run_dir, learns = simulation_dir(arguments.run_dir, study)
    if study.seed is not None:
        print("warning: with --seed the noise can be repeated, so it protects nobody", file=sys.stderr)
    coordinator = run_simulation(
        study, run_dir=run_dir, learns=learns, quiet=arguments.quiet, stop=stop, started=started
    )
    return coordinator.conclude(as_json=arguments.format == "json")


def make_parser() -> Parser:
    """The parser of its command line."""
    parser = Parser(
        prog="flower-simulation",
        usage="flower-simulation [--num-clients N] [OPTION ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_study_options(parser)
    output = parser.add_argument_group("output")
    add_option(output, "--run-dir DIR", "where the run's files go (default runs/NAME-TIME)")
    add_option(output, "--dry-run", DRY_RUN)
    add_option(output, "--format", "of the outcome line", choices=("text", "json"), default="text")
    add_option(output, "--quiet", "no progress, only warnings and the outcome")
    parser.add_argument("--version", action="version", version=f"pate_fed {VERSION}")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""`python -m pate_fed.server`: the coordinator of a study with separate hospital processes."""

from pate_fed.runtime import isolation

# isort: split
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from pate_fed import __version__
from pate_fed.cli.parser import Parser
from pate_fed.errors import PateFedError
from pate_fed.runtime.host import add_address_options
from pate_fed.runtime.run_dir import nothing_spent
from pate_fed.runtime.signals import INTERRUPTED, terminating

__all__ = ["main"]

_EPILOG = """\
Hospitals connect with python -m pate_fed.client. Exit codes: 0 success, 1 fault, 2 wrong input, 3 budget,
4 quorum, 5 refused by policy, 6 failed check, 130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit code."""
    started = time.perf_counter()
    as_json, begun, stop = False, False, threading.Event()
    try:
        arguments = _parser().parse_all(argv)
        as_json = arguments.format == "json"
        begun = arguments.run_dir is not None and (Path(arguments.run_dir) / "ledger.sqlite").exists()
        isolation.require_one_installation()
        with terminating(stop):
            from server.process import CoordinatorProcess

            return CoordinatorProcess(arguments, stop=stop, started=started).run()
    except PateFedError as error:
        print(f"error: {error}", file=sys.stderr)
        print(nothing_spent("failed", str(error), as_json=as_json, begun=begun))
        return error.exit_code
    except KeyboardInterrupt:  # before the study began; then `interruptible` hears it
        print(nothing_spent("aborted", "interrupted; nothing was asked", as_json=as_json, begun=begun))
        return INTERRUPTED


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

"""`python -m pate_fed.client`: one hospital of a study with separate processes."""

from pate_fed.runtime import isolation

# isort: split
import sys
import threading
from collections.abc import Sequence

from pate_fed import __version__
from pate_fed.cli.parser import Parser
from pate_fed.errors import PateFedError
from pate_fed.runtime.signals import INTERRUPTED, terminating

__all__ = ["main"]

_EPILOG = """\
Nothing but vote vectors leaves this house. Exit codes: 0 success, 1 fault, 2 wrong input, 3 budget, 4 quorum,
5 refused by this hospital's policy, 6 failed check, 130 interrupted."""
_FAILURES = {2: "wrong input", 5: "refused by policy", 6: "failed check"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit code."""
    name, stop = "-", threading.Event()
    try:
        arguments = _parser().parse_args(argv)
        name = arguments.hospital
        isolation.require_one_installation()
        with terminating(stop):
            from clients.process import HospitalProcess

            return HospitalProcess(arguments, stop).run()
    except PateFedError as error:
        print(f"error: {error}", file=sys.stderr)
        print(f"FAILED  hospital={name} {_FAILURES.get(error.exit_code, 'fault')}", flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"ABORTED  hospital={name} interrupted", flush=True)
        return INTERRUPTED


def _parser() -> Parser:
    parser = Parser(prog="python -m pate_fed.client", description=__doc__, epilog=_EPILOG)
    parser.add_argument("--hospital", metavar="NAME", required=True, help="this hospital's name")
    parser.add_argument(
        "--data",
        metavar="PATH",
        required=True,
        help="this hospital's records: a CSV, an .npz (x, y), a folder of images by class or of idx files; "
        "with private labels a CSV of index,label; "
        "part:I rehearses with the part that party I of a simulation of --config gets",
    )
    parser.add_argument(
        "--pool", metavar="PATH", help="its copy of the public inputs (default: the coordinator sends one)"
    )
    parser.add_argument(
        "--teachers",
        type=int,
        metavar="K",
        help="train so many teachers, or refuse (default: as the study says)",
    )
    parser.add_argument(
        "--server", metavar="HOST:PORT", help="the coordinator's address (default: of the admission)"
    )
    parser.add_argument("--tls-dir", metavar="DIR", help="this hospital's identity: key and admission")
    parser.add_argument("--config", metavar="FILE", help="with --data part:I, the study.toml to rehearse")
    parser.add_argument("--insecure", action="store_true", help="no TLS; on this machine only")
    parser.add_argument("--insecure-anywhere", action="store_true", help="no TLS, and to other machines")
    parser.add_argument(
        "--policy",
        metavar="FILE",
        help="this hospital's policy.toml (default: all but seeded noise is allowed)",
    )
    parser.add_argument(
        "--state-dir", metavar="DIR", help="teachers, answered batches, log (default hospital-NAME)"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="give up when the coordinator is out of reach for so long (default 3600)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, only warnings and the outcome")
    parser.add_argument("--version", action="version", version=f"pate_fed {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())

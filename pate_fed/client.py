"""`python -m pate_fed.client`: one hospital of a study with separate processes."""

from pate_fed.runtime import isolation

# isort: split
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pate_fed.cli.parser import DECIMAL, STATE_DIR, TEACHERS, Parser, add_option, program_name
from pate_fed.errors import InputError, PateFedError, naming_extras
from pate_fed.format import VERSION
from pate_fed.runtime.console import any_console
from pate_fed.runtime.signals import INTERRUPTED, terminating

POLICY = (
    "this hospital's policy.toml (default: the one in --tls-dir, else masked votes or noisy class sums "
    "only, a capped study, 3 hospitals in a batch)"
)
_EPILOG = """\
Only votes, class sums under masks, answers about private labels and key material leave this house. Exit
codes: 0 success, 1 fault, 2 wrong input, 3 budget, 4 quorum, 5 refused by this hospital's policy, 6 failed
check, 130 interrupted."""
_FAILURES = {2: "wrong input", 5: "refused by policy", 6: "failed check"}


@any_console(study=True)
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit code."""
    name, stop = "-", threading.Event()
    state: Path | None = None
    try:
        arguments = make_parser().parse_args(argv)
        name = arguments.hospital
        isolation.require_one_installation()
        with terminating(stop), naming_extras("this study"):
            from clients.process import HospitalProcess

            process = HospitalProcess(arguments, stop)
            state = process.state
            return process.run()
    except PateFedError as error:
        print(f"error: {error}", file=sys.stderr)
        print(f"FAILED  hospital={name} {_FAILURES.get(error.exit_code, 'fault')}", flush=True)
        return error.exit_code
    except OSError as error:
        from pate_fed.disk import is_of_disk

        if not is_of_disk(error, state):
            raise
        what = f"{error.filename or state or 'the disk'}: cannot be written ({error.strerror})"
        mended = "make room there, or put it back as it was: then the same command goes on"
        print(f"error: {what}; {mended}", file=sys.stderr)
        print(f"FAILED  hospital={name} full disk", flush=True)
        return InputError.exit_code
    except KeyboardInterrupt:
        print(f"ABORTED  hospital={name} interrupted", flush=True)
        return INTERRUPTED


def make_parser() -> Parser:
    """The parser of its command line."""
    parser = Parser(
        prog=program_name("pate-fed-hospital", "pate_fed.client"), description=__doc__, epilog=_EPILOG
    )
    add_option(parser, "--hospital NAME", "this hospital's name", required=True)
    data = (
        "its records: a CSV, a query (.sql, .fhir), an .npz (x, y), a folder of images by class or of idx "
        "files; with private labels a CSV of index,label; "
        "part:I rehearses with the part that party I of a simulation of --config gets"
    )
    add_option(parser, "--data PATH", data, required=True)
    add_option(parser, "--pool PATH", "its copy of the public inputs (default: the coordinator sends one)")
    add_option(parser, "--decimal", DECIMAL, choices=("point", "comma"))
    add_option(parser, "--teachers K", TEACHERS, type=int)
    add_option(parser, "--server HOST:PORT", "the coordinator's address (default: of the admission)")
    add_option(parser, "--tls-dir DIR", "this hospital's identity: key and admission")
    add_option(parser, "--config FILE", "with --data part:I, the study.toml to rehearse")
    add_option(parser, "--insecure", "no TLS; on this machine only")
    add_option(parser, "--insecure-anywhere", "no TLS, and to other machines")
    add_option(parser, "--policy FILE", POLICY)
    add_option(parser, "--state-dir DIR", STATE_DIR)
    wait = "give up when the coordinator is out of reach, or has no seat for this hospital, for so long"
    add_option(parser, "--wait SECONDS", wait, default=604800, type=float)
    add_option(parser, "--quiet", "no progress, only warnings and the outcome")
    parser.add_argument("--version", action="version", version=f"pate_fed {VERSION}")
    return parser


if __name__ == "__main__":
    sys.exit(main())

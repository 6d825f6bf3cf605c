"""Is a coordinator or a hospital alive? For containers and supervisors.

`coordinator HOST:PORT` succeeds when hospitals can connect there, `hospital STATE_DIR` when a process of that
hospital is running.
"""

from __future__ import annotations

import fcntl
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from pate_fed.cli.parser import Parser, program_name
from pate_fed.errors import PateFedError
from pate_fed.runtime.addresses import split_address
from pate_fed.runtime.console import any_console

_TIMEOUT_S = 3.0


@any_console(study=True)
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 alive, 1 not, 2 wrong input."""
    try:
        arguments = make_parser().parse_args(argv)
        alive = arguments.check(arguments.where)
    except PateFedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print("alive" if alive else "not alive")
    return 0 if alive else 1


def _listens(address: str) -> bool:
    host, port = split_address(address, option="HOST:PORT")
    try:
        with socket.create_connection((host, port or 0), timeout=_TIMEOUT_S):
            return True
    except OSError:
        return False


def hospital_runs(state_dir: str) -> bool:
    """A hospital's process holds the lock of its state directory as long as it lives."""
    try:
        with open(Path(state_dir) / "lock", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def make_parser() -> Parser:
    """The parser of its command line."""
    parser = Parser(prog=program_name("pate-fed-health", "pate_fed.cli.health"), description=__doc__)
    sides = parser.add_subparsers(title="sides", required=True, metavar="SIDE")
    for name, text, where, check in (
        ("coordinator", "whether hospitals can connect", "HOST:PORT", _listens),
        ("hospital", "whether this hospital's process runs", "STATE_DIR", hospital_runs),
    ):
        side = sides.add_parser(name, help=text)
        side.add_argument("where", metavar=where)
        side.set_defaults(check=check)
    return parser


if __name__ == "__main__":
    sys.exit(main())

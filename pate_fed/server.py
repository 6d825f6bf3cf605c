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
from typing import TYPE_CHECKING, Any

from pate_fed import __version__
from pate_fed.arguments import Parser
from pate_fed.errors import InputError, PateFedError
from pate_fed.launch import (
    INTERRUPTED,
    fresh_run_dir,
    interruptible,
    nothing_spent,
    terminating,
    unfinished_run,
)
from pate_fed.study import PROCESSES, Study, load_study, study_from_dict

if TYPE_CHECKING:
    from pate_fed.flower.superlink import SuperLink
    from pate_fed.identity import Authority
    from pate_fed.roster import Roster

__all__ = ["main"]

_EPILOG = """\
Hospitals connect with python -m pate_fed.client. Exit codes: 0 success, 1 fault, 2 wrong input, 3 budget,
4 quorum, 5 refused by policy, 6 failed check, 130 interrupted."""
_POLL_S = 0.3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit code."""
    started = time.perf_counter()
    as_json = False
    try:
        arguments = _parser().parse_all(argv)
        as_json = arguments.format == "json"
        with terminating():
            return _Launch(arguments).run(started)
    except PateFedError as error:
        print(f"error: {error}", file=sys.stderr)
        print(nothing_spent("failed", as_json=as_json))
        return error.exit_code
    except KeyboardInterrupt:  # before the study began; then `interruptible` hears it
        print(nothing_spent("aborted", as_json=as_json))
        return INTERRUPTED


class _Launch:
    """One study, from its file to its outcome."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from pate_fed.flower import prepare_environment
        from pate_fed.flower.processes import check_port, free_port, split_address

        prepare_environment()
        self._arguments = arguments
        self._study = _study(arguments)
        self._authority = None if arguments.tls_dir is None else _authority(Path(arguments.tls_dir))
        address = arguments.address or (self._authority.study["address"] if self._authority else "127.0.0.1")
        host, port = split_address(address, option="--address")
        _check_security(arguments, host)
        if port is None:
            port = free_port(host)
        check_port(host, port, option="--address")
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._stop = threading.Event()
        self._roster: Roster | None = None
        given = arguments.run_dir
        self._resume = given is not None and unfinished_run(Path(given), self._study)
        self._run_dir = Path(given) if self._resume else fresh_run_dir(given, self._study)
        if self._resume:
            self._say(f"going on with the run in {self._run_dir}, from its ledger")

    def run(self, started: float) -> int:
        """Run the study; the exit code."""
        # The coordinator is named, as Flower names apps: pate_fed imports neither party.
        self._coordinator: Any = importlib.import_module("server.app").Coordinator(
            self._study,
            run_dir=self._run_dir,
            quiet=self._arguments.quiet,
            stop=self._stop,
            started=started,
            resume=self._resume,
            key=None if self._authority is None else self._authority.ledger_key(),
        )
        if self._authority is not None:
            _require_same_terms(self._authority, self._coordinator.terms_digest)
        from pate_fed.flower.compat import quiet_flower

        with interruptible(self._stop):
            with quiet_flower():
                self._coordinator.run(self._serve)
            return int(self._coordinator.conclude(as_json=self._arguments.format == "json"))

    def _serve(self, server_app: Any) -> None:
        from pate_fed.flower.superlink import ServerTls, SuperLink
        from pate_fed.roster import Roster

        authority, tls = self._authority, None
        if authority is not None:
            folder = authority.folder
            tls = ServerTls(
                ca=folder / "ca.crt", certificate=folder / "server.crt", key=folder / "server.key"
            )
        link = SuperLink(self._run_dir / "flower", self._address, tls=tls)
        completed = False
        try:
            link.wait_until_ready(self._stop.is_set)
            if not self._stop.is_set():
                if authority is not None:
                    self._roster = Roster(authority, link, say=self._say)
                    self._coordinator.know(self._roster.names, self._roster.sum_identities)
                grid, context = link.open_run()
                self._wait_for_hospitals(link, grid)
                server_app(grid, context)
                verdict = self._coordinator.verdict()
                completed = verdict.exit_code == 0
                if link.running:
                    importlib.import_module("server.farewell").say_farewell(grid, verdict)
            link.close_run(completed=completed)
        finally:
            if self._roster is not None:
                self._roster.stop()
            link.stop()

    def _wait_for_hospitals(self, link: SuperLink, grid: Any) -> None:
        """Return when all hospitals are connected or the time is over; the quorum decides later."""
        wanted, seen = self._study.parties.num_clients, -1
        self._say(f"listening on {self._address} for {wanted} hospitals")
        end = time.monotonic() + self._arguments.wait
        while seen < wanted and time.monotonic() < end and not self._stop.is_set():
            if not link.running:
                raise PateFedError("Flower's SuperLink ended unexpectedly; see its log in the run directory")
            found = len(list(grid.get_node_ids()))
            if found != seen:
                seen = found
                self._say(f"waiting for hospitals: {seen} of {wanted} connected")
            time.sleep(_POLL_S)

    def _say(self, text: str) -> None:
        if not self._arguments.quiet:
            print(text, file=sys.stderr, flush=True)


def _study(arguments: argparse.Namespace) -> Study:
    values = load_study(Path(arguments.config))
    if arguments.num_hospitals is not None:
        parties = values.setdefault("parties", {})
        if isinstance(parties, dict):
            parties["num_clients"] = arguments.num_hospitals
    study = study_from_dict(values)
    # Hospitals answer no question whose answer is only for measuring.
    study = replace(
        study,
        queries=replace(study.queries, evaluate=False),
        engine=replace(study.engine, backend=PROCESSES),
    )
    return study.resolve()


def _authority(folder: Path) -> Authority:
    from pate_fed.identity import Authority

    found = Authority(folder)
    for warning in found.check_server():
        print(f"warning: {warning}", file=sys.stderr)
    return found


def _require_same_terms(authority: Authority, digest: str) -> None:
    """Hospitals were admitted to one study; another one under the same keys would be refused by all."""
    from pate_fed.protocol import Terms

    if Terms.from_json(authority.study["terms"]).digest != digest:
        raise InputError(
            f"--config: the study is not the one that {authority.folder} was made for; its hospitals would "
            "refuse it: run `pate-fed study init` for this study in another folder"
        )


def _check_security(arguments: argparse.Namespace, host: str) -> None:
    from pate_fed.flower.processes import is_loopback

    open_ = arguments.insecure or arguments.insecure_anywhere
    if arguments.tls_dir is not None:
        if open_:
            raise InputError("--tls-dir and --insecure: one of the two")
        return
    if arguments.insecure_anywhere and not arguments.insecure:
        raise InputError(
            "--insecure-anywhere: say it twice, as votes are then open to the network: --insecure too"
        )
    if not open_:
        raise InputError(
            "give --tls-dir with the keys of `pate-fed study init`, or --insecure on one machine only"
        )
    if not is_loopback(host) and not arguments.insecure_anywhere:
        raise InputError(
            f"--insecure with --address {host}: votes would cross the network unprotected; use --tls-dir, or "
            "add --insecure-anywhere to say that you mean it"
        )


def _parser() -> Parser:
    parser = Parser(prog="python -m pate_fed.server", description=__doc__, epilog=_EPILOG)
    parser.add_argument("--config", metavar="FILE", required=True, help="the study's study.toml")
    parser.add_argument("--num-hospitals", type=int, metavar="N", help="hospitals (default: from the study)")
    parser.add_argument(
        "--address",
        metavar="HOST[:PORT]",
        help="where hospitals connect to, gRPC (default: of --tls-dir, else 127.0.0.1 and a free port)",
    )
    parser.add_argument("--tls-dir", metavar="DIR", help="the folder of `pate-fed study init`")
    parser.add_argument("--insecure", action="store_true", help="no TLS; on this machine only")
    parser.add_argument("--insecure-anywhere", action="store_true", help="no TLS, and from other machines")
    parser.add_argument("--run-dir", metavar="DIR", help="where the run's files go (default runs/NAME-TIME)")
    parser.add_argument(
        "--wait",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="wait so long for all hospitals, then start with those that are there (default 3600)",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of the outcome line")
    parser.add_argument("--quiet", action="store_true", help="no progress, only warnings and the outcome")
    parser.add_argument("--version", action="version", version=f"pate_fed {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())

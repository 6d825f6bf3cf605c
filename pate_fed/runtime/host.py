"""Where the hospitals' processes connect to: the address, the study's keys, a SuperLink and who is on it."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pate_fed.cli.parser import check_security
from pate_fed.errors import PateFedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pate_fed.identity import Authority
    from pate_fed.protocol.messages import EndRequest

__all__ = ["Host", "Hosted", "add_address_options", "open_host"]

_POLL_S = 0.3


class Hosted(Protocol):
    """The coordinator of a study, as its host needs it."""

    def set_admitted(self, names: Mapping[int, str], sum_identities: Mapping[str, bytes]) -> None:
        """Hear whose key each node has, and who signs secure sums with which."""

    def outcome_notice(self) -> EndRequest:
        """How the study ended, for the hospitals."""

    def notify_hospitals(self, grid: Any, notice: EndRequest) -> None:
        """Send the notice to every hospital that is connected."""


def add_address_options(parser: argparse._ActionsContainer) -> None:
    """The options of every command that hospitals connect to."""
    parser.add_argument(
        "--address",
        metavar="HOST[:PORT]",
        help="where hospitals connect to, gRPC (default: of --tls-dir, else 127.0.0.1 and a free port)",
    )
    parser.add_argument("--tls-dir", metavar="DIR", help="the folder of `pate-fed study init`")
    parser.add_argument("--insecure", action="store_true", help="no TLS; on this machine only")
    parser.add_argument("--insecure-anywhere", action="store_true", help="no TLS, and from other machines")
    parser.add_argument(
        "--wait",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="wait so long for all hospitals, then start with those that are there (default 3600)",
    )


@dataclass(frozen=True, slots=True)
class Host:
    """One study's address; `authority` has its keys, None without TLS. `say` takes lines for the user."""

    address: str
    authority: Authority | None
    wait_s: float
    say: Callable[[str], None]

    def require_terms(self, digest: str) -> None:
        """Hospitals were admitted to one study; another one under the same keys would be refused by all.

        Raises:
            InputError: the keys were made for other terms.
        """
        if self.authority is not None:
            self.authority.require_terms(digest)

    def serve(
        self, server_app: Any, hosted: Hosted, *, folder: Path, hospitals: int, stop: threading.Event
    ) -> None:
        """Start a SuperLink with its state in `folder`, run the study over it, and say how it ended.

        Raises:
            PateFedError: the SuperLink does not start, or ends before its time.
        """
        from pate_fed.flower.superlink import ServerTls, SuperLink
        from pate_fed.runtime.admitted import AdmittedHospitals

        tls, roster = None, None
        if self.authority is not None:
            keys = self.authority.folder
            tls = ServerTls(ca=keys / "ca.crt", certificate=keys / "server.crt", key=keys / "server.key")
        link = SuperLink(folder, self.address, tls=tls)
        completed = False
        try:
            link.wait_until_ready(stop.is_set)
            if not stop.is_set():
                if self.authority is not None:
                    roster = AdmittedHospitals(self.authority, link, say=self.say)
                    hosted.set_admitted(roster.names, roster.sum_identities)
                grid, context = link.open_run()
                self._wait(link, grid, hospitals, stop)
                server_app(grid, context)
                notice = hosted.outcome_notice()
                completed = notice.exit_code == 0
                if link.running:
                    hosted.notify_hospitals(grid, notice)
            link.close_run(completed=completed)
        finally:
            if roster is not None:
                roster.stop()
            link.stop()

    def _wait(self, link: Any, grid: Any, wanted: int, stop: threading.Event) -> None:
        """Return when all hospitals are connected or the time is over; the quorum decides later."""
        seen = -1
        self.say(f"listening on {self.address} for {wanted} hospitals")
        end = time.monotonic() + self.wait_s
        while seen < wanted and time.monotonic() < end and not stop.is_set():
            if not link.running:
                raise PateFedError("Flower's SuperLink ended unexpectedly; see its log in the run directory")
            found = len(list(grid.get_node_ids()))
            if found != seen:
                seen = found
                self.say(f"waiting for hospitals: {seen} of {wanted} connected")
            time.sleep(_POLL_S)


def open_host(arguments: argparse.Namespace, *, quiet: bool) -> Host:
    """The host that the options ask for, its port free.

    Raises:
        InputError: options that do not go together, keys that cannot be used, or a port that is taken.
    """
    from pate_fed.flower import prepare_environment
    from pate_fed.flower.processes import check_port, free_port, split_address

    prepare_environment()
    authority = None if arguments.tls_dir is None else _authority(Path(arguments.tls_dir))
    address = arguments.address or (authority.study["address"] if authority else "127.0.0.1")
    host, port = split_address(address, option="--address")
    check_security(arguments, host, where=f"--address {host}", keys="the keys of `pate-fed study init`")
    if port is None:
        port = free_port(host)
    check_port(host, port, option="--address")

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    return Host(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", authority, arguments.wait, say)


def _authority(folder: Path) -> Authority:
    from pate_fed.identity import Authority

    found = Authority(folder)
    for warning in found.check_server():
        print(f"warning: {warning}", file=sys.stderr)
    return found

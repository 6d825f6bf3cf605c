"""The address that hospitals' processes connect to: its options, its keys, and a SuperLink that serves it."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pate_fed.errors import PateFedError
from pate_fed.report.log import CONNECT, MOST_NAMED, Waiting
from pate_fed.runtime.security import check_security
from pate_fed.runtime.signals import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from pate_fed.flower.superlink import ServerTls
    from pate_fed.flower.transport import Link
    from pate_fed.identity import Authority
    from pate_fed.protocol.messages import EndRequest

_POLL_S = 1.0


class HostedCoordinator(Protocol):
    """What `Host.serve` needs of a study's coordinator."""

    def set_admitted(
        self, names: Mapping[int, str], sum_identities: Mapping[str, bytes], *, key: Ed25519PrivateKey
    ) -> None:
        """Set each node's hospital, the key with which each signs secure sums, and that of their receipts."""

    def outcome_notice(self) -> EndRequest:
        """How the study ended, for the hospitals."""

    def note_waiting(self, event: Waiting) -> None:
        """Write in the study's log which hospitals are waited for."""

    def notify_hospitals(self, grid: Any, notice: EndRequest) -> None:
        """Send the notice to every hospital that is connected."""


@dataclass(frozen=True, slots=True)
class Host:
    """The address of one study. `authority` holds its keys, None without TLS; `report` prints progress."""

    address: str
    authority: Authority | None
    wait_s: float
    report: Callable[[str], None]

    def require_terms(self, digest: str) -> None:
        """Hospitals were admitted to one study; another one under the same keys would be refused by all.

        Raises:
            InputError: the keys were made for other terms.
        """
        if self.authority is not None:
            self.authority.require_terms(digest)

    def serve(
        self,
        server_app: Any,
        coordinator: HostedCoordinator,
        *,
        folder: Path,
        hospitals: int,
        stop: threading.Event,
    ) -> None:
        """Start a SuperLink with its state in `folder`, run the study over it, notify the hospitals.

        Raises:
            PateFedError: the SuperLink does not start, or ends before its time.
        """
        from pate_fed.flower.admitted import AdmittedHospitals
        from pate_fed.flower.superlink import SuperLink

        admitted = None
        tls = None if self.authority is None else _server_tls(self.authority)
        link = SuperLink(folder, self.address, tls=tls)
        completed = False
        try:
            link.wait_until_ready(stop.is_set)
            if not stop.is_set():
                if self.authority is not None:
                    admitted = AdmittedHospitals(self.authority, link, report=self.report)
                    key = self.authority.ledger_key()
                    coordinator.set_admitted(admitted.names, admitted.sum_identities, key=key)
                grid, context = link.open_run()
                names = None if admitted is None else admitted.names
                for event in self._wait_for_hospitals(link, grid, hospitals, names, stop):
                    coordinator.note_waiting(event)
                    self.report(f"waiting for hospitals: {event.text}")
                server_app(grid, context)
                notice = coordinator.outcome_notice()
                completed = notice.exit_code == 0
                if link.running:
                    coordinator.notify_hospitals(grid, notice)
                    if notice.exit_code == INTERRUPTED:
                        self.report("the hospitals wait: the same command with this --run-dir goes on")
            link.close_run(completed=completed)
        finally:
            if admitted is not None:
                admitted.stop()
            link.stop()

    def _wait_for_hospitals(
        self, link: Link, grid: Any, wanted: int, names: Mapping[int, str] | None, stop: threading.Event
    ) -> Iterator[Waiting]:
        """Each change of who is connected, until all are or the time is over; the quorum decides later.

        `names` are those of the admitted hospitals by their nodes; None where they have no keys.
        """
        told = None
        self.report(f"listening on {self.address} for {wanted} hospitals")
        end = time.monotonic() + self.wait_s
        while (told is None or told.answered < wanted) and time.monotonic() < end and not stop.is_set():
            if not link.running:
                raise PateFedError("Flower's SuperLink ended unexpectedly; see its log in the run directory")
            found = self._connected(set(grid.get_node_ids()), wanted, names)
            if found != told:
                told = found
                yield found
            stop.wait(_POLL_S)

    def _connected(self, nodes: set[int], wanted: int, names: Mapping[int, str] | None) -> Waiting:
        """Who is connected and who is missing, by name where they have keys and are few."""
        known = {} if names is None else dict(names)
        few = known if len(known) <= MOST_NAMED else {}
        return Waiting(
            phase=CONNECT,
            asked=wanted,
            answered=len(nodes),
            present=tuple(sorted(name for node, name in few.items() if node in nodes)),
            missing=tuple(sorted(name for node, name in few.items() if node not in nodes)),
            not_admitted=0 if names is None else max(0, wanted - len(known)),
            patience_s=self.wait_s,
        )


def open_host(arguments: argparse.Namespace, *, quiet: bool) -> Host:
    """The host that the options ask for, its port free.

    Raises:
        InputError: options that do not go together, keys that cannot be used, or a port that is taken.
    """
    from pate_fed.flower import prepare_environment
    from pate_fed.runtime.addresses import check_port, free_port, split_address

    prepare_environment()
    authority = None if arguments.tls_dir is None else _authority(Path(arguments.tls_dir))
    address = arguments.address or (authority.study.address if authority else "127.0.0.1")
    host, port = split_address(address, option="--address")
    check_security(arguments, host, where=f"--address {host}", keys="the keys of `pate-fed study init`")
    if port is None:
        port = free_port(host)
    check_port(host, port, option="--address")

    def report(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    return Host(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", authority, arguments.wait, report)


def _authority(folder: Path) -> Authority:
    from pate_fed.identity import Authority

    found = Authority(folder)
    for warning in found.check_server():
        print(f"warning: {warning}", file=sys.stderr)
    return found


def _server_tls(authority: Authority) -> ServerTls:
    """The authority's keys for the SuperLink, with bounds by the terms that hospitals were admitted to."""
    from pate_fed.flower.superlink import ServerTls
    from pate_fed.flower.transport import LinkGuard
    from pate_fed.kinds.guarantee import largest_messages
    from pate_fed.kinds.terms import Terms

    keys, terms = authority.folder, Terms.from_json(authority.study.terms)
    guard = LinkGuard(most_bytes=largest_messages(terms).to_coordinator, hospitals=terms.num_clients)
    return ServerTls(
        ca=keys / "ca.crt", certificate=keys / "server.crt", key=keys / "server.key", guard=guard
    )

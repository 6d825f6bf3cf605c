"""The address that hospitals' processes connect to: who is admitted, its keys, a SuperLink that serves it."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cryptography.hazmat.primitives import serialization

from pate_fed.errors import InputError
from pate_fed.flower.transport import LinkLostError
from pate_fed.identity.certificates import Certificate, expiry_warnings, require_valid, sum_identity_of
from pate_fed.report.log import CONNECT, MOST_NAMED, Waiting
from pate_fed.runtime.addresses import check_security
from pate_fed.runtime.signals import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from pate_fed.flower.superlink import ServerTls
    from pate_fed.flower.transport import Link
    from pate_fed.identity import Authority
    from pate_fed.protocol.messages import EndRequest


_WATCH_S = 2.0


class AdmittedHospitals:
    """The admitted hospitals of a running study; the authority's folder is read again every two seconds.

    `names` says whose key each node has, `sum_identities` which key each signs secure sums with. Both change
    while the study runs: who is not in them is not asked, and what it answers is not taken. A hospital that
    is revoked and admitted again with the same key is the node that it was. What fails for one hospital is
    said once with its name, tried again at every look, and keeps no other out.
    """

    def __init__(self, authority: Authority, link: Link, *, report: Callable[[str], None]) -> None:
        self._authority, self._link, self._report = authority, link, report
        self.names: dict[int, str] = {}
        self.sum_identities: dict[str, bytes] = {}
        self._nodes: dict[str, tuple[int, bytes]] = {}  # each one's node, and the key that it was let in with
        self._connected: dict[int, str] = {}  # revoked, but Flower has not cut them off yet
        self._skipped: set[int] = set()  # serial numbers of certificates that are not valid
        self._failed: set[str] = set()  # what was said of hospitals, and is tried again
        self._seen: frozenset[tuple[str, int, int]] | None = (
            None  # of the authority's folder, at the last look
        )
        self._stop = threading.Event()
        self._update()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_S):
            with self._apart("the list of hospitals", "was not read"):
                self._update()

    def _update(self) -> None:
        seen = _files(self._authority)
        if seen == self._seen and not self._failed:
            return
        self._seen = seen
        admitted: dict[str, Certificate] = {}
        for name in self._authority.hospital_names():
            with self._apart(name, "is out: its certificate is damaged"):
                certificate = self._authority.certificate_of(name)
                if certificate is not None:
                    admitted[name] = certificate
        for name, (node, key) in list(self._nodes.items()):
            # Between two looks a name may have been revoked and admitted with another key.
            if name not in admitted or _public(admitted[name]) != key:
                self._revoke(name, node)
        for node, name in list(self._connected.items()):
            with self._apart(name, "is revoked and not heard, but could not be cut off"):
                self._link.unregister(node)
                del self._connected[node]
        for name, certificate in admitted.items():
            if name not in self._nodes and certificate.serial_number not in self._skipped:
                with self._apart(name, "could not be let in"):
                    self._admit(name, certificate)

    def _revoke(self, name: str, node: int) -> None:
        """From here on nothing of a hospital counts, whatever becomes of its connection."""
        del self._nodes[name]
        self.names.pop(node, None)
        self.sum_identities.pop(name, None)
        self._connected[node] = name
        self._report(f"{name} is revoked: shut out")

    @contextmanager
    def _apart(self, name: str, what: str) -> Iterator[None]:
        """Keep one hospital's failure from the others; it is said once until it succeeds."""
        try:
            yield
        except Exception as error:  # a half-written file, or a SuperLink that is going: looked at again
            if f"{name} {what}" not in self._failed:
                print(f"warning: {name} {what} ({type(error).__name__}); it is tried again", file=sys.stderr)
            self._failed.add(f"{name} {what}")
        else:
            self._failed.discard(f"{name} {what}")

    def _admit(self, name: str, certificate: Certificate) -> None:
        try:
            require_valid(certificate, f"{name}'s")
        except InputError as error:
            self._skipped.add(certificate.serial_number)
            print(f"warning: {error}; it cannot connect", file=sys.stderr)
            return
        public = _public(certificate)
        node = self._link.register(public, name)
        self._connected.pop(node, None)  # cut off after all, only that nobody heard so: it is the same node
        for warning in expiry_warnings(certificate, f"{name}'s"):
            print(f"warning: {warning}", file=sys.stderr)
        self._nodes[name] = node, public
        self.sum_identities[name] = sum_identity_of(certificate)
        self.names[node] = name


def _files(authority: Authority) -> frozenset[tuple[str, int, int]]:
    """What the authority's folder holds of hospitals: whoever is admitted or revoked changes it."""
    found = [path for name in ("hospitals", "revoked") for path in (authority.folder / name).glob("*.crt")]
    return frozenset((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in found)


def _public(certificate: Certificate) -> bytes:
    return certificate.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


_POLL_S = 1.0
_BACK_S = 90.0  # for hospitals to come back to a SuperLink that was started again
_STEADY_S = 600.0  # one that was there for so long is no vain try
_MOST_LOST = 5  # vain tries in a row


class HostedCoordinator(Protocol):
    """What `Host.serve` needs of a study's coordinator."""

    def set_admitted(
        self, names: Mapping[int, str], sum_identities: Mapping[str, bytes], *, key: Ed25519PrivateKey
    ) -> None:
        """Set each node's hospital, the key with which each signs secure sums, and that of their receipts."""

    @property
    def lost(self) -> LinkLostError | None:
        """Why the study could not go on over the link that it had, where it goes on over another one."""

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
        least: int,
        stop: threading.Event,
    ) -> None:
        """Start a SuperLink with its state in `folder`, run the study over it, notify the hospitals.

        A SuperLink that is lost on the way, as it was killed, or took this process for dead that stood still,
        is started again, and the study goes on over it. `least` hospitals are enough then.

        Raises:
            PateFedError: the SuperLink does not start, or is lost time and again.
        """
        began, over, lost = False, False, 0
        while True:
            begun = time.monotonic()
            try:
                with self._linked(folder, coordinator, stop) as (link, names):
                    began = True
                    if stop.is_set():
                        return
                    grid, context = link.open_run()
                    enough = (0 if over else least) if lost else None
                    for event in self._wait_for_hospitals(link, grid, hospitals, names, stop, enough=enough):
                        coordinator.note_waiting(event)
                        self.report(f"waiting for hospitals: {event.text}")
                    if not over:
                        server_app(grid, context)
                        if coordinator.lost is not None:
                            raise coordinator.lost
                        over = True
                    notice = coordinator.outcome_notice()
                    coordinator.notify_hospitals(grid, notice)
                    if notice.exit_code == INTERRUPTED:
                        self.report("the hospitals wait: the same command with this --run-dir goes on")
                    link.close_run(completed=notice.exit_code == 0)
                    return
            except LinkLostError:
                lost = 1 if time.monotonic() - begun > _STEADY_S else lost + 1
                if stop.is_set() or (over and lost > 1):
                    return
                if not began or lost > _MOST_LOST:
                    raise
                self.report("the connection with the hospitals is lost, and made again")
            stop.wait(lost)

    @contextmanager
    def _linked(
        self, folder: Path, coordinator: HostedCoordinator, stop: threading.Event
    ) -> Iterator[tuple[Link, Mapping[int, str] | None]]:
        """A SuperLink, with names by node of the admitted hospitals, which are None where none has a key."""
        from pate_fed.flower.superlink import SuperLink

        admitted = None
        tls = None if self.authority is None else _server_tls(self.authority)
        link = SuperLink(folder, self.address, tls=tls)
        try:
            link.wait_until_ready(stop.is_set)
            if self.authority is not None and not stop.is_set():
                admitted = AdmittedHospitals(self.authority, link, report=self.report)
                key = self.authority.ledger_key()
                coordinator.set_admitted(admitted.names, admitted.sum_identities, key=key)
            yield link, None if admitted is None else admitted.names
        finally:
            link.close_run(completed=False)
            if admitted is not None:
                admitted.stop()
            link.stop()

    def _wait_for_hospitals(
        self,
        link: Link,
        grid: Any,
        wanted: int,
        names: Mapping[int, str] | None,
        stop: threading.Event,
        *,
        enough: int | None = None,
    ) -> Iterator[Waiting]:
        """Each change of who is connected, until all are or the time is over; the quorum decides later.

        `names` are those of the admitted hospitals by their nodes; None where they have no keys. Once
        `enough` are back the others have a minute and a half.
        """
        told = None
        self.report(f"listening on {self.address} for {wanted} hospitals")
        end = time.monotonic() + self.wait_s
        while (told is None or told.answered < wanted) and time.monotonic() < end and not stop.is_set():
            if not link.running:
                raise LinkLostError("Flower's SuperLink ended unexpectedly; see its log in the run directory")
            found = self._connected(set(grid.get_node_ids()), wanted, names)
            if found != told:
                told = found
                yield found
            if enough is not None and found.answered >= enough:
                end, enough = min(end, time.monotonic() + _BACK_S), None
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
    from pate_fed.kinds.terms import Terms, largest_messages

    keys, terms = authority.folder, Terms.from_json(authority.study.terms)
    guard = LinkGuard(most_bytes=largest_messages(terms).to_coordinator, hospitals=terms.num_clients)
    return ServerTls(
        ca=keys / "ca.crt", certificate=keys / "server.crt", key=keys / "server.key", guard=guard
    )

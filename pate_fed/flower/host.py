"""The address that hospitals' processes connect to: who is admitted, its keys, a SuperLink that serves it."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cryptography.hazmat.primitives import serialization

from pate_fed.errors import InputError
from pate_fed.flower.transport import LinkLostError
from pate_fed.format import named, until_text
from pate_fed.identity.certificates import Certificate, expiry_warnings, require_valid, sum_identity_of
from pate_fed.report.log import CONNECT, MOST_NAMED, Waiting
from pate_fed.runtime.addresses import check_security
from pate_fed.runtime.signals import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from pate_fed.flower.superlink import SuperLink
    from pate_fed.flower.transport import Ended, LinkGuard
    from pate_fed.identity import Authority


_WATCH_S = 2.0


class AdmittedHospitals:
    """The admitted hospitals of a running study; the authority's folder is read again every two seconds.

    `names` says whose key each node has, `sum_identities` which key each signs secure sums with. Both change
    while the study runs: who is not in them is not asked, and what it answers is not taken. A hospital that
    is revoked and admitted again with the same key is the node that it was. What fails for one hospital is
    said once with its name, tried again at every look, and keeps no other out.
    """

    def __init__(self, authority: Authority, link: SuperLink, *, report: Callable[[str], None]) -> None:
        self._authority, self._link, self._report = authority, link, report
        self.names: dict[int, str] = {}
        self.sum_identities: dict[str, bytes] = {}
        self._nodes: dict[str, tuple[int, bytes]] = {}  # each one's node, and the key that it was let in with
        self._connected: dict[int, str] = {}  # revoked, but Flower has not cut them off yet
        self._clocks: set[str] = set()  # whose clocks were told of
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
            with self._apart("the SuperLink's log", "was not read"):
                self._tell_clocks()

    def _tell_clocks(self) -> None:
        from pate_fed.flower.clocks import clocks_told

        for name, sentence in clocks_told(self._link.new_lines()):
            if name not in self._clocks:
                self._clocks.add(name)
                self._report(sentence)

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
_BACK_S = 90.0  # for hospitals to come back to a coordinator that goes on
_STEADY_S = 600.0  # a SuperLink that was there for so long is no vain try
_MOST_LOST = 5  # vain tries in a row
LINGER_S = 600.0
"""Seconds for which a finished study's address stays open for hospitals that were not told of its end."""
_HEAR_S = 30.0  # for those that are connected to say that they heard how it ended
_HURRY_S = 4.0  # the same where the user asked to stop: a container's stop leaves ten in all
_QUIET_S = 10.0  # in which those that are connected hear it, and nothing needs to be shown
_TELL_POLL_S = 0.2  # a hospital that has replied ends, and its reply with it


class Admits(Protocol):
    """Whoever knows hospitals by their keys, and signs their receipts."""

    def set_admitted(
        self, names: Mapping[int, str], sum_identities: Mapping[str, bytes], *, key: Ed25519PrivateKey
    ) -> None:
        """Set each node's hospital, the key with which each signs secure sums, and that of their receipts."""


class HostedCoordinator(Admits, Protocol):
    """What `Address.serve` needs of a coordinator, which calls `gather` before it asks hospitals."""

    gather: Callable[[], None]

    @property
    def lost(self) -> LinkLostError | None:
        """Why the study could not go on over the link that it had, where it goes on over another one."""

    @property
    def goes_on(self) -> bool:
        """Whether hospitals took part in it before this process began."""

    def note_waiting(self, event: Waiting) -> None:
        """Write in the study's log which hospitals are waited for."""


@dataclass(frozen=True, slots=True)
class Host:
    """The address of one study. `authority` holds its keys, None without TLS; `report` prints progress.

    Hospitals have `wait_s` seconds to connect, and `linger_s` to hear how the study ended.
    """

    address: str
    authority: Authority | None
    wait_s: float
    report: Callable[[str], None]
    linger_s: float = LINGER_S

    def require_terms(self, digest: str) -> None:
        """Hospitals were admitted to one study; another one under the same keys would be refused by all.

        Raises:
            InputError: the keys were made for other terms.
        """
        if self.authority is not None:
            self.authority.require_terms(digest)


@dataclass(frozen=True, slots=True)
class _Open:
    """A SuperLink that serves, its run's Grid, and names by node of admitted hospitals, None without keys."""

    link: SuperLink
    grid: Any
    context: Any
    names: Mapping[int, str] | None


class Address:
    """A host's address. Its SuperLink is started with the first need, and again when it is lost.

    It has its state in `folder`. Whoever uses it closes it.
    """

    def __init__(self, host: Host, admits: Admits, *, folder: Path, stop: threading.Event) -> None:
        self._host, self._admits, self._folder, self._stop = host, admits, folder, stop
        self._open: _Open | None = None
        self._held = ExitStack()  # what is open
        self._began, self._lost = False, 0

    def close(self) -> None:
        """Close it; may be called twice."""
        self._open = None
        self._held.close()

    def serve(self, server_app: Any, coordinator: HostedCoordinator, *, hospitals: int, least: int) -> None:
        """Run the study; over another SuperLink where one is killed, or took who stood still for dead.

        Of a study that goes on `least` hospitals are enough.

        Raises:
            PateFedError: the SuperLink does not start, or is lost time and again.
        """

        def run(found: _Open) -> None:
            def gather() -> None:
                enough = least if self._lost or coordinator.goes_on else None
                for event in self._wait_for_hospitals(found, hospitals, enough=enough):
                    coordinator.note_waiting(event)

            coordinator.gather = gather
            server_app(found.grid, found.context)
            if coordinator.lost is not None:
                raise coordinator.lost

        self._over_links(run)

    def tell(self, ended: Ended) -> None:
        """Tell hospitals how the study ended: those that are connected and, for a while, who took part.

        Raises:
            PateFedError: the SuperLink does not start, or is lost time and again.
        """
        linger_s = 0.0 if ended.exit_code == INTERRUPTED else self._host.linger_s
        end = time.monotonic() + linger_s

        def tell(found: _Open) -> None:
            begun, shown = time.monotonic(), tuple[str, ...]()
            for left in ended.telling(found.grid, found.names):
                now, stops = time.monotonic(), self._stop.is_set()
                waits = left.pending and now - begun < (_HURRY_S if stops else _HEAR_S)
                if not waits and (stops or not left.parties or now >= end):
                    break
                _require_running(found.link)
                if left.parties != shown and now - begun > _QUIET_S and now < end:
                    shown = left.parties
                    self._show_untold(shown, end)
                time.sleep(_TELL_POLL_S if left.pending or now - begun < _QUIET_S else _POLL_S)
            if shown and not left.parties:
                self._host.report("all hospitals are told how the study ended")
            elif left.parties and linger_s:
                rest = named(left.parties)
                self._host.report(f"not told: {rest}; the same command with this --run-dir tells them")
            found.link.close_run(completed=ended.exit_code == 0)

        self._over_links(tell)

    def _show_untold(self, parties: tuple[str, ...], end: float) -> None:
        if parties:
            self._host.report(
                f"not told yet how the study ended: {named(parties)}; the address stays open for them until "
                f"{until_text(end - time.monotonic())} (--linger), Ctrl-C ends that"
            )

    def _over_links(self, work: Callable[[_Open], None]) -> None:
        """Do the work over a link, and over another one where it is lost; not where the user asks to stop."""
        while self._open is not None or not self._stop.is_set():
            begun = time.monotonic()
            try:
                if (found := self._open or self._connect()) is not None:
                    work(found)
                return
            except LinkLostError:
                self.close()
                self._lost = 1 if time.monotonic() - begun > _STEADY_S else self._lost + 1
                if self._stop.is_set():
                    return
                if not self._began or self._lost > _MOST_LOST:
                    raise
                self._host.report("the connection with the hospitals is lost, and made again")
            self._stop.wait(self._lost)

    def _connect(self) -> _Open | None:
        """Start a SuperLink; None where the user asks to stop meanwhile."""
        from pate_fed.flower.superlink import SuperLink

        host, names = self._host, None
        tls = None if host.authority is None else (host.authority.folder, _link_guard(host.authority))
        link = SuperLink(self._folder, host.address, tls=tls)
        self._held.callback(link.stop)
        self._held.callback(link.close_run, completed=False)
        link.wait_until_ready(self._stop.is_set)
        if self._stop.is_set():
            return None
        if host.authority is not None:
            admitted = AdmittedHospitals(host.authority, link, report=host.report)
            self._held.callback(admitted.stop)
            key, names = host.authority.ledger_key(), admitted.names
            self._admits.set_admitted(names, admitted.sum_identities, key=key)
        self._began = True
        grid, context = link.open_run()
        self._open = _Open(link, grid, context, names)
        return self._open

    def _wait_for_hospitals(
        self, found: _Open, wanted: int, *, enough: int | None = None
    ) -> Iterator[Waiting]:
        """Each change of who is connected, until all are or the time is over; the quorum decides later.

        Once `enough` are there the others have a minute and a half.
        """
        told = None
        self._host.report(f"listening on {self._host.address} for {wanted} hospitals")
        end = time.monotonic() + self._host.wait_s
        while (told is None or told.answered < wanted) and time.monotonic() < end and not self._stop.is_set():
            _require_running(found.link)
            seen = self._connected(found, wanted)
            shortened = enough is not None and enough <= seen.answered < wanted
            if shortened:
                end, enough = min(end, time.monotonic() + _BACK_S), None
            if seen != told or shortened:
                until = f", until {until_text(end - time.monotonic())}" if seen.answered < wanted else ""
                self._host.report(f"waiting for hospitals: {seen.text}{until}")
            if seen != told:
                told = seen
                yield seen
            self._stop.wait(_POLL_S)

    def _connected(self, found: _Open, wanted: int) -> Waiting:
        """Who is connected and who is missing, by name where they have keys and are few."""
        nodes = set(found.grid.get_node_ids())
        known = {} if found.names is None else dict(found.names)
        present, missing = (
            tuple(sorted(name for node, name in known.items() if (node in nodes) == here))
            for here in (True, False)
        )
        return Waiting(
            phase=CONNECT,
            asked=wanted,
            answered=len(nodes),
            present=present if len(present) <= MOST_NAMED else (),
            missing=missing if len(missing) <= MOST_NAMED else (),
            not_admitted=0 if found.names is None else max(0, wanted - len(known)),
            patience_s=self._host.wait_s,
        )


def _require_running(link: SuperLink) -> None:
    if not link.running:
        raise LinkLostError("Flower's SuperLink ended unexpectedly; see its log in the run directory")


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

    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Host(place, authority, arguments.wait, report, arguments.linger)


def _authority(folder: Path) -> Authority:
    from pate_fed.identity import Authority

    found = Authority(folder)
    for warning in found.check_server():
        print(f"warning: {warning}", file=sys.stderr)
    return found


def _link_guard(authority: Authority) -> LinkGuard:
    """What the SuperLink's guard needs, by the terms that hospitals were admitted to."""
    from pate_fed.flower.transport import LinkGuard
    from pate_fed.kinds.terms import Terms, largest_messages

    terms = Terms.from_json(authority.study.terms)
    return LinkGuard(most_bytes=largest_messages(terms).to_coordinator, hospitals=terms.num_clients)

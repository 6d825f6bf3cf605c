"""Which node is which hospital: admitted keys are registered, revoked ones shut out at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import serialization

from pate_fed.errors import InputError
from pate_fed.identity.certificates import Certificate, expiry_warnings, require_valid, sum_identity_of

if TYPE_CHECKING:
    from pate_fed.flower.transport import Link
    from pate_fed.identity import Authority

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

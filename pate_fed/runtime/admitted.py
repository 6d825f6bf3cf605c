"""Which node is which hospital: admitted keys are registered, revoked ones shut out at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import serialization

from pate_fed.errors import InputError
from pate_fed.identity.certificates import Certificate, expiry_warnings, require_valid, sum_identity_of

if TYPE_CHECKING:
    from pate_fed.flower.superlink import SuperLink
    from pate_fed.identity import Authority

__all__ = ["AdmittedHospitals"]

_WATCH_S = 2.0


class AdmittedHospitals:
    """The admitted hospitals of a running study; the authority's folder is read again every two seconds.

    `names` says whose key each node has, `sum_identities` which key each signs secure sums with. Both grow
    when a hospital is admitted while the study waits.
    """

    def __init__(self, authority: Authority, link: SuperLink, *, report: Callable[[str], None]) -> None:
        self._authority, self._link, self._report = authority, link, report
        self.names: dict[int, str] = {}
        self.sum_identities: dict[str, bytes] = {}
        self._nodes: dict[str, tuple[int, bytes]] = {}  # each one's node, and the key that it was let in with
        self._skipped: set[int] = set()  # serial numbers of certificates that are not valid
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
            try:
                self._update()
            except Exception as error:  # a half-written file, or a SuperLink that is going: looked at again
                print(f"warning: the list of hospitals was not read: {type(error).__name__}", file=sys.stderr)

    def _update(self) -> None:
        now = dict(self._authority.admitted())
        for name, (node, key) in list(self._nodes.items()):
            # Between two looks a name may have been revoked and admitted with another key.
            if name not in now or _public(now[name]) != key:
                del self._nodes[name]
                self.names.pop(node, None)
                self.sum_identities.pop(name, None)
                self._link.unregister(node)
                self._report(f"{name} is revoked: shut out")
        for name, certificate in now.items():
            if name not in self._nodes and certificate.serial_number not in self._skipped:
                self._admit(name, certificate)

    def _admit(self, name: str, certificate: Certificate) -> None:
        try:
            require_valid(certificate, f"{name}'s")
        except InputError as error:
            self._skipped.add(certificate.serial_number)
            print(f"warning: {error}; it cannot connect", file=sys.stderr)
            return
        for warning in expiry_warnings(certificate, f"{name}'s"):
            print(f"warning: {warning}", file=sys.stderr)
        public = _public(certificate)
        node = self._link.register(public, name)
        self._nodes[name] = node, public
        self.names[node] = name
        self.sum_identities[name] = sum_identity_of(certificate)


def _public(certificate: Certificate) -> bytes:
    return certificate.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )

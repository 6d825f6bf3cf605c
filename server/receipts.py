"""What came from each hospital, by digests: its receipt at the study's end."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pate_fed.identity.receipt import Receipt
from pate_fed.protocol.messages import Reply, record_digest
from pate_fed.structure import PARTY_NAME


class Receipts:
    """Digests of all replies of a study, and the receipts that follow from them, signed with `key`.

    `folder` is where another coordinator process finds them; None: nowhere. A digest is as private as what
    it is of, where that is short.
    """

    def __init__(self, key: Ed25519PrivateKey, *, terms_digest: str, folder: Path | None) -> None:
        self._key, self._terms_digest = key, terms_digest
        self._path = None if folder is None else folder / f"received-{terms_digest[:16]}"
        self._received: dict[str, list[str]] = {}
        if self._path is not None and self._path.exists():
            # The line that a crash cut short has no digest.
            text = self._path.read_text(encoding="utf-8", errors="replace")
            lines = [line.split() for line in text.splitlines()]
            for party, digest in (line for line in lines if len(line) == 2 and len(line[1]) == 64):
                self._received.setdefault(party, []).append(digest)

    def took(self, party: str, reply: Reply) -> None:
        """Note a reply of the hospital whose key it came with.

        Raises:
            OSError: it cannot be written.
        """
        digest = record_digest(reply.to_record())
        self._received.setdefault(party, []).append(digest)
        if self._path is None or not PARTY_NAME.fullmatch(party):
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8", opener=_private) as file:
            file.write(f"\n{party} {digest}")  # after a line that was cut, too

    def of(self, party: str) -> str:
        """The signed receipt of one hospital as text; empty where nothing came from it."""
        received = tuple(self._received.get(party, ()))
        if not received:
            return ""
        found = Receipt(hospital=party, terms_digest=self._terms_digest, received=received)
        return found.signed(self._key)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)

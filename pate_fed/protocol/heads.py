"""How far hospitals and the coordinator have come, as they show it to each other: so old copies are found.

A head is a count and the end of a hash chain of that length. A hospital's chain is of its own answers, under
a secret that it keeps, so that nobody can guess an answer by it; the coordinator's is its ledger, blinded by
the run's key.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pate_fed.errors import IntegrityError
from pate_fed.secure_sum import Identity
from pate_fed.secure_sum.keys import SIGNATURE_BYTES, verify
from pate_fed.structure import PARTY_NAME

LEDGER = "(ledger)"
"""Names the coordinator's own row, as no hospital can be called."""

HEAD_BYTES = 32
_COUNT_BYTES, _MOST = 8, 2**40
_PURPOSE = b"pate_fed/v1 head of a hospital's answers\n"
_UNSIGNED = bytes(SIGNATURE_BYTES)
_ROW = re.compile(r"(\S{1,64}) (0|[1-9][0-9]{0,17}) ([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, order=True)
class Head:
    """The end of a chain of `count` links, 32 bytes."""

    count: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A hospital's word on the head of its own answers in a study; unsigned where it has no identity."""

    head: Head
    signature: bytes = _UNSIGNED

    def signed(self, identity: Identity, *, party: str, terms_digest: str) -> Statement:
        """The same, signed by the hospital for one study."""
        message = self._message(party=party, terms_digest=terms_digest)
        return Statement(head=self.head, signature=identity.sign(message))

    def signed_by(self, public: bytes, *, party: str, terms_digest: str) -> bool:
        """Whether the owner of `public` stated it as this hospital in this study."""
        return verify(public, self.signature, self._message(party=party, terms_digest=terms_digest))

    def to_bytes(self) -> bytes:
        """For a message, 104 bytes."""
        return self.head.count.to_bytes(_COUNT_BYTES, "big") + self.head.value + self.signature

    @classmethod
    def read(cls, data: bytes) -> Statement:
        """The statement in such bytes; IntegrityError where it is none, or counts what nobody reaches."""
        if len(data) != _COUNT_BYTES + HEAD_BYTES + SIGNATURE_BYTES:
            raise IntegrityError("the statement of a hospital's head has another length")
        count, rest = int.from_bytes(data[:_COUNT_BYTES], "big"), data[_COUNT_BYTES:]
        if count > _MOST:
            raise IntegrityError("the statement of a hospital's head counts more than there can be")
        return cls(head=Head(count, rest[:HEAD_BYTES]), signature=rest[HEAD_BYTES:])

    def _message(self, *, party: str, terms_digest: str) -> bytes:
        return _PURPOSE + f"{terms_digest}/{party}/{self.head.count}/{self.head.value.hex()}".encode()


def heads_text(heads: Mapping[str, Head]) -> str:
    """Heads by name as a message holds them, one a line."""
    rows = sorted(heads.items())
    return "\n".join(f"{name} {head.count} {head.value.hex()}" for name, head in rows)


def read_heads(text: str) -> dict[str, Head]:
    """The heads in such a text, by name; IntegrityError where it is none, or names somebody twice."""
    found: dict[str, Head] = {}
    for line in text.split("\n") if text else ():
        row = _ROW.fullmatch(line)
        if row is None or row[1] in found or not (row[1] == LEDGER or PARTY_NAME.fullmatch(row[1])):
            raise IntegrityError("the heads that are shown are not readable")
        found[row[1]] = Head(int(row[2]), bytes.fromhex(row[3]))
    return found


def ledger_head(run: Identity, *, rows: int, head: str) -> Head:
    """The coordinator's row: its ledger's length and, blinded by the run's key, its last row's hash."""
    return Head(rows, hmac.digest(run.to_bytes(), f"ledger/{rows}/{head}".encode(), "sha256"))

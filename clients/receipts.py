"""The coordinator's receipts in a hospital's state directory: which messages it confirms to have received."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from pate_fed.disk import write_private
from pate_fed.errors import IntegrityError
from pate_fed.identity import HospitalIdentity
from pate_fed.identity.receipt import Receipt

_PATTERN = "receipt-*.json"
_MOST_KEPT = 100


def keep_receipt(state_dir: Path, text: str, identity: Path) -> None:
    """Keep a receipt that came at the study's end; none is ever overwritten.

    `identity` is the folder of the hospital's identity, whose admission names the coordinator's key.

    Raises:
        IntegrityError: it is not the coordinator's, or another hospital's or study's; nothing is kept.
        InputError: there is no identity.
    """
    admission = HospitalIdentity.open(identity).admission
    key = admission.receipt_key
    if key is None:
        raise IntegrityError("a receipt came, and this hospital's admission names no key that signs one")
    found = Receipt.read(text, key)
    if (found.hospital, found.terms_digest) != (admission.hospital, admission.terms_digest):
        raise IntegrityError("the receipt is another hospital's or another study's")
    name = f"receipt-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if len(list(state_dir.glob(_PATTERN))) < _MOST_KEPT:
        write_private(state_dir / name, text.encode())


def read_receipts(state_dir: Path, key: Ed25519PublicKey) -> list[Receipt]:
    """All receipts that were kept.

    Raises:
        IntegrityError: one was changed, or is not the coordinator's.
    """
    found = []
    for path in sorted(state_dir.glob(_PATTERN)):
        try:
            found.append(Receipt.read(path.read_text(encoding="utf-8", errors="replace"), key))
        except IntegrityError as error:
            raise IntegrityError(f"{path.name}: {error}") from error
    return found

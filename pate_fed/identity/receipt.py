"""The coordinator's receipt for one hospital: digests of all that came from it, signed by its ledger key."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from pate_fed.errors import IntegrityError
from pate_fed.identity.keys import is_signed, sign

_PURPOSE = b"pate_fed/v1 receipt of a coordinator\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a coordinator received from one hospital in a study.

    `received` are digests of messages (`pate_fed.protocol.messages`), in the order in which they came; a
    message that came twice is there twice.
    """

    hospital: str
    terms_digest: str
    received: tuple[str, ...]

    def signed(self, key: Ed25519PrivateKey) -> str:
        """The receipt with its signature, as text."""
        return json.dumps({**asdict(self), "signature": sign(key, self._message())})

    @classmethod
    def read(cls, text: str, public: Ed25519PublicKey) -> Receipt:
        """The receipt in a text, once its signature is checked.

        Raises:
            IntegrityError: it is none, or another key signed it.
        """
        try:
            values = json.loads(text)
            signature = values.pop("signature")
            found = cls(**{**values, "received": tuple(values["received"])})
            texts = (signature, found.hospital, found.terms_digest, *found.received)
            sound = all(isinstance(value, str) for value in texts)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise IntegrityError("the receipt is not readable") from error
        if not sound or not is_signed(public, signature, found._message()):
            raise IntegrityError("the receipt is not signed by the study's coordinator")
        return found

    def _message(self) -> bytes:
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return _PURPOSE + text.encode()

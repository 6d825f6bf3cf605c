"""The terms of a study as its authority signs them: read from their canonical JSON, of either kind."""

from __future__ import annotations

from pate_fed.errors import IntegrityError
from pate_fed.kinds.labels import LabelTerms
from pate_fed.kinds.terms import Terms


def signed_bytes(terms_json: str) -> bytes:
    """What the authority signs for a study's terms: their purpose and their canonical JSON."""
    return b"pate_fed/v1 terms of a study\n" + terms_json.encode()


def ledger_key_bytes(terms_json: str, public_key: str) -> bytes:
    """What the authority signs for the coordinator's ledger key, hex: it is this very study's."""
    return b"pate_fed/v1 ledger key of a study\n" + public_key.encode() + b"\n" + terms_json.encode()


def read_terms(terms_json: str) -> Terms | LabelTerms:
    """The terms in a canonical JSON: of a study with votes, or of one of private labels.

    Raises:
        IntegrityError: they are of neither.
    """
    try:
        return Terms.from_json(terms_json)
    except IntegrityError:
        return LabelTerms.from_json(terms_json)

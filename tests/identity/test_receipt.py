"""A coordinator's receipt: read back as it was signed, and by no other key or content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pate_fed.errors import IntegrityError
from pate_fed.identity.keys import Receipt

RECEIPT = Receipt(hospital="north", terms_digest="ab" * 32, received=("cd" * 32, "ef" * 32, "cd" * 32))
KEY = Ed25519PrivateKey.generate()


def test_what_was_signed_is_read() -> None:
    assert Receipt.read(RECEIPT.signed(KEY), KEY.public_key()) == RECEIPT


@pytest.mark.parametrize(
    "change",
    [
        {"hospital": "east"},
        {"terms_digest": "00" * 32},
        {"received": ["cd" * 32, "ef" * 32]},
        {"received": ["ef" * 32, "cd" * 32, "cd" * 32]},
        {"received": []},
        {"signature": "00" * 64},
    ],
)
def test_a_changed_receipt_is_not_the_coordinators(change: dict[str, Any]) -> None:
    changed = json.dumps({**json.loads(RECEIPT.signed(KEY)), **change})
    with pytest.raises(IntegrityError, match="not signed by the study's coordinator"):
        Receipt.read(changed, KEY.public_key())


def test_another_key_signs_no_receipt() -> None:
    with pytest.raises(IntegrityError, match="not signed"):
        Receipt.read(RECEIPT.signed(Ed25519PrivateKey.generate()), KEY.public_key())


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"signature": "00"}', "[" * 100_000])
def test_what_is_no_receipt_is_not_readable(text: str) -> None:
    with pytest.raises(IntegrityError, match="not readable"):
        Receipt.read(text, KEY.public_key())


@pytest.mark.parametrize("change", [{"received": 3}, {"received": [3]}, {"hospital": 3}, {"more": 1}])
def test_other_fields_are_not_readable(change: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match="not readable"):
        Receipt.read(json.dumps({**json.loads(RECEIPT.signed(KEY)), **change}), KEY.public_key())


def test_a_signature_that_is_no_text_is_nobodys() -> None:
    with pytest.raises(IntegrityError, match="not signed"):
        Receipt.read(json.dumps({**json.loads(RECEIPT.signed(KEY)), "signature": 3}), KEY.public_key())

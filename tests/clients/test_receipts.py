"""A coordinator's receipts in a hospital's state directory: kept as they came, and only its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_terms
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clients.receipts import keep_receipt, read_receipts
from pate_fed.errors import IntegrityError
from pate_fed.identity import Authority
from pate_fed.identity.receipt import Receipt

RECEIPT = Receipt(hospital="north", terms_digest=make_terms().digest, received=("00" * 32,))


def test_receipts_are_kept_beside_each_other_and_read_back(
    tmp_path: Path, admitted: tuple[Authority, Path]
) -> None:
    authority, identity = admitted
    key = authority.ledger_key()
    later = replace(RECEIPT, received=("00" * 32, "11" * 32))
    for receipt in (RECEIPT, later, RECEIPT):  # the same one again is no third
        keep_receipt(tmp_path, receipt.signed(key), identity)
    kept = read_receipts(tmp_path, key.public_key())
    assert sorted(kept, key=lambda receipt: len(receipt.received)) == [RECEIPT, later]
    [changed, _] = sorted(tmp_path.iterdir())
    changed.write_text(changed.read_text().replace("north", "east"))
    with pytest.raises(IntegrityError, match=changed.name):
        read_receipts(tmp_path, key.public_key())


def test_no_coordinator_fills_the_disk_with_receipts(
    tmp_path: Path, admitted: tuple[Authority, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clients.receipts._MOST_KEPT", 3)
    authority, identity = admitted
    for number in range(5):
        receipt = replace(RECEIPT, received=(f"{number:02}" * 32,))
        keep_receipt(tmp_path, receipt.signed(authority.ledger_key()), identity)
    assert len(list(tmp_path.iterdir())) == 3


def test_only_this_studys_coordinator_gives_receipts(
    tmp_path: Path, admitted: tuple[Authority, Path]
) -> None:
    authority, identity = admitted
    key = authority.ledger_key()
    for text in (
        replace(RECEIPT, hospital="east").signed(key),
        replace(RECEIPT, terms_digest="11" * 32).signed(key),
        RECEIPT.signed(Ed25519PrivateKey.generate()),
        "[]",
        "{",
    ):
        with pytest.raises(IntegrityError):
            keep_receipt(tmp_path, text, identity)
    assert not list(tmp_path.glob("receipt-*"))

"""What came from each hospital, by digests, across processes of the coordinator."""

from __future__ import annotations

import stat
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pate_fed.identity.keys import Receipt
from pate_fed.protocol.messages import JoinReply, record_digest
from server.outcome import Receipts

REPLY = JoinReply(party="north", terms_digest="ab" * 32)


def test_each_hospital_gets_its_own_and_nobody_anothers(tmp_path: Path) -> None:
    key, digest = Ed25519PrivateKey.generate(), record_digest(REPLY.to_record())
    (tmp_path / "private").mkdir(mode=0o700)
    receipts = Receipts(key, terms_digest="ab" * 32, folder=tmp_path / "private")
    receipts.took("north", REPLY)
    receipts.took("north", REPLY)
    receipts.took("east", REPLY)
    found = Receipt.read(receipts.of("north"), key.public_key())
    assert found == Receipt(hospital="north", terms_digest="ab" * 32, received=(digest, digest))
    assert receipts.of("west") == ""
    [path] = (tmp_path / "private").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Receipts(key, terms_digest="ab" * 32, folder=tmp_path / "private")
    assert again.of("north") == receipts.of("north")
    with open(path, "ab") as file:
        file.write(b"\nnorth \xff\xfe\0")  # a disk's damage costs a line, not the study
    assert Receipts(key, terms_digest="ab" * 32, folder=path.parent).of("north") == receipts.of("north")
    other = Receipts(key, terms_digest="cd" * 32, folder=tmp_path / "private")
    assert other.of("north") == ""


def test_a_simulations_receipts_are_nowhere(tmp_path: Path) -> None:
    receipts = Receipts(Ed25519PrivateKey.generate(), terms_digest="ab" * 32, folder=None)
    receipts.took("north", REPLY)
    assert receipts.of("north") and not list(tmp_path.iterdir())

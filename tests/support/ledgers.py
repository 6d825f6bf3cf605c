"""What tests of ledgers begin with: a mechanism of 50 teachers on four classes, terms, and a key."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pate_fed.privacy import ConfidentGNMax, LedgerTerms, Protection, SeededNoise

MECHANISM = ConfidentGNMax(num_teachers=50, num_classes=4, threshold=30, sigma1=20, sigma2=10)
TERMS = LedgerTerms(
    study_digest="ab" * 32,
    delta=1e-5,
    mechanisms=(MECHANISM,),
    protection=Protection(),
    noise=SeededNoise(0).kind,
    private=False,
)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw().hex()

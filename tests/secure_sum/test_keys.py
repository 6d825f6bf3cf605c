"""Keys: what people compare, what does not travel, and labels that differ."""

from __future__ import annotations

import ast
import pickle
import struct
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import pate_fed.secure_sum as room
from pate_fed.errors import InputError, PateFedError
from pate_fed.secure_sum import Identity, fingerprint
from pate_fed.secure_sum.keys import BatchLabel, ExchangeKey, extract, pack, read_fingerprint, spoken


def test_secrets_are_not_pickled(federation: Any) -> None:
    for secret in (Identity.generate(), ExchangeKey.generate()):
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(secret)
        assert "hidden" in repr(secret)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(federation(4).hospitals["hospital-0"])


def test_a_fingerprint_is_for_people() -> None:
    one, two = Identity.generate(), Identity.generate()
    assert Identity(one.to_bytes()).public == one.public
    assert fingerprint(one.public) != fingerprint(two.public)
    with pytest.raises(PateFedError, match="32 bytes"):
        Identity(b"short")
    assert fingerprint(bytes(32)) == spoken(sha256(bytes(32)).digest())


def test_words_hold_80_bits_of_a_digest() -> None:
    """127.0.0.1 and 63.84.220.193 are the published examples of proquints."""
    digest = bytes([127, 0, 0, 1, 63, 84, 220, 193, 0, 0])
    shown = spoken(digest)
    assert shown == "lusab-babad-gutih-tugad-babab" == spoken(digest + b"more")
    for place in range(80):
        other = bytearray(digest)
        other[place // 8] ^= 1 << place % 8
        assert spoken(bytes(other)) != shown


def test_a_fingerprint_that_was_typed_is_five_words() -> None:
    shown = fingerprint(bytes(32))
    for typed in (shown, shown.upper(), shown.replace("-", " "), shown.replace("-", ""), f" {shown}\n"):
        assert read_fingerprint(typed) == shown
    for wrong in (shown[:-1], f"{shown}b", f"{shown[:-1]}e", "a" * 25, "lusab", "0" * 64, ""):
        with pytest.raises(InputError, match="five words of five letters"):
            read_fingerprint(wrong)


def test_a_label_changes_with_everything_in_it() -> None:
    base: dict[str, Any] = {
        "study": "s",
        "roster": "ab" * 32,
        "batch": 0,
        "batch_digest": "cd" * 32,
        "attempt": 0,
    }
    labels = [BatchLabel(**base)]
    changes = (
        {"study": "t"},
        {"roster": "ac" * 32},
        {"batch": 1},
        {"batch_digest": "ce" * 32},
        {"attempt": 1},
    )
    labels += [BatchLabel(**{**base, **change}) for change in changes]
    keys = {label.key(bytes(32), use, *pair) for label in labels for use in "ab" for pair in _PAIRS}
    assert len(keys) == len(labels) * 2 * len(_PAIRS)


def test_a_key_in_two_halves_is_that_of_the_librarys_whole_derivation() -> None:
    roster, secret = bytes(range(32)), bytes(range(100, 132))
    label = BatchLabel("s", roster.hex(), 7, "cd" * 32, 2)
    named = {"protocol": "pate_fed/secure_sum/v3", "use": "u", "study": "s", "batch": 7, "digest": "cd" * 32}
    named["attempt"] = 2
    whole = HKDF(hashes.SHA256(), 32, roster, pack(named) + struct.pack(">II", 3, 5)).derive(secret)
    assert label.key(secret, "u", 3, 5) == label.keys("u")(extract(secret, roster), 3, 5) == whole


_PAIRS = [(0, 1), (1, 0), (0, 0), (1, 256), (256, 1), (0, 2**31)]


def test_randomness_has_one_source_and_no_seed() -> None:
    folder = Path(room.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {
            alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        # Attributes and imports by which a program could draw, or replace the source of, randomness.
        assert not names & {"random", "default_rng", "urandom", "getrandbits", "_system"}
        assert bool(names & {"secrets", "token_bytes"} - {"secrets"}) == (path.name == "keys.py")

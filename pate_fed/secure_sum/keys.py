"""Randomness, identities that sign, keys that agree and are derived for one use each, and bytes on the wire.

Here alone is randomness drawn, from the operating system's CSPRNG; nothing can seed it (tests that need a
fixed transcript replace `_system` from outside). Every primitive is from `cryptography`: Ed25519, X25519,
HKDF-SHA256, ChaCha20-Poly1305. A long-term secret is only ever an input of a derivation, and every derived
key serves one use in one direction, so an all-zero nonce is used once with it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NoReturn, Self

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

from pate_fed.errors import InputError, IntegrityError

# Flat records as bytes, in exactly one way: what is signed, hashed, put into a key's label or kept on disk.
#
# A record maps names to integers, text, bytes or one-dimensional arrays. Names are sorted and every value
# carries its type and length, so two different records never have the same bytes.

Value = int | str | bytes | NDArray[Any]
Record = dict[str, Value]

# Little-endian on every machine, so that a signature made on one holds on another.
_DTYPES: dict[bytes, np.dtype[Any]] = {b"w": np.dtype("<u2"), b"u": np.dtype("<u4"), b"l": np.dtype("<i8")}
_HEAD = struct.Struct(">HcQ")
_DAMAGED = "a packed record is damaged"


def pack(record: Mapping[str, Value]) -> bytes:
    """The record's bytes.

    Raises:
        IntegrityError: a value that is no 64-bit integer, text, bytes or flat array of uint16, uint32, int64.
    """
    return b"".join(_parts(record))


def digest(label: str, record: Mapping[str, Value]) -> bytes:
    """SHA-256 over a label and the record's bytes; large arrays are not copied."""
    told = label.encode()
    state = hashlib.sha256(len(told).to_bytes(8, "big") + told)
    for part in _parts(record):
        state.update(part)
    return state.digest()


def unpack(data: bytes) -> Record:
    """The record in its bytes; IntegrityError where `pack` does not make them."""
    record: Record = {}
    view, at, last = memoryview(data), 0, ""
    while at < len(view):
        name_end = at + _HEAD.size
        if name_end > len(view):
            raise IntegrityError(_DAMAGED)
        name_size, kind, size = _HEAD.unpack(view[at:name_end])
        at, name_end = name_end + name_size + size, name_end + name_size
        if at > len(view):
            raise IntegrityError(_DAMAGED)
        name = _text(view[name_end - name_size : name_end])
        if record and name <= last:  # names rise: one record has one form
            raise IntegrityError(_DAMAGED)
        record[name], last = _value(kind, view[name_end:at]), name
    return record


def _parts(record: Mapping[str, Value]) -> Iterator[bytes | memoryview]:
    for name in sorted(record):
        value, encoded = record[name], name.encode()
        kind, body = _encode(name, value)
        yield _HEAD.pack(len(encoded), kind, len(body)) + encoded
        yield body


def _encode(name: str, value: Value) -> tuple[bytes, bytes | memoryview]:
    if isinstance(value, str):
        return b"s", value.encode()
    if isinstance(value, bytes):
        return b"b", value
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return b"i", value.to_bytes(8, "big", signed=True)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        for kind, dtype in _DTYPES.items():
            if value.dtype == dtype:
                return kind, np.ascontiguousarray(value).data.cast("B") if value.size else b""
    raise IntegrityError(f"field {name!r} has a value that no record holds")


def _value(kind: bytes, body: memoryview) -> Value:
    if kind == b"s":
        return _text(body)
    if kind == b"b":
        return bytes(body)
    if kind == b"i" and len(body) == 8:
        return int.from_bytes(body, "big", signed=True)
    if kind in _DTYPES and len(body) % _DTYPES[kind].itemsize == 0:
        data = _once(bytes(body)) if kind == b"l" else bytes(body)
        return np.frombuffer(data, dtype=_DTYPES[kind])
    raise IntegrityError(_DAMAGED)


@lru_cache(maxsize=8)
def _once(positions: bytes) -> bytes:
    """The same bytes for equal ones: who survived is one list for all hospitals of a simulation."""
    return positions


def _text(body: memoryview) -> str:
    try:
        return bytes(body).decode()
    except UnicodeDecodeError as error:
        raise IntegrityError(_DAMAGED) from error


KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES = 32, 64, 16
COMMITMENT_BYTES = _HALF = 16
SHARE_BYTES = 34
_PROTOCOL = "pate_fed/secure_sum/v3"
_SEALING = f"{_PROTOCOL}/sealing key".encode()
_NONCE = bytes(12)  # of keys that seal once
_SHA256 = hashes.SHA256()
_POSITIONS = struct.Struct(">II")
_SHARE_ROW = KEY_BYTES + 4 + 4 + 1 + SHARE_BYTES  # hashed for a commitment: what for, its places, itself

_system = secrets.token_bytes


def random_bytes(count: int) -> bytes:
    """`count` uniform bytes."""
    return _system(count)


def random_below(bound: int, count: int) -> NDArray[np.int64]:
    """`count` independent uniform integers from 0 to `bound` - 1, for a bound of at most 2^16.

    By rejection, so exactly uniform: the share of draws that is thrown away is 1 - bound / 2^16.
    """
    accepted = np.empty(0, dtype=np.int64)
    while len(accepted) < count:
        drawn = np.frombuffer(random_bytes(2 * (count - len(accepted)) + 32), dtype="<u2").astype(np.int64)
        accepted = np.concatenate([accepted, drawn[drawn < bound]])
    return accepted[:count]


class _Secret:
    """Shows nothing of itself, and does not travel by pickle into a place that was not meant."""

    __slots__ = ()

    def __init__(self, raw: bytes) -> None:
        """Of its private part, 32 bytes."""

    @classmethod
    def generate(cls) -> Self:
        """A new one from the system's CSPRNG."""
        return cls(random_bytes(KEY_BYTES))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<hidden>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds a secret and is not pickled")


class Identity(_Secret):
    """An Ed25519 key under which a hospital or the coordinator signs everything.

    Raises:
        InputError: `raw` is not 32 bytes.
    """

    __slots__ = ("_key", "public")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            raise InputError(f"an identity's private key has {KEY_BYTES} bytes, not {len(raw)}")
        self._key = Ed25519PrivateKey.from_private_bytes(raw)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def to_bytes(self) -> bytes:
        """The private key, 32 bytes: for a file that its owner alone can read, and nowhere else."""
        return self._key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """An Ed25519 signature, 64 bytes."""
        return self._key.sign(message)


class ExchangeKey(_Secret):
    """An X25519 key: one for a study, agreed once with every other hospital, never revealed."""

    __slots__ = ("_key", "public")

    def __init__(self, raw: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(raw)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def to_bytes(self) -> bytes:
        """The private key, 32 bytes."""
        return self._key.private_bytes_raw()

    def agree(self, other: bytes, *, salt: bytes, label: bytes) -> bytes:
        """The 32-byte secret shared with the owner of the public key `other`.

        Raises:
            IntegrityError: `other` is no usable public key (a point of low order).
        """
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError as error:
            raise IntegrityError("an exchange key is not usable") from error
        return HKDF(_SHA256, KEY_BYTES, salt, label).derive(shared)


class SealingKeys(_Secret):
    """A hospital's X25519 keys of a study under which others seal for it: one for each place near it.

    To reveal one opens what that one other hospital and this one sealed for each other, and nothing else.
    """

    __slots__ = ("_seed",)

    def __init__(self, seed: bytes) -> None:
        self._seed = seed

    def to_bytes(self) -> bytes:
        """What all of them are derived from, 32 bytes."""
        return self._seed

    def key(self, place: int) -> ExchangeKey:
        """The key for the hospital at this place."""
        info = _SEALING + place.to_bytes(4, "big")
        return ExchangeKey(HKDFExpand(_SHA256, KEY_BYTES, info).derive(self._seed))

    def public(self, count: int) -> bytes:
        """The public keys for the first `count` places, 32 bytes each."""
        return b"".join(self.key(place).public for place in range(count))


class HashTree:
    """A Merkle tree over keys of 32 bytes each: its root stands for all, a path shows that one is among them.

    Leaves and inner nodes are hashed apart (RFC 9162, 2.1), so that neither passes for the other.
    """

    __slots__ = ("_keys", "_levels")

    def __init__(self, keys: bytes) -> None:
        self._keys = keys  # whose hashes, the lowest level, are made again where they are asked for
        places = 1 << (len(keys) // KEY_BYTES - 1).bit_length()
        level, pair, self._levels = b"".join(map(self._leaf, range(places))), 2 * KEY_BYTES, list[bytes]()
        while len(level) > KEY_BYTES:
            level = b"".join([_node(level[at : at + pair]) for at in range(0, len(level), pair)])
            self._levels.append(level)

    def _leaf(self, place: int) -> bytes:
        return _leaf(self._keys[KEY_BYTES * place : KEY_BYTES * (place + 1)] or bytes(KEY_BYTES))

    @property
    def root(self) -> bytes:
        """32 bytes."""
        return self._levels[-1] if self._levels else self._leaf(0)

    def path(self, place: int) -> bytes:
        """What `shows` needs beside the key at this place: 32 bytes a level."""
        found = [self._leaf(place ^ 1)] if self._levels else []
        for level in self._levels[:-1]:
            place >>= 1
            found.append(level[KEY_BYTES * (place ^ 1) : KEY_BYTES * ((place ^ 1) + 1)])
        return b"".join(found)

    @staticmethod
    def shows(root: bytes, place: int, key: bytes, path: bytes) -> bool:
        """Whether the tree of this root has the key at that place."""
        node, sha = _leaf(key), hashlib.sha256
        for at in range(0, len(path), KEY_BYTES):
            sibling = path[at : at + KEY_BYTES]
            node = sha(b"\1" + sibling + node if place & 1 else b"\1" + node + sibling).digest()
            place >>= 1
        return place == 0 and node == root


def _leaf(key: bytes) -> bytes:
    return hashlib.sha256(b"\0" + key).digest()


def _node(below: bytes) -> bytes:
    return hashlib.sha256(b"\1" + below).digest()


@lru_cache(maxsize=2**15)
def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether `signature` is that of `public` on `message` (a digest of 32 bytes).

    Remembered, since a simulation's process plays many hospitals, all of which check the same signatures.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=8192)
def fingerprint(public: bytes) -> str:
    """A public key as people compare it over the telephone: `spoken` of its SHA-256."""
    return spoken(hashlib.sha256(public).digest())


_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"
_WORDS = 5
_WORD = re.compile(f"[{_CONSONANTS}][{_VOWELS}]" * 2 + f"[{_CONSONANTS}]")


def spoken(digest: bytes) -> str:
    """The first 80 bits of a digest in five words that can be read out, 16 bits each.

    The words are proquints (arXiv 0901.4016). To meet one by chance takes 2^80 keys, so no list is needed.
    """
    words = (int.from_bytes(digest[2 * at : 2 * at + 2], "big") for at in range(_WORDS))
    return "-".join(
        _CONSONANTS[word >> 12]
        + _VOWELS[word >> 10 & 3]
        + _CONSONANTS[word >> 6 & 15]
        + _VOWELS[word >> 4 & 3]
        + _CONSONANTS[word & 15]
        for word in words
    )


def read_fingerprint(text: str) -> str:
    """A fingerprint as `spoken` shows it, from what a person typed: case and separators are free.

    Raises:
        InputError: not five such words.
    """
    letters = "".join(each for each in text.lower() if each.isalnum())
    words = [letters[at : at + 5] for at in range(0, len(letters), 5)]
    if len(words) != _WORDS or not all(map(_WORD.fullmatch, words)):
        raise InputError(f"the fingerprint {text!r}: five words of five letters are meant, as lusab-babad-…")
    return "-".join(words)


def seal(key: bytes, plain: bytes) -> bytes:
    """ChaCha20-Poly1305 under a key of one use; 16 bytes longer than `plain`."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, plain, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """What was sealed under `key`; IntegrityError where it was under another one, or was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
    except InvalidTag as error:
        raise IntegrityError("sealed bytes were changed, or sealed under another key") from error


def extract(secret: bytes, salt: bytes) -> bytes:
    """The first half of HKDF-SHA256, done once where many keys come of one secret: 32 bytes.

    RFC 5869, 2.2: HMAC of the secret under the salt.
    """
    state = HMAC(salt, _SHA256)
    state.update(secret)
    return state.finalize()


def pair_label(study: str, use: str, low: int, high: int) -> bytes:
    """The label of a pair's secret of one use: protocol, study and the two positions in the roster."""
    # Names are sorted, so what all pairs share stands at the end, and a position's part before it.
    return _part(high=high) + _part(low=low) + _part(protocol=_PROTOCOL, use=use, study=study)


@lru_cache(maxsize=8192)
def _part(**record: Value) -> bytes:
    return pack(record)


@dataclass(frozen=True, slots=True)
class BatchLabel:
    """Derives keys that hold for one roster and one attempt at one batch only.

    Each key's label names protocol, study, roster, batch, the batch's digest, attempt, use, and two
    positions: for a pair the lower and the higher, for a share sender and receiver, for a hospital's own
    secrets itself twice.
    """

    study: str
    roster: str
    batch: int
    batch_digest: str
    attempt: int

    def key(self, secret: bytes, use: str, first: int, second: int) -> bytes:
        """A 32-byte key from a secret, by HKDF-SHA256 with the roster's digest as salt."""
        return self.keys(use)(extract(secret, bytes.fromhex(self.roster)), first, second)

    def keys(self, use: str) -> Callable[[bytes, int, int], bytes]:
        """The derivation for one use, with its label prepared, from what `extract` made of secrets."""
        names: Record = {"study": self.study, "batch": self.batch, "attempt": self.attempt}
        info = pack({"protocol": _PROTOCOL, "use": use, "digest": self.batch_digest, **names})

        def derive(extracted: bytes, first: int, second: int) -> bytes:
            # The two positions have a fixed length, so prefix and suffix cannot be confused.
            return HKDFExpand(_SHA256, KEY_BYTES, info + _POSITIONS.pack(first, second)).derive(extracted)

        return derive

    def commit(self, secret: bytes, position: int) -> bytes:
        """A commitment to a hospital's self-mask secret, 32 bytes: it hides 272 random bits."""
        values: Record = {"position": position, "secret": secret, **self._names}
        return digest(f"{_PROTOCOL}/commitment", values)

    def commit_shares(self) -> Callable[[NDArray[np.int64], bytes], bytes]:
        """Commits to shares, for whoever deals or holds them: 16 bytes each, which hide 272 random bits.

        Half of SHA-256: who holds a share finds no other one that fits, and who dealt it may deal what it
        likes. Shapes: places int64 (shares, 3): each one's sender, receiver, and of which secret it is, 0 or
        1; the shares one after the other.
        """
        told = pack({"protocol": f"{_PROTOCOL}/share", "digest": self.batch_digest, **self._names})
        return partial(_commit_shares, hashlib.sha256(told).digest())

    @property
    def _names(self) -> Record:
        return {"roster": self.roster, "batch": self.batch, "attempt": self.attempt}


def _commit_shares(head: bytes, places: NDArray[np.int64], shares: bytes) -> bytes:
    rows = np.empty((len(places), _SHARE_ROW), dtype=np.uint8)
    rows[:, :KEY_BYTES] = np.frombuffer(head, dtype=np.uint8)
    # four bytes for each position, the first the largest, and one for which secret it is
    rows[:, KEY_BYTES : KEY_BYTES + 8] = places[:, :2].astype(">u4").view(np.uint8)
    rows[:, KEY_BYTES + 8] = places[:, 2]
    rows[:, -SHARE_BYTES:] = np.frombuffer(shares, dtype=np.uint8).reshape(-1, SHARE_BYTES)
    packed, sha, size = rows.tobytes(), hashlib.sha256, _SHARE_ROW
    return b"".join([sha(packed[at : at + size]).digest()[:_HALF] for at in range(0, len(packed), size)])

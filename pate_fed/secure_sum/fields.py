"""What each field of a message may hold; a field has one meaning and one check in all messages.

Sizes that depend on the number of hospitals are checked where that number is known, by the state machines.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from pate_fed.secure_sum.keys import KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES
from pate_fed.secure_sum.shamir import MAX_SHARES, SECRET_BYTES
from pate_fed.structure import PARTY_NAME, PARTY_NAME_IS

__all__ = ["CHECKS", "SEALED_BYTES", "VERSION"]

VERSION = 1

SEALED_BYTES = 2 * SECRET_BYTES + TAG_BYTES
"""One sealed share: of the self-mask's secret and of the pair seeds' secret."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_STUDY = re.compile(r"[\x20-\x7e]{1,128}")
_CODE = re.compile(r"[A-Z_]{1,32}")

Check = tuple[Callable[[object], bool], str]


def _integer(low: int, high: int) -> Check:
    def check(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return check, f"an integer from {low} to {high}"


def _text(pattern: re.Pattern[str], words: str) -> Check:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None, words


def _bytes(size: int) -> Check:
    return lambda value: isinstance(value, bytes) and len(value) == size, f"{size} bytes"


def _rows(size: int) -> Check:
    def check(value: object) -> bool:
        return isinstance(value, bytes) and len(value) > 0 and len(value) % size == 0

    return check, f"one or more times {size} bytes"


def _is_positions(value: object) -> bool:
    if not isinstance(value, np.ndarray) or value.dtype != np.dtype("<i8") or value.ndim != 1:
        return False
    return len(value) > 0 and bool(0 <= value[0] and value[-1] < MAX_SHARES and (np.diff(value) > 0).all())


def _is_vector(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype in ("<u2", "<u4")


def _is_roll(value: object) -> bool:
    if not isinstance(value, str):
        return False
    names = value.split("\n")
    return len(names) <= MAX_SHARES and all(PARTY_NAME.fullmatch(name) for name in names)


_DIGEST_CHECK = _text(_DIGEST, "64 hexadecimal digits")
_KEY_CHECK = _bytes(KEY_BYTES)
_NAME_CHECK = _text(PARTY_NAME, PARTY_NAME_IS)
_POSITIONS = _is_positions, "an increasing int64 array of positions in the roster"

CHECKS: dict[str, Check] = {
    "version": _integer(VERSION, VERSION),
    "study": _text(_STUDY, "1 to 128 printable characters"),
    "party": _NAME_CHECK,
    "parties": (_is_roll, f"names of {PARTY_NAME_IS}, one a line"),
    "coordinator": _KEY_CHECK,
    "identity": _KEY_CHECK,
    "exchange_key": _KEY_CHECK,
    "identities": _rows(KEY_BYTES),
    "exchange_keys": _rows(KEY_BYTES),
    "enrolments": _rows(SIGNATURE_BYTES),
    "threshold": _integer(1, MAX_SHARES),
    "roster": _DIGEST_CHECK,
    "batch": _integer(0, 2**31 - 1),
    "batch_digest": _DIGEST_CHECK,
    "length": _integer(1, 2**31 - 1),
    "bits": (lambda value: isinstance(value, int) and value in (16, 32), "16 or 32"),
    "commitment": _KEY_CHECK,
    "seeds": (lambda value: isinstance(value, bytes) and len(value) % KEY_BYTES == TAG_BYTES, "sealed seeds"),
    "sealed": _rows(SEALED_BYTES),
    "shares": _rows(SECRET_BYTES),
    "sharers": _POSITIONS,
    "survivors": _POSITIONS,
    "consenting": _POSITIONS,
    "consents": _rows(SIGNATURE_BYTES),
    "vector": (_is_vector, "a flat array of uint16 or uint32"),
    "code": _text(_CODE, "a code of capital letters"),
    "signature": _bytes(SIGNATURE_BYTES),
}

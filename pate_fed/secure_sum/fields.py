"""What each field of a message may hold; a field has one meaning and one check in all messages.

Sizes that depend on the number of hospitals are checked where that number is known, by the state machines.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from pate_fed.secure_sum.keys import KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES
from pate_fed.secure_sum.shamir import MAX_SHARES, SECRET_BYTES
from pate_fed.structure import PARTY_NAME, PARTY_NAME_IS, Setting

VERSION = 1

SEALED_BYTES = 2 * SECRET_BYTES + TAG_BYTES
"""One sealed share: of the self-mask's secret and of the pair seeds' secret."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_STUDY = re.compile(r"[\x20-\x7e]{1,128}")
_CODE = re.compile(r"[A-Z_]{1,32}")


def _bytes(size: int) -> Setting:
    return Setting(holds=lambda value: len(value) == size, allowed=f"{size} bytes")


def _rows(size: int) -> Setting:
    return Setting(
        holds=lambda value: len(value) > 0 and len(value) % size == 0,
        allowed=f"one or more times {size} bytes",
    )


def _is_positions(value: NDArray[np.int64]) -> bool:
    increasing = value.ndim == 1 and len(value) > 0 and bool((np.diff(value) > 0).all())
    return increasing and bool(0 <= value[0] and value[-1] < MAX_SHARES)


def _is_roll(value: str) -> bool:
    names = value.split("\n")
    return len(names) <= MAX_SHARES and all(PARTY_NAME.fullmatch(name) for name in names)


_DIGEST_CHECK = Setting(pattern=_DIGEST, allowed="64 hexadecimal digits")
_KEY_CHECK = _bytes(KEY_BYTES)
_POSITIONS = Setting(holds=_is_positions, allowed="an increasing int64 array of positions in the roster")

CHECKS: dict[str, Setting] = {
    "version": Setting(low=VERSION, high=VERSION),
    "study": Setting(pattern=_STUDY, allowed="1 to 128 printable characters"),
    "party": Setting(pattern=PARTY_NAME, allowed=PARTY_NAME_IS),
    "parties": Setting(holds=_is_roll, allowed=f"names of {PARTY_NAME_IS}, one a line"),
    "coordinator": _KEY_CHECK,
    "identity": _KEY_CHECK,
    "exchange_key": _KEY_CHECK,
    "identities": _rows(KEY_BYTES),
    "exchange_keys": _rows(KEY_BYTES),
    "enrolments": _rows(SIGNATURE_BYTES),
    "threshold": Setting(low=1, high=MAX_SHARES),
    "roster": _DIGEST_CHECK,
    "batch": Setting(low=0, high=2**31 - 1),
    "batch_digest": _DIGEST_CHECK,
    "length": Setting(low=1, high=2**31 - 1),
    "bits": Setting(holds=lambda value: value in (16, 32), allowed="16 or 32"),
    "commitment": _KEY_CHECK,
    "seeds": Setting(holds=lambda value: len(value) % KEY_BYTES == TAG_BYTES, allowed="sealed seeds"),
    "sealed": _rows(SEALED_BYTES),
    "shares": _rows(SECRET_BYTES),
    "sharers": _POSITIONS,
    "survivors": _POSITIONS,
    "consenting": _POSITIONS,
    "consents": _rows(SIGNATURE_BYTES),
    "vector": Setting(holds=lambda value: value.ndim == 1, allowed="a flat array of uint16 or uint32"),
    "code": Setting(pattern=_CODE, allowed="a code of capital letters"),
    "signature": _bytes(SIGNATURE_BYTES),
}

"""Flat records as bytes, in exactly one way: what is signed, hashed, put into a key's label or kept on disk.

A record maps names to integers, text, bytes or one-dimensional arrays. Names are sorted and every value
carries its type and length, so two different records never have the same bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import IntegrityError

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
    state = hashlib.sha256(_sized(label.encode()))
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
        return np.frombuffer(bytes(body), dtype=_DTYPES[kind])
    raise IntegrityError(_DAMAGED)


def _text(body: memoryview) -> str:
    try:
        return bytes(body).decode()
    except UnicodeDecodeError as error:
        raise IntegrityError(_DAMAGED) from error


def _sized(part: bytes) -> bytes:
    return len(part).to_bytes(8, "big") + part

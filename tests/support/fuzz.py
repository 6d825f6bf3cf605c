"""Mutations of good messages: of their bytes, and of their fields."""

from __future__ import annotations

from typing import Any

import numpy as np

_ODD: tuple[Any, ...] = (
    0,
    -1,
    2**63 - 1,
    -(2**63),
    float("nan"),
    float("inf"),
    "",
    "\x1b[2J",
    "a" * 100_000,
    "../../etc",
    b"",
    b"\xff" * 1000,
    True,
    np.zeros((0,), dtype=np.int64),
    np.full((2, 2), -1, dtype=np.int64),
    np.full(3, 2**62, dtype=np.int64),
    np.array(5, dtype=np.int64),
)


def mutate_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with a few changed, cut out, put in twice, or all of them random."""
    data = bytearray(content)
    kind = rng.integers(5)
    if kind == 0 or not data:
        return rng.bytes(int(rng.integers(0, 300)))
    if kind == 1:
        return bytes(data[: rng.integers(0, len(data))])
    if kind == 2:
        place = int(rng.integers(0, len(data)))
        data[place:place] = rng.bytes(int(rng.integers(1, 20)))
        return bytes(data)
    for place in rng.integers(0, len(data), int(rng.integers(1, 5))):
        data[place] = rng.integers(0, 256) if kind == 3 else data[place] ^ (1 << int(rng.integers(0, 8)))
    return bytes(data)


def mutate_record(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The record with a field gone, added, odd, swapped with another, or its text or bytes mutated."""
    changed, names = dict(record), list(record)
    for _ in range(int(rng.integers(1, 3))):
        name = names[rng.integers(len(names))]
        kind = rng.integers(6)
        if kind == 0:
            changed.pop(name, None)
        elif kind == 1:
            changed[f"{name}2"] = _ODD[rng.integers(len(_ODD))]
        elif kind == 2:
            changed[name] = record[names[rng.integers(len(names))]]
        elif kind == 3 or not isinstance(record[name], bytes | str | np.ndarray):
            changed[name] = _ODD[rng.integers(len(_ODD))]
        else:
            changed[name] = _mutate_value(record[name], rng)
    return changed


def _mutate_value(value: Any, rng: np.random.Generator) -> Any:
    if isinstance(value, str):
        return mutate_bytes(value.encode(), rng).decode("utf-8", "replace")
    if isinstance(value, bytes):
        return mutate_bytes(value, rng)
    array = value.copy()
    if array.size and rng.integers(2):
        array.flat[rng.integers(array.size)] = rng.choice(np.array([-1, 7, 2**62, -(2**63)]))
        return array
    return array[: rng.integers(0, len(array) + 1)] if array.ndim else array

"""Frozen dataclasses to JSON values and back, with every field checked on the way in."""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from pate_fed.errors import IntegrityError

__all__ = ["decode", "encode"]

T = TypeVar("T")

_MOST_BYTES = 2**26


def encode(value: Any) -> Any:
    """A JSON value: a dataclass as an object, images in base64, NaN and infinity as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: encode(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, np.ndarray):
        return _pack(value)
    if isinstance(value, (tuple, list)):
        return [encode(inner) for inner in value]
    if isinstance(value, dict):
        return {str(key): encode(inner) for key, inner in value.items()}
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def decode(kind: type[T], values: dict[str, Any]) -> T:
    """The dataclass of type `kind` that `encode` made `values` of; unknown keys are left aside.

    Raises:
        IntegrityError: a field is missing or has the wrong type; the error names it.
    """
    hints = get_type_hints(kind)
    arguments = {}
    for entry in fields(kind):  # type: ignore[arg-type]
        if entry.name in values:
            arguments[entry.name] = _read(
                hints[entry.name], values[entry.name], f"{kind.__name__}.{entry.name}"
            )
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise IntegrityError(f"{kind.__name__} lacks the field {entry.name!r}")
    return kind(**arguments)


def _read(hint: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        return _read(next(kind for kind in inner if kind is not NoneType), value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_read(inner[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        return {str(key): _read(inner[1], item, where) for key, item in value.items()}
    if origin is np.ndarray and isinstance(value, dict):
        return _unpack(value, where)
    if is_dataclass(hint) and isinstance(value, dict):
        return decode(hint, value)  # type: ignore[arg-type]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise IntegrityError(f"{where} has the wrong type ({type(value).__name__})")


def _pack(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    if array.dtype != np.uint8:
        raise TypeError(f"only uint8 arrays are kept here, not {array.dtype}")
    data = base64.b64encode(zlib.compress(array.tobytes(), 9)).decode("ascii")
    return {"shape": list(array.shape), "zlib_base64": data}


def _unpack(value: dict[str, Any], where: str) -> np.ndarray[Any, Any]:
    try:
        shape = tuple(int(size) for size in value["shape"])
        if min(shape, default=0) < 0 or math.prod(shape) > _MOST_BYTES:
            raise ValueError("size")
        # Bounded: a damaged or hostile line cannot unfold into more than it says.
        data = zlib.decompressobj().decompress(base64.b64decode(value["zlib_base64"]), math.prod(shape) + 1)
        return np.frombuffer(data, dtype=np.uint8).reshape(shape)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise IntegrityError(f"{where} is not a readable image array") from error

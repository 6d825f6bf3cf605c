"""Plain values into dataclasses, as they declare their fields, and back."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

import numpy as np

from pate_fed.errors import InputError, PateFedError
from pate_fed.structure.declarations import (
    PART_NAME,
    DeclaredField,
    Setting,
    SettingError,
    entries,
    exact_types,
    members,
    nearest,
    shown,
    wanted,
)

# Image arrays in text: compressed, as base64.


_MOST_BYTES = 2**26  # of an image array in a log line


def pack(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """A uint8 array as a table of its shape and bytes, which `unpack` reads back; of others a TypeError."""
    if array.dtype != np.uint8:
        raise TypeError(f"only uint8 arrays are kept here, not {array.dtype}")
    data = base64.b64encode(zlib.compress(array.tobytes(), 9)).decode("ascii")
    return {"shape": list(array.shape), "zlib_base64": data}


def unpack(value: Mapping[str, Any]) -> np.ndarray[Any, Any] | None:
    """The array in such a table, None where it is none or too large."""
    try:
        shape = tuple(int(size) for size in value["shape"])
        if min(shape, default=0) < 0 or math.prod(shape) > _MOST_BYTES:
            return None
        # Bounded: a damaged or hostile line cannot unfold into more than it says.
        data = zlib.decompressobj().decompress(base64.b64decode(value["zlib_base64"]), math.prod(shape) + 1)
        return np.frombuffer(data, dtype=np.uint8).reshape(shape)
    except (KeyError, TypeError, ValueError, zlib.error):
        return None


T = TypeVar("T")

_AS_THEY_ARE = frozenset({bool, int, str, NoneType})


def check(value: Any) -> None:
    """Hold every field of a dataclass to its type and declaration; for its `__post_init__`.

    Whole numbers become floats, and lists tuples, where the field says so: equal settings are equal values.

    Raises:
        SettingError: the first field that does not fit.
    """
    for entry in entries(type(value)):
        given = getattr(value, entry.name)
        fitted = _fitted(entry, given, entry.setting, entry.name)
        if fitted is not given:
            object.__setattr__(value, entry.name, fitted)


def from_plain(
    kind: type[T],
    values: object,
    *,
    where: str,
    error: type[PateFedError] = InputError,
    aside: bool = False,
    text: bool = False,
) -> T:
    """The dataclass in a table of plain values: numbers, texts, lists, tables, None.

    With `aside` unknown keys are left alone; with `text` every value is a text, as in a CSV row.

    Raises:
        PateFedError: of the class `error`: a key is unknown or missing, or a value does not fit. The message
            names `where`, the key, its flag, and what would be right.
    """
    try:
        if text and isinstance(values, Mapping):
            cells = {entry.name: entry for entry in entries(kind) if entry.name in values}
            values = {**values, **{key: entry.from_text(values[key]) for key, entry in cells.items()}}
        return _build(kind, values, "", aside)
    except SettingError as found:
        placed = found.placed(where=found.where or where)
        raise (placed if error is InputError else error(str(placed))) from found
    except InputError as found:  # values that do not go together, in the dataclass's own words
        raise (found if error is InputError else error(f"{where}: {found}")) from found


def to_plain(value: Any) -> Any:
    """What JSON and TOML can hold; `from_plain` reads it back.

    A dataclass becomes a table, a tuple a list, a path a text, an image array base64, NaN and infinity None.
    """
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if isinstance(value, (tuple, list)):
        return [to_plain(inner) for inner in value]
    if is_dataclass(kind):
        return {name: to_plain(getattr(value, name)) for name in _names(kind)}
    if isinstance(value, np.ndarray):
        return pack(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, np.generic):
        return to_plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    """A dataclass's fields."""
    return tuple(each.name for each in fields(kind))


def to_record(message: Any) -> dict[str, Any]:
    """A message's kind and fields, flat, as they are."""
    kind: Any = type(message)
    return {"kind": message.kind, **{name: getattr(message, name) for name in _names(kind)}}


def from_record(
    kind: type[T], record: Mapping[str, Any], *, checks: Mapping[str, Setting] | None = None
) -> T:
    """The message of that `kind` in a flat record; `checks` by name go before the fields' own declarations.

    Raises:
        SettingError: another kind, or a field missing, unknown, or holding what it may not.
    """
    known, name = entries(kind), kind.kind  # type: ignore[attr-defined]
    said = record.get("kind")
    if not isinstance(said, str) or said != name or set(record) != {"kind", *(entry.name for entry in known)}:
        names = ", ".join(entry.name for entry in known)
        raise SettingError("a record", f"a message {name!r} with the fields {names} is meant")
    declared = {entry.name: entry.setting for entry in known} | dict(checks or {})
    return kind(
        **{each.name: _fitted(each, record[each.name], declared[each.name], each.name) for each in known}
    )


def refusal(owner: Any, path: str, wanted: str) -> SettingError:
    """The error that a field, named from `owner` on ("teacher.name"), does not go with the others."""
    *tables, name = path.split(".")
    for table in tables:
        owner = getattr(owner, table)
    entry = next(entry for entry in entries(type(owner)) if entry.name == name)
    return SettingError(path, wanted, shown(getattr(owner, name)), entry.setting.flag)


def _build(kind: type[T], values: object, path: str, aside: bool) -> T:
    if not isinstance(values, Mapping):
        raise SettingError(path, "a table of settings is meant", shown(values))
    known = {entry.name: entry for entry in entries(kind)}
    for key in values:
        if key not in known and not aside:
            hint = f"no such key{nearest(key, known, cutoff=0.5)} (known: {', '.join(sorted(known))})"
            raise SettingError(_join(path, str(key)), hint)
    built = {}
    for name, entry in known.items():
        if name in values:
            built[name] = _fitted(entry, values[name], entry.setting, _join(path, name), aside)
        elif entry.required:
            raise SettingError(_join(path, name), "is missing")
    try:
        return kind(**built)
    except SettingError as error:
        raise (error if "." in error.path else error.placed(path=_join(path, error.path))) from error


def _fitted(entry: DeclaredField, value: Any, declared: Setting, path: str, aside: bool = False) -> Any:
    """`fit` of a field's value, which most often is in the field's form already."""
    if type(value) in entry.exact and (
        value is None or (declared.read is None and _allowed(value, declared))
    ):
        return value
    return fit(entry.hint, value, declared, path, aside)


class _Shape(NamedTuple):
    """What a hint says, looked up once: a table has it for each of its columns."""

    hint: Any
    kinds: tuple[Any, ...]
    exact: frozenset[type]
    origin: Any
    inner: tuple[Any, ...]


# By identity: int | float is equal to float | int, which tries them in another order.
_SHAPES: dict[int, _Shape] = {}


def _shape(hint: Any) -> _Shape:
    found = _SHAPES.get(id(hint))
    if found is None:
        found = _Shape(hint, members(hint), exact_types(hint), get_origin(hint), get_args(hint))
        _SHAPES[id(hint)] = found  # which keeps the hint, so that its identity is no other's
    return found


def fit(hint: Any, value: Any, declared: Setting, path: str, aside: bool = False) -> Any:
    """The value in the field's form; a SettingError where it does not fit."""
    if declared.read is not None and value is not None:
        try:
            value = declared.read(value)
        except InputError as error:
            raise SettingError(path, str(error), flag=declared.flag) from error
    _, kinds, exact, *_ = _shape(hint)
    if type(value) in exact and (value is None or _allowed(value, declared)):
        return value
    if value is None and NoneType in kinds:
        return None
    for kind in kinds:
        if kind is not NoneType:
            fitted = _as(kind, value, declared, path, aside)
            if fitted is not MISSING:
                return fitted
    known = (*declared.choices, *declared.also)
    near = "" if isinstance(value, str) and value in known else nearest(value, known)  # it lacks the brackets
    raise SettingError(path, f"{wanted(kinds, declared)} is meant{near}", shown(value), declared.flag)


def _as(kind: Any, value: Any, declared: Setting, path: str, aside: bool) -> Any:
    """The value as one of the kinds that a field may have, MISSING where it is none."""
    *_, origin, args = _shape(kind)
    if origin is tuple:
        return _as_tuple(args, value, declared, path, aside)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return MISSING
        inner = args[1]
        return {key: fit(inner, each, declared, _join(path, key), aside) for key, each in value.items()}
    if origin is np.ndarray:
        array = unpack(value) if isinstance(value, Mapping) else value
        dtype = np.dtype(get_args(args[1])[0])
        fits = isinstance(array, np.ndarray) and array.dtype.newbyteorder("=") == dtype
        return array if fits and _allowed(array, declared) else MISSING
    if is_dataclass(kind):
        return value if isinstance(value, kind) else _build(kind, value, path, aside)  # type: ignore[arg-type]
    if kind is Any:
        return value
    if kind is Path:
        return Path(value) if isinstance(value, str | Path) and str(value) else MISSING
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            return MISSING
    typed = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return value if typed and _allowed(value, declared) else MISSING


def _as_tuple(inner: Sequence[Any], value: Any, declared: Setting, path: str, aside: bool) -> Any:
    if not isinstance(value, (list, tuple)):
        return MISSING
    kinds = [inner[0]] * len(value) if Ellipsis in inner else inner
    if len(kinds) != len(value):
        return MISSING
    if Ellipsis in inner:
        exact = _shape(inner[0]).exact
        if all(type(item) in exact and (item is None or _allowed(item, declared)) for item in value):
            return value if isinstance(value, tuple) else tuple(value)
    each = declared if declared.read is None else replace(declared, read=None)
    try:
        fitted = tuple([fit(kind, item, each, path, aside) for kind, item in zip(kinds, value, strict=True)])
    except SettingError as error:
        if error.path != path:
            raise
        return MISSING  # the list is named, and shown, as a whole
    same = isinstance(value, tuple) and all(old is new for old, new in zip(value, fitted, strict=True))
    return value if same else fitted


def _allowed(value: Any, declared: Setting) -> bool:
    if declared.holds is not None and not declared.holds(value):
        return False
    if isinstance(value, str):
        named = declared.choices + declared.also
        return (
            (not named or value in named or (declared.part and PART_NAME.fullmatch(value) is not None))
            and (declared.pattern is None or declared.pattern.fullmatch(value) is not None)
            and (declared.most is None or len(value) <= declared.most)
        )
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (
            (declared.low is None or value >= declared.low)
            and (declared.high is None or value <= declared.high)
            and (declared.above is None or value > declared.above)
            and (declared.below is None or value < declared.below)
        )
    return True


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
